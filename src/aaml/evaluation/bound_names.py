"""What the rows of `aaml evaluate --bound` are called: no policy has one of these names."""

OFFLINE, SOLVED, SOLVER, FLUID = "offline-packing", "cp-sat", "cp-sat-bound", "fluid-bound"
"""A packing that knows all beforehand, the solver's placement, its bound, the LP relaxation."""
BOUND_ROWS = (OFFLINE, SOLVED, SOLVER, FLUID)
