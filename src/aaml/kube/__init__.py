"""The live cluster: the only package that imports the Kubernetes client."""
