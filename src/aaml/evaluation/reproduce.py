"""How many of a recorded kube-scheduler's own decisions the simulated one would have made, and what became of the rest.

Each decision is evaluated from the recorded state just before it, so that no earlier difference blurs it. A decision is
reproduced when the recorded node has the highest score of all feasible nodes by our filters and kube-scheduler's
default scores; of several such nodes the real one takes any. A recording does not show two things, and where one of
them explains a decision it is said so: in which order decisions were made whose binds were on their way at the same
time, and where in the rotation of nodes a large cluster's scheduler began to look.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from aaml.cluster.filters import feasible
from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.policies.kube_scores import KubeSchedulerConfig, plugin_scores, total_scores
from aaml.policies.kube_scores.sampling import nodes_to_find, zone_order
from aaml.telemetry.tables import plain, table
from aaml.workload.trace.events import AnyEvent, PodBound
from aaml.workload.trace.trace import Follower, Trace

Kind = Literal["only", "best", "tied", "order", "sampled", "refused", "outscored"]
REPRODUCED: frozenset[Kind] = frozenset({"only", "best", "tied"})
EXPLAINED: frozenset[Kind] = frozenset({"order", "sampled"})
_WORDS: dict[Kind, str] = {
    "only": "the only feasible node",
    "best": "the highest score, alone",
    "tied": "one of several with the highest score",
    "order": "another order of binds that were on their way",
    "sampled": "the better nodes were not looked at (sampling)",
    "refused": "our filters refuse the recorded node",
    "outscored": "another node has a higher score",
}
_IN_FLIGHT = 12  # binds before and after a decision that may have been made in another order
_IN_FLIGHT_S = 2.0

_STOCK = KubeSchedulerConfig()


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision: what it was, and `why` in words where it is not what ours would have been.

    `feasible` and `best` count the nodes that pass the filters, and those of them with the highest score.
    """

    at_s: float
    pod: str
    node: str
    kind: Kind
    feasible: int
    best: int
    why: str = ""


@dataclass(frozen=True, repr=False)
class Reproduction:
    """The verdicts on the decisions of one scheduler."""

    scheduler: str
    verdicts: tuple[Verdict, ...]
    grouped: int = 0
    """Decisions on pods of groups, which are not judged: they are decided on together, in each of several domains."""

    @property
    def counts(self) -> Counter[Kind]:
        """How many decisions there are of each kind."""
        return Counter(verdict.kind for verdict in self.verdicts)

    def share(self, kinds: frozenset[Kind] = REPRODUCED) -> float:
        """Return the share of the decisions that are of some kinds, by default the reproduced ones; NaN of none."""
        if not self.verdicts:
            return float("nan")
        return sum(verdict.kind in kinds for verdict in self.verdicts) / len(self.verdicts)

    @property
    def by_chance(self) -> float:
        """What share a scheduler that takes any feasible node would have of the nodes that ours counts as right."""
        shares = [verdict.best / verdict.feasible for verdict in self.verdicts if verdict.feasible]
        return float(np.mean(shares)) if shares else float("nan")

    def differences(self) -> list[Verdict]:
        """Return the decisions that are neither reproduced nor explained."""
        return [verdict for verdict in self.verdicts if verdict.kind not in REPRODUCED | EXPLAINED]

    def __repr__(self) -> str:
        groups = f"{self.grouped} decisions on pods of groups are not judged"
        if not self.verdicts:
            more = f"; {groups}" if self.grouped else ""
            return f"{self.scheduler} decided on no pod while the cluster was recorded: nothing to reproduce{more}"
        total, counts = len(self.verdicts), self.counts
        rows = [(f"  {_WORDS[kind]}", counts[kind], f"{counts[kind] / total:.1%}") for kind in _WORDS if counts[kind]]
        head = (
            f"{self.scheduler}: {total} decisions; the simulated kube-scheduler reproduces {self.share():.1%} "
            f"(chance: {self.by_chance:.1%}), {self.share(EXPLAINED):.1%} more are explained, "
            f"{len(self.differences()) / total:.1%} differ"
        )
        head += f"; {groups}" if self.grouped else ""
        lines = [head, plain(table(("what the recorded node was", "decisions", ""), rows, right=("decisions", "")))]
        lines += [
            f"  {verdict.at_s:.0f} s {verdict.pod} on {verdict.node}: {verdict.why}"
            for verdict in self.differences()[:5]
        ]
        return "\n".join(lines)


