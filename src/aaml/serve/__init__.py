"""HTTP services: kube-scheduler extender, score service, metrics."""
