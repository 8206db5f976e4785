"""Nodes that come and go inside an episode: who provisions and terminates them, what they cost, how they live."""
