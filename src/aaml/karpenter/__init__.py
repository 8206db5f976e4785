"""The real Karpenter on a KWOK cluster: its program, built here, and its process."""
