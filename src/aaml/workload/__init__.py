"""Where pods come from: models of a workload, traces, and players that submit them."""
