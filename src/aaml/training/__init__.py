"""Training as a product: streams of experience, warm start, validation, run folders, sweeps."""
