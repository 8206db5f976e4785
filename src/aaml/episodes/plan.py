"""Plan: an episode as arrays, for compiled code: its nodes, and its pods in order of arrival.

Pods that ask for the same things share a row of a table of *shapes*, so that a pod is a few numbers and what was found
for a shape need not be found again for its next pod.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Node, Pod
from aaml.cluster.selectors import UNSCHEDULABLE_TAINT, has_untolerated_taint, tolerated
from aaml.cluster.state import ClusterState
from aaml.episodes.ports import Beginning
from aaml.episodes.refusals import check_cluster, check_pod
from aaml.episodes.supply_plan import SupplyPlan
from aaml.policies.gpu.arrays import pod_shape
from aaml.scheduling.lifetimes import LifetimeModel
from aaml.scheduling.observation import mean_size
from aaml.workload.model import Workload

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
NO_OWNER = -1


class Fleet:
    """The nodes of an episode: a `ClusterState` without pods; many plans may share one."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.state = ClusterState(nodes)

    @cached_property
    def mean_size(self) -> tuple[float, float]:
        """CPU and memory of the mean node."""
        cpu, memory = mean_size(self.state.allocatable, self.state.capacity)
        return float(cpu), float(memory)

    def allowed(self, pod: Pod) -> BoolArray:
        """Return bool [N], the nodes whose taints the pod tolerates and that are not cordoned for it."""
        cordon = not tolerated(pod.tolerations, UNSCHEDULABLE_TAINT)
        return np.array(
            [
                not (node.unschedulable and cordon) and not has_untolerated_taint(pod.tolerations, node.taints)
                for node in self.state.nodes
            ],
            dtype=np.bool_,
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """N nodes, T pods of S shapes, R resources, C kinds of toleration; nothing in it changes while it is played.

    ===========  =============  ====================================================================================
    arrival_s    float64 [T]    when each pod comes, in order
    lifetime_s   float64 [T]    how long it runs once bound, inf: on and on
    owner        int64 [T]      number of its owner, -1 without one
    shape        int64 [T]      its row in the tables of shapes
    request      int64 [S, R]   what a shape asks of each resource, itself counted under "pods"
    gpu          int64 [S, 6]   a shape as the GPU kernels know it (`aaml.policies.gpu.arrays.SHAPE_COLUMNS`)
    tolerance    int64 [S]      row of `allowed`
    picky        bool [S]       whether it names GPU models
    allowed      bool [C, N]    nodes that take pods with such tolerations
    endures      bool [C]       which of them allow a node that is cordoned
    kind         int64 [T]      row in the life table of what is expected of it, 0 without a model
    limit_s      float64 [T]    age beyond which it is known not to run
    ===========  =============  ====================================================================================

    `until_s`: when the episode is cut off; inf: it ends when nothing can happen any more. `supply`: who buys and gives
    back nodes, None where they stay.
    """

    fleet: Fleet
    until_s: float
    arrival_s: FloatArray
    lifetime_s: FloatArray
    owner: IntArray
    shape: IntArray
    request: IntArray
    gpu: IntArray
    tolerance: IntArray
    picky: BoolArray
    allowed: BoolArray
    endures: BoolArray
    kind: IntArray
    limit_s: FloatArray
    supply: SupplyPlan | None = None

    @classmethod
    def of(
        cls, fleet: Fleet, workload: Workload, until_s: float = inf, lifetime_model: LifetimeModel | None = None
    ) -> "Plan":
        """Lay a workload out for a fleet; `lifetime_model` says how long pods are expected to run.

        Raises `UserError` for pods that compiled episodes do not know.
        """
        shapes: dict[Hashable, int] = {}
        owners: dict[str, int] = {"": NO_OWNER}
        examples: list[Pod] = []
        of_pod: list[int] = []
        of_owner: list[int] = []
        known: dict[tuple[int, int, int], int] = {}  # by what is told apart fast: objects live as long as the workload
        for pod in workload.pods:
            check_pod(pod)
            same = (id(pod.requests), id(pod.gpu), id(pod.tolerations))
            number = known.get(same, -1)
            if number < 0:
                key = (frozenset(pod.requests.items()), pod.gpu, pod.tolerations)
                number = known[same] = shapes.setdefault(key, len(examples))
                if number == len(examples):
                    examples.append(pod)
            of_pod.append(number)
            of_owner.append(owners.setdefault(pod.owner, len(owners) - 1))
        kinds: dict[Hashable, int] = {}
        tolerance = [kinds.setdefault(pod.tolerations, len(kinds)) for pod in examples]
        first = [tolerance.index(kind) for kind in range(len(kinds))]
        for pod in examples:
            fleet.state.request_vector(pod)  # may add a resource, so before any vector is kept
        return cls(
            fleet,
            float(until_s),
            np.array([pod.created_s for pod in workload.pods], dtype=np.float64),
            np.array([inf if pod.runs_s is None else pod.runs_s for pod in workload.pods], dtype=np.float64),
            np.array(of_owner, dtype=np.int64),
            np.array(of_pod, dtype=np.int64),
            np.array([fleet.state.request_vector(pod) for pod in examples], dtype=np.int64),
            np.array([pod_shape(pod, fleet.state.gpu_models) for pod in examples], dtype=np.int64),
            np.array(tolerance, dtype=np.int64),
            np.array([bool(pod.gpu.models) for pod in examples], dtype=np.bool_),
            np.array([fleet.allowed(examples[number]) for number in first], dtype=np.bool_),
            np.array([tolerated(examples[number].tolerations, UNSCHEDULABLE_TAINT) for number in first], np.bool_),
            np.array(
                [0 if lifetime_model is None else lifetime_model.row(pod) for pod in workload.pods], dtype=np.int64
            ),
            np.array(
                [inf if lifetime_model is None else lifetime_model.limit_s(pod) for pod in workload.pods],
                dtype=np.float64,
            ),
        )

    @classmethod
    def of_cluster(cls, cluster: Beginning, lifetime_model: LifetimeModel | None = None) -> "Plan":
        """Take over a simulated cluster at its beginning. Raises `UserError` for what compiled episodes do not know."""
        check_cluster(cluster)
        fleet, supply = Fleet(cluster.state.nodes), cluster.supply
        if supply is None:
            return cls.of(fleet, cluster.workload, cluster.until_s, lifetime_model)
        for name in supply.catalogue.resources:
            fleet.state.request_vector(Pod("none", requests={name: 0}))  # so that there is a column for it
        known = fleet.state.gpu_models
        known += [name for name in sorted({kind.gpu_model for kind in supply.catalogue.types}) if name not in known]
        plan = cls.of(fleet, cluster.workload, cluster.until_s, lifetime_model)
        return replace(plan, supply=SupplyPlan.of(supply, fleet.state, cluster.workload))
