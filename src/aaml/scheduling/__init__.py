"""What a scheduler is: ports, observation, the cycle and the one walk, queue, rewards, preemption."""
