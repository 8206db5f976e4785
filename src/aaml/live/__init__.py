"""What runs on a cluster: schedulers, workloads, recorders and tables, leader election and health."""
