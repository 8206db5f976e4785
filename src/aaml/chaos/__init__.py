"""What a live scheduler survives: faults on a real cluster, and what the API server's own objects say after each."""
