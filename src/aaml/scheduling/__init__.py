"""What a scheduler is: ports, observation, the cycle and the one scheduling loop, queue, rewards, preemption."""
