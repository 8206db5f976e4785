"""What `aaml doctor` looks at: what this machine has, what is missing for what, and the command that mends it."""
