"""What compiled episodes are made of: a simulated cluster at its beginning, and who provisions its nodes."""

from typing import Any, Protocol

import numpy as np

from aaml.cluster.state import ClusterState
from aaml.nodes.budgets import PodBudget
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.meter import Meter
from aaml.nodes.ports import Autoscaler
from aaml.nodes.settings import NodeTimes, Prices
from aaml.workload.model import Workload


class Supply(Protocol):
    """Who buys and gives back the nodes of a cluster at its beginning: `aaml.sim.supply.NodeSupply`."""

    autoscaler: Autoscaler
    catalogue: Catalogue
    times: NodeTimes
    prices: Prices
    meter: Meter
    rng: np.random.Generator
    budgets: tuple[PodBudget, ...]
    consolidatable_s: float


class Beginning(Protocol):
    """A simulated cluster at its beginning: `aaml.sim.cluster.SimCluster`."""

    workload: Workload
    until_s: float

    @property
    def state(self) -> ClusterState:
        """Its nodes."""
        ...

    @property
    def untouched(self) -> bool:
        """Whether nothing has happened yet, and nothing but pods and nodes' supply is to come."""
        ...

    @property
    def supply(self) -> Any:
        """Who buys and gives back its nodes, None where they stay."""
        ...
