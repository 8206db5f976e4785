"""Kubernetes objects read into the domain's values and written from them; pure, no connection."""
