"""What the HTTP endpoints do, without HTTP: filter, prioritize, bind, and score posted nodes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Node, Pod
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.scheduling.observation import Context, Featurizer
from aaml.scheduling.ports import Ranker
from aaml.serve.messages import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    HostPriority,
    ScoreReply,
    ScoreRequest,
)

MAX_EXTENDER_SCORE = 10  # extender/v1 MaxExtenderPriority
MAX_SCORE = 100
BoolArray = npt.NDArray[np.bool_]


class ClusterView(Protocol):
    """A cluster that is watched, not driven: the extender's own cache."""

    @property
    def state(self) -> ClusterState:
        """The state as of the last `refresh`."""
        ...

    @property
    def synced(self) -> bool:
        """Whether every list was received once."""
        ...

    def refresh(self) -> None:
        """Take in what happened, without waiting."""
        ...

    def feasible(self, pod: Pod) -> BoolArray:
        """Return [N], which rows pass every filter."""
        ...

    def failures(self, pod: Pod) -> dict[str, tuple[str, bool]]:
        """Return for each infeasible node why, and whether evicting pods could help (True: it could)."""
        ...

    def bind_now(self, namespace: str, name: str, uid: str, node_name: str) -> str:
        """Bind and wait; returns "" or what went wrong."""
        ...


@dataclass(frozen=True)
class Readers:
    """How JSON becomes objects (`aaml.kube.convert`); each raises `UserError` for what is no such object."""

    pod: Callable[[bytes], Pod]
    node: Callable[[bytes], Node]


def spread(scores: npt.NDArray[np.float64], top: int, *, unique: bool = False) -> list[int]:
    """Scale scores [n] linearly to 0..top. `unique`: only the best reach `top`, so that rounding makes no new ties."""
    if not len(scores):
        return []
    finite = np.where(np.isfinite(scores), scores, np.nanmin(np.where(np.isfinite(scores), scores, np.nan), initial=0))
    low, high = finite.min(), finite.max()
    if high <= low:
        return [top] * len(finite)
    scaled = np.floor((finite - low) / (high - low) * top).astype(np.int64)
    if unique:
        scaled = np.where(finite < high, np.minimum(scaled, top - 1), top)
    return [int(value) for value in scaled]


class SchedulingService:
    """Answers for one policy. `view` None: no cluster is watched, only the score service works."""

    def __init__(self, policy: Ranker, readers: Readers, featurizer: Featurizer, view: ClusterView | None) -> None:
        self._policy, self._readers, self._featurizer, self.view = policy, readers, featurizer, view

    @property
    def ready(self) -> bool:
        """Whether every endpoint can answer."""
        return self.view is None or self.view.synced

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        """Keep the candidates that pass every filter; explain the others."""
        view, pod = self._watched(), self._readers.pod(bytes(args.pod))
        names = self._candidates(args)
        mask, index = view.feasible(pod), view.state.index
        passed = [name for name in names if name in index and mask[index[name]]]
        result = ExtenderFilterResult(nodenames=passed)
        if args.nodenames is None:
            kept = set(passed)
            items = [raw for raw in self._raw_nodes(args) if self._readers.node(bytes(raw)).name in kept]
            result = ExtenderFilterResult(nodes={"items": items})
        if len(passed) < len(names):
            reasons = view.failures(pod)
            for name in set(names) - set(passed):
                reason, resolvable = reasons.get(name, ("node is not known yet", True))
                (result.failed if resolvable else result.unresolvable)[name] = reason
        return result

    def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        """Score the candidates 0 to 10; nodes that are not known yet get 0."""
        view, pod = self._watched(), self._readers.pod(bytes(args.pod))
        names, index = self._candidates(args), view.state.index
        rows = np.array([index.get(name, -1) for name in names], dtype=np.int64)
        known = rows >= 0
        grades = np.zeros(len(names), dtype=np.int64)
        if known.any():
            mask = np.zeros(len(view.state), dtype=np.bool_)
            mask[rows[known]] = True
            scores = self._grades(view.state, pod, mask)
            grades[known] = spread(scores[rows[known]], MAX_EXTENDER_SCORE, unique=True)
        return list(map(HostPriority, names, grades.tolist()))

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        """Bind the pod for kube-scheduler."""
        view = self._watched()
        return ExtenderBindingResult(view.bind_now(args.pod_namespace, args.pod_name, args.pod_uid, args.node))

    def score(self, request: ScoreRequest) -> ScoreReply:
        """Score posted nodes 0 to 100, with the posted pods on them; every posted node is a candidate."""
        pod = self._readers.pod(bytes(request.pod))
        state = ClusterState(self._readers.node(bytes(raw)) for raw in request.nodes)
        if len(state) != len(request.nodes):
            raise UserError(f"nodes: {len(request.nodes)} were posted with {len(state)} names; names must differ")
        for position, raw in enumerate(request.pods):
            bound = self._readers.pod(bytes(raw))
            if bound.node_name not in state.index:
                raise UserError(f"pods[{position}].spec.nodeName: {bound.node_name!r} is none of the posted nodes")
            state.upsert_pod(bound)
        if not len(state):
            return ScoreReply({})
        grades = spread(self._grades(state, pod, np.ones(len(state), dtype=np.bool_)), MAX_SCORE)
        return ScoreReply(dict(zip(state.names, grades, strict=True)))

    def _grades(self, state: ClusterState, pod: Pod, mask: BoolArray) -> npt.NDArray[np.float64]:
        return self._policy.scores(Context(state, pod, mask, self._featurizer))

    def _watched(self) -> ClusterView:
        if self.view is None:
            raise UserError("cluster: none is watched; start the service with a kubeconfig to use it as an extender")
        self.view.refresh()
        return self.view

    def _candidates(self, args: ExtenderArgs) -> Sequence[str]:
        if args.nodenames is not None:
            return args.nodenames
        return [self._readers.node(bytes(raw)).name for raw in self._raw_nodes(args)]

    @staticmethod
    def _raw_nodes(args: ExtenderArgs) -> Sequence[msgspec.Raw]:
        if args.nodes is None or args.nodes.items is None:
            raise UserError("nodenames: missing; expected nodenames (nodeCacheCapable: true) or nodes.items")
        return args.nodes.items
