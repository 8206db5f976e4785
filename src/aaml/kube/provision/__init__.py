"""Real Kubernetes clusters for experiments: KWOK without Docker (or with), and the nodes in them."""

from aaml.kube.provision.api import Api, ApiError
from aaml.kube.provision.binaries import ensure_programs
from aaml.kube.provision.cluster import KwokCluster
from aaml.kube.provision.nodes import (
    NodeShape,
    count_nodes,
    create_nodes,
    node_manifest,
    parse_labels,
    standard_nodes,
    wait_schedulable,
)
from aaml.kube.provision.records import ClusterOptions

__all__ = [
    "Api",
    "ApiError",
    "ClusterOptions",
    "KwokCluster",
    "NodeShape",
    "count_nodes",
    "create_nodes",
    "ensure_programs",
    "node_manifest",
    "parse_labels",
    "standard_nodes",
    "wait_schedulable",
]
