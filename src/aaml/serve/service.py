"""What the HTTP endpoints do, apart from HTTP: filter, prioritize and bind for kube-scheduler, and score nodes."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.errors import UserError, failure_of
from aaml.kube.objects.convert import node_from_json, pod_from_json
from aaml.kube.state_from_objects import state_from_objects
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Policy, Ranker
from aaml.serve.messages import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    HostPriority,
    ScoreReply,
    ScoreRequest,
)

if TYPE_CHECKING:
    from aaml.kube.view import KubeView

MAX_EXTENDER_SCORE = 10  # extender/v1 MaxExtenderPriority
MAX_SCORE = 100
_PACKAGE = Path(__file__).parents[1]
BoolArray = npt.NDArray[np.bool_]


class PolicyFailedError(Exception):
    """The policy raised, or gave no score for each node; the message is one line."""


def spread(scores: npt.NDArray[np.float64], top: int, *, unique: bool = False) -> list[int]:
    """Return scores [n] stretched linearly to whole numbers, 0 for the worst and `top` for the best.

    A score that is not finite counts as the worst, and when all scores are equal each becomes `top`. With `unique` only
    the best scores become `top`, where rounding would otherwise raise the next best to it.
    """
    if not len(scores):
        return []
    finite = np.where(np.isfinite(scores), scores, np.nanmin(np.where(np.isfinite(scores), scores, np.nan), initial=0))
    low, high = finite.min(), finite.max()
    if high <= low:
        return [top] * len(finite)
    if high / 2 - low / 2 > np.finfo(np.float64).max / 2:  # their difference is no float64
        finite, low, high = finite / 2, low / 2, high / 2
    scaled = np.floor((finite - low) / (high - low) * top).astype(np.int64)
    if unique:
        scaled = np.where(finite < high, np.minimum(scaled, top - 1), top)
    return [int(value) for value in scaled]


def grader(policy: Policy) -> Callable[[Context], npt.NDArray[np.float64]]:
    """Return what scores the nodes [N], higher is better.

    These are the scores of the policy itself. Of one that only chooses they are 1 for its choice and 0 for the others.
    """
    if isinstance(policy, Ranker):
        return policy.scores

    def by_choice(context: Context) -> npt.NDArray[np.float64]:
        grades = np.zeros(len(context.mask))
        node_index = policy.act(context).node_index
        if node_index is not None:
            if not 0 <= node_index < len(grades):
                raise ValueError(f"chose node {node_index} of {len(grades)}")
            grades[node_index] = 1.0
        return grades

    return by_choice


def _one_each(scores: npt.ArrayLike, nodes: int) -> npt.NDArray[np.float64]:
    """Return scores [N] as numbers. Raises `ValueError` where there is not one for each node."""
    found = np.asarray(scores, dtype=np.float64)
    if found.shape != (nodes,):
        raise ValueError(f"scores of shape {list(found.shape)} for {nodes} nodes")
    return found


class SchedulingService:
    """Answers requests by one policy.

    `view` is the cluster that is watched. Without one only `score` works, and the others raise `UserError`. Where the
    policy fails they raise `PolicyFailedError`.
    """

    def __init__(self, policy: Policy, view: "KubeView | None") -> None:
        self._name, self._scores, self._spec = policy.name, grader(policy), spec_of(policy)
        self.view = view

    def refresh(self) -> None:
        """Take in what happened on the watched cluster, if one is watched."""
        if self.view is not None:
            self.view.refresh()

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        """Return the candidates that pass every filter, and for the others why they do not."""
        view, pod = self._watched(), pod_from_json(bytes(args.pod))
        names = self._candidates(args)
        mask, index = view.feasible(pod), view.state.index
        passed = [name for name in names if name in index and mask[index[name]]]
        result = ExtenderFilterResult(nodenames=passed)
        if args.nodenames is None:
            kept = set(passed)
            items = [raw for raw in self._raw_nodes(args) if node_from_json(bytes(raw)).name in kept]
            result = ExtenderFilterResult(nodes={"items": items})
        if len(passed) < len(names):
            reasons = view.failures(pod)
            for name in set(names) - set(passed):
                reason, resolvable = reasons.get(name, ("node is not known yet", True))
                (result.failed if resolvable else result.unresolvable)[name] = reason
        return result

    def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        """Return a score of 0 to 10 for each candidate; a node that is not known yet gets 0."""
        view, pod = self._watched(), pod_from_json(bytes(args.pod))
        names, index = self._candidates(args), view.state.index
        node_indices = np.array([index.get(name, -1) for name in names], dtype=np.int64)
        known = node_indices >= 0
        grades = np.zeros(len(names), dtype=np.int64)
        if known.any():
            mask = np.zeros(len(view.state), dtype=np.bool_)
            mask[node_indices[known]] = True
            scores = self._grades(view.state, pod, mask)
            grades[known] = spread(scores[node_indices[known]], MAX_EXTENDER_SCORE, unique=True)
        return list(map(HostPriority, names, grades.tolist()))

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        """Bind the pod on behalf of kube-scheduler, and say what went wrong if it could not be bound.

        The answer of the API server is waited for. Any thread may call it, the other methods belong to one.
        """
        view = self._view()
        return ExtenderBindingResult(view.bind_now(args.pod_namespace, args.pod_name, args.pod_uid, args.node))

    def score(self, request: ScoreRequest) -> ScoreReply:
        """Return a score of 0 to 100 for each posted node, all of them candidates, with the posted pods on them."""
        pod = pod_from_json(bytes(request.pod))
        state = state_from_objects([bytes(raw) for raw in request.nodes], [bytes(raw) for raw in request.pods])
        if not len(state):
            return ScoreReply({})
        grades = spread(self._grades(state, pod, np.ones(len(state), dtype=np.bool_)), MAX_SCORE)
        return ScoreReply(dict(zip(state.names, grades, strict=True)))

    def _grades(self, state: ClusterState, pod: Pod, mask: BoolArray) -> npt.NDArray[np.float64]:
        try:
            return _one_each(self._scores(Context(state, pod, mask, self._spec)), len(mask))
        except UserError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            files = [each.filename for each in frames if not Path(each.filename).is_relative_to(_PACKAGE)]
            place = f"{Path(files[-1]).name}, " if files else ""
            said = failure_of(error, *map(Path, files[-1:])).removeprefix(own := f"policy {self._name}: ")
            raise PolicyFailedError(f"{own}{place}{said}") from error

    def _view(self) -> "KubeView":
        if self.view is None:
            raise UserError("cluster: none is watched; start the service with a kubeconfig to use it as an extender")
        return self.view

    def _watched(self) -> "KubeView":
        view = self._view()
        view.refresh()
        return view

    def _candidates(self, args: ExtenderArgs) -> Sequence[str]:
        if args.nodenames is not None:
            return args.nodenames
        return [node_from_json(bytes(raw)).name for raw in self._raw_nodes(args)]

    @staticmethod
    def _raw_nodes(args: ExtenderArgs) -> Sequence[msgspec.Raw]:
        if args.nodes is None or args.nodes.items is None:
            raise UserError("nodenames: missing; expected nodenames (nodeCacheCapable: true) or nodes.items")
        return args.nodes.items
