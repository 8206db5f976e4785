"""The real Kueue on a KWOK cluster: its program, built here, and its process."""
