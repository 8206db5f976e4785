"""The domain, pure: quantities, pods and nodes, cluster state, filters, topology, metrics."""
