"""Tuning kube-scheduler's own configuration: what may be set, the search, what is gained on episodes held out."""
