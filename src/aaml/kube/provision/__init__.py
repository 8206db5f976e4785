"""Real Kubernetes clusters for experiments: KWOK without Docker (or with), and the nodes in them."""

from aaml.kube.provision.binaries import ensure_programs
from aaml.kube.provision.cluster import KwokCluster
from aaml.kube.provision.inventory import cluster_of, end_orphans
from aaml.kube.provision.nodes import create_nodes
from aaml.kube.provision.owner import Owner
from aaml.kube.provision.records import ClusterOptions
from aaml.kube.provision.waits import count_nodes, wait_schedulable

__all__ = [
    "ClusterOptions",
    "KwokCluster",
    "Owner",
    "cluster_of",
    "count_nodes",
    "create_nodes",
    "end_orphans",
    "ensure_programs",
    "wait_schedulable",
]
