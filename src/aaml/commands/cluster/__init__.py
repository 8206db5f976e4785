"""Real Kubernetes clusters on this machine: KWOK plays the kubelets, every other part is Kubernetes' own program."""

from dataclasses import dataclass

from aaml.settings import Settings


@dataclass(frozen=True)
class OfCluster(Settings):
    """Which cluster is meant."""

    name: str = "aaml"
    """the cluster's name"""
