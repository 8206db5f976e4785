"""Autoscalers in compiled episodes: nodes that are bought and given back, as `aaml.sim.autoscaler` has it."""
