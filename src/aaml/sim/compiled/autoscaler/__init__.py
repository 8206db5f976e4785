"""Autoscalers in compiled episodes: nodes that are bought and given back, as `aaml.nodes` has it."""
