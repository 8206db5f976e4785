"""The Cluster Autoscaler, asked about an `Observed`.

The rules are compiled (`aaml.nodes.cluster_autoscaler_rules`); compiled episodes ask them about their own arrays.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf, nan

import numpy as np

from aaml.cluster.kernels import called
from aaml.nodes import cluster_autoscaler_rules as rules
from aaml.nodes.arrays import Sold, memory
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.ports import Command, Delete, Observed, Provision
from aaml.nodes.rows import BUYS, DELETES, NODE, NODE_TIME, STATE, TERMS
from aaml.nodes.settings import ClusterAutoscalerSettings


@dataclass
class ClusterAutoscaler:
    """One group for each type of a catalogue. `first_look_s`: when it first looks at the cluster."""

    settings: ClusterAutoscalerSettings
    catalogue: Catalogue
    first_look_s: float = 0.0
    _unneeded_s: dict[str, float] = field(default_factory=dict)  # by node: since when it could go
    _at: np.void = field(init=False, repr=False)
    _terms: np.void = field(init=False, repr=False)
    _sold: Sold = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._at, self._terms, self._sold = np.zeros(1, STATE)[0], np.zeros(1, TERMS)[0], Sold.of(self.catalogue)
        self._at["due_s"], self._at["added_s"] = self.first_look_s, -inf
        sizes = {"kinds": len(self.catalogue), "corners": len(self._sold.corners), "by_node": 1}
        for name, value in {**scan_terms(self.settings), **sizes}.items():
            self._terms[name] = value

    @property
    def next_s(self) -> float:
        """The next look."""
        return float(self._at["due_s"])

    def copy(self) -> "ClusterAutoscaler":
        """Return an independent copy."""
        return deepcopy(self)

    def act(self, seen: Observed) -> Sequence[Command]:
        """Look at the cluster when it is time: one group grows for what waits, else nodes that are not needed go."""
        self._at["now_s"], self._at["noted"] = seen.now_s, len(seen.waiting)
        if not rules.is_due(self._at):
            return ()
        names, own = [*seen.nodes], self._sold.seen(seen, self._at, self._terms)
        own.node_times[NODE_TIME.unneeded_s, : len(names)] = [self._unneeded_s.get(name, nan) for name in names]
        orders, count = called(rules.decide, own, work := memory(own))
        if orders == BUYS:
            return [Provision((self.catalogue.types[kind],)) for kind in work.bought[:count].tolist()]
        since_s = own.node_times[NODE_TIME.unneeded_s].tolist()
        self._unneeded_s = {name: at_s for name, at_s in zip(names, since_s, strict=False) if at_s == at_s}  # noqa: PLR0124
        planned = own.nodes[NODE.plan, : self._at["planned"]].tolist()
        return [Delete(tuple(names[number] for number in planned))] if orders == DELETES else []


def scan_terms(settings: ClusterAutoscalerSettings) -> Mapping[str, float]:
    """Return the numbers of the Cluster Autoscaler's settings in `aaml.nodes.rows.TERMS`."""
    return {
        "scans": 1, "least_waste": settings.expander == "least-waste", "scan_interval_s": settings.scan_interval_s,
        "scale_down_utilization_threshold": settings.scale_down_utilization_threshold,
        "scale_down_unneeded_time_s": settings.scale_down_unneeded_time_s,
        "scale_down_delay_after_add_s": settings.scale_down_delay_after_add_s,
        "max_empty_bulk_delete": settings.max_empty_bulk_delete, "max_nodes_total": settings.max_nodes_total,
    }  # fmt: skip
