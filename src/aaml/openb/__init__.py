"""The published GPU-sharing benchmark on the openb traces: runs, tables, plots, bounds and the tuner."""
