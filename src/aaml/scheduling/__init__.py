"""What a scheduler is: ports, observation, heuristics, rewards, the cycle and the one loop."""
