"""What there is, by name: policies, models, tasks, formulas."""
