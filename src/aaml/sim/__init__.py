"""The in-process cluster with a virtual clock, its compiled engine and the Gymnasium environment `aaml/Cluster-v0`."""
