"""What runs on a cluster: schedulers, workloads, records and tables, and the duties of a scheduler process."""
