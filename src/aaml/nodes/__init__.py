"""Nodes that come and go inside an episode: who buys and sells them, what they cost, how they live."""
