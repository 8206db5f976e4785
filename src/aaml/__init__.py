"""AAML: research, train, compare and run learned Kubernetes schedulers."""