def reproduce(
    trace: Trace, scheduler: str = "default-scheduler", *, on_event: Callable[[], object] = lambda: None
) -> Reproduction:
    """Evaluate every recorded decision of a scheduler; `on_event` is called at every event."""
    follower, verdicts = Follower(), []
    before: deque[tuple[float, str]] = deque(maxlen=_IN_FLIGHT)
    grouped = 0
    for number, event in enumerate(trace.events):
        on_event()
        pod = follower.decided(event)
        if pod is not None and isinstance(event, PodBound) and pod.scheduler_name == scheduler:
            if trace.lives[event.uid].pod.group is not None:
                grouped += 1
            else:
                coming = _coming(trace.events, number, follower)
                verdicts.append(_verdict_on(follower.state, pod, event, list(before), coming))
            before.append((event.at, event.uid))
        follower.apply(event)
    return Reproduction(scheduler, tuple(verdicts), grouped)


def _verdict_on(
    state: ClusterState,
    pod: Pod,
    event: PodBound,
    before: Sequence[tuple[float, str]],
    after: Sequence[tuple[Pod, str]],
) -> Verdict:
    row = state.index[event.node_name]
    kind, nodes, best, why = _look(state, pod, row)
    if kind not in REPRODUCED:
        recent = [uid for at_s, uid in reversed(before) if event.at - at_s <= _IN_FLIGHT_S]
        if _fits_another_order(state, pod, row, recent, after):
            kind = "order"
        elif kind == "outscored" and _fits_a_sample(state, pod, row):
            kind = "sampled"
    return Verdict(event.at, pod.key, event.node_name, kind, nodes, best, "" if kind in REPRODUCED else why)


def _look(state: ClusterState, pod: Pod, row: int) -> tuple[Kind, int, int, str]:
    """Return what a node is for a pod: the kind, feasible nodes, nodes with the highest score, and why it is not."""
    found = feasible(state, pod)
    nodes = int(found.mask.sum())
    if not found.mask[row]:
        return "refused", nodes, 0, ", ".join(found.diagnosis.by_node[row]) or found.diagnosis.rejected_before
    if nodes == 1:
        return "only", 1, 1, ""
    scores = total_scores(state, pod, found.mask, _STOCK)
    highest = int(scores.max())
    best = np.flatnonzero(scores == highest)
    if scores[row] == highest:
        return "best" if best.size == 1 else "tied", nodes, int(best.size), ""
    other = int(best[0])
    parts = {
        name: _STOCK.weights[name] * int(part[other] - part[row])
        for name, part in plugin_scores(state, pod, found.mask, _STOCK).items()
    }
    named = ", ".join(f"{name} {gain:+d}" for name, gain in sorted(parts.items(), key=lambda each: -each[1]) if gain)
    return "outscored", nodes, int(best.size), f"score {scores[row]}, {state.names[other]} has {highest} ({named})"


def _coming(events: Sequence[AnyEvent], number: int, follower: Follower) -> list[tuple[Pod, str]]:
    """Return the binds that follow soon: pods that wait already, with their nodes."""
    until_s = events[number].at + _IN_FLIGHT_S
    soon: Iterator[AnyEvent] = islice(events, number + 1, number + 1 + 8 * _IN_FLIGHT)
    found = [
        (follower.pods[event.uid], event.node_name)
        for event in soon
        if isinstance(event, PodBound) and event.at <= until_s and event.uid in follower.pods
        and event.uid not in follower.state.placements and event.node_name in follower.state.index
    ]  # fmt: skip
    return found[:_IN_FLIGHT]


def _fits_another_order(
    state: ClusterState, pod: Pod, row: int, recent: Sequence[str], after: Sequence[tuple[Pod, str]]
) -> bool:
    """Whether the decision is reproduced without some of the last binds, or with some of the next."""
    taken = []
    fits = False
    for uid in recent:
        placement = state.remove_pod(uid)
        if placement is not None:
            taken.append(placement)
            fits = _look(state, pod, row)[0] in REPRODUCED
            if fits:
                break
    for placement in reversed(taken):
        state.upsert_pod(placement.pod, placement.gpus)
    if fits:
        return True
    assumed = []
    for other, node_name in after:
        state.assume(other, node_name)
        assumed.append(other.uid)
        fits = _look(state, pod, row)[0] in REPRODUCED
        if fits:
            break
    for uid in assumed:
        state.forget(uid)
    return fits


def _fits_a_sample(state: ClusterState, pod: Pod, row: int) -> bool:
    """Whether the search for feasible nodes can have begun where it found no better node before it stopped."""
    mask = feasible(state, pod).mask
    order = zone_order(state.nodes)
    found = order[mask[order]]
    wanted = nodes_to_find(len(state))
    if wanted >= found.size:
        return False
    scores = total_scores(state, pod, mask, _STOCK)
    at = int(np.flatnonzero(found == row)[0])
    better = np.flatnonzero(scores[found] > scores[row])
    ahead = int(((better - at) % found.size).min())
    behind = int(((at - better) % found.size).min())
    return ahead + behind - 1 >= wanted
