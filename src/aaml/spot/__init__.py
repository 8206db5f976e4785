"""Spot capacity for jobs with deadlines: the benchmark *Can't Be Late*, its policies, its optimum, our rule."""
