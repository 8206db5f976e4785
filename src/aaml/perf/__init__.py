"""Kubernetes' own scheduler benchmark, played on a real API server for the real kube-scheduler and for AAML."""
