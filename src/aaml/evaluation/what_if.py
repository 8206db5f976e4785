"""What if: the windows of a trace under other policies, beside what really happened, by the same metrics."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.errors import bad_value
from aaml.evaluation.entries import PolicyEntry
from aaml.evaluation.evaluate import evaluate
from aaml.evaluation.identity import identity
from aaml.evaluation.results import Results
from aaml.nodes.prices import PriceList
from aaml.nodes.settings import ClusterAutoscalerSettings
from aaml.sim.journal import Journal
from aaml.sim.recorded import TraceTask
from aaml.sim.recorded_bill import RecordedBillTask, comes_with_node, recorded_dollars
from aaml.workload.trace.windows import FEWEST, NodeChange, Placed, Window, read_windows

_HOUR_S = 3600.0
RECORDED, REFERENCE = "recorded", "kube-scheduler"
_PER_CORE_HOUR = "bill_per_core_hour"
_OF_TIME = ("waiting_", "mean_pending")  # what a bind's own time is in


def comparable(results: Results, metric: str, simulated: Iterable[str]) -> tuple[Results, list[str]]:
    """Return what can be compared by a metric, and in words what is left out of that.

    The simulator binds at once. What happened on a real cluster waited for the API server besides, which is nothing
    that a policy did: by waiting only policies of the simulator are compared. A window in which the metric has no
    value for somebody is left out: a core-hour has no price where no pod runs.
    """
    runs, names, notes = results.runs, set(simulated), list[str]()
    if metric in runs:  # what was recorded has not every metric
        runs = runs[runs["policy"].isin(names | set(runs["policy"][runs[metric].notna()]))]
    left = runs[~runs["policy"].isin(names)]
    if metric.startswith(_OF_TIME) and not left.empty:
        means = ", ".join(f"{name} {mean:.4g}" for name, mean in left.groupby("policy")[metric].mean().items())
        notes.append(f"{metric} on a real cluster, with what a bind takes, which the simulator leaves out: {means}")
        runs = runs[runs["policy"].isin(names)]
    if metric in runs and (unknown := set(runs["seed"][runs[metric].isna()])):
        count = runs["seed"].nunique()
        notes.append(
            f"{metric} is compared in {count - len(unknown)} of {count} windows: in the others it has no value"
        )
        runs = runs[~runs["seed"].isin(unknown)]
    return replace(results, runs=runs), notes


def what_if(
    task: TraceTask,
    policies: Iterable[PolicyEntry],
    *,
    workers: int | str = 1,
    progress: bool = True,
    prices: PriceList | None = None,
) -> Results:
    """Play every window of the task's episodes under the simulated kube-scheduler and under each policy.

    A row's seed is its window's number. The rows of the policy "recorded" tell what really happened; against them
    stands also what the simulation leaves out, so the reference of comparisons is the simulated kube-scheduler. Where
    an autoscaler provisions the nodes they hold what the recorded nodes cost by `prices`, and nothing else.
    """
    entered = []
    for each in policies:
        if each.name == RECORDED:
            raise bad_value("policy", RECORDED, "another label: this one is of what was recorded")
        if each.name == REFERENCE != each.whole:
            accepted = "another label: this one is of the simulated kube-scheduler, which is always there"
            raise bad_value("policy", REFERENCE, accepted)
        if each.name != REFERENCE:
            entered.append(each)
    windows = read_windows(task.folder)
    placed = any(life.bound_s is not None for life in windows.trace.lives.values())  # some formats do not say where
    same = identity(task)
    priced = prices if isinstance(task, RecordedBillTask) else None
    rows = [
        recorded_row(task.name, task.nodes, windows.window(number), priced) | same for number in task.episodes if placed
    ]
    played = evaluate([PolicyEntry(REFERENCE), *entered], task, workers=workers, progress=progress)
    return played.plus(rows, first=True)


def of_bills(task: RecordedBillTask, played: Sequence[Window], prices: PriceList) -> list[str]:
    """Return the notes that a reader of a trace's bill needs, a sentence each."""
    pods = {pod.uid: pod for window in played for pod in _every_pod(window)}
    of_nodes = sum(map(comes_with_node, pods.values()))
    usual = isinstance(task.bill.autoscaler, ClusterAutoscalerSettings)  # which provisions a type in one offering alone
    placed = [pod for pod in pods.values() if not comes_with_node(pod)]
    unfit = sum(not task.catalogue.fits(pod, launched=usual).any() for pod in placed)
    lacking = Counter(name for pod in placed if (name := task.catalogue.lacking(pod)))
    unpriced = sum((recorded_dollars(window, prices)[1] for window in played), Counter[str]())
    source = f"nodes are provisioned from {len(task.catalogue)} types, the recorded ones left aside"
    notes = [f"{source}; what ran when a window began is placed anew a minute before it"]
    if of_nodes:
        notes.append(
            f"{of_nodes} pods of DaemonSets and static pods are left out; each node has less by what DaemonSets request"
        )
    if unfit:
        unnamed = "".join(f"; {count} of them request {name}, which no type names" for name, count in lacking.items())
        notes.append(
            f"Caution: {unfit} of the windows' {len(pods)} pods fit no instance type, and wait for ever{unnamed}"
        )
    if unpriced:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(unpriced.items()))
        notes.append(f"what the recorded nodes cost is not known; without a price: {names}")
    if len(played) < FEWEST:
        notes.append(f"Caution: {len(played)} windows are too few for a verdict; it takes {FEWEST}")
    return notes


def paid(results: Results, simulated: Sequence[str], seconds: float) -> list[str]:
    """Return in a line a policy what it costs in all windows together, and a core-hour beside the reference's.

    The dollars alone would flatter who lets pods wait until a window is over, or loses them.
    """
    runs = results.runs
    summary = [f"What these windows ({seconds / _HOUR_S:.3g} h together) would have cost:"]
    if runs[runs["policy"] == RECORDED]["bill"].notna().any():
        summary.append(f"  {RECORDED}: {_recorded(runs, seconds)}")
    compared = results.where(policies=simulated)
    idle = compared.runs[compared.runs[_PER_CORE_HOUR].isna()]["seed"]  # windows in which nothing ran under somebody
    busy = replace(compared, runs=compared.runs[~compared.runs["seed"].isin(idle)])
    rankings = busy.compare(REFERENCE, _PER_CORE_HOUR) if len(busy.runs) else ()
    ratios = {line.policy: line.against.ratio for each in rankings for line in each.lines if line.against}
    for name in simulated:
        dollars = runs[runs["policy"] == name]["bill"].mean() * seconds / _HOUR_S
        ratio = ratios.get(name)
        beside = f", {ratio:.3f} of {REFERENCE}'s for a requested core-hour" if ratio else ""
        summary.append(f"  {name}: ${dollars:.4g}{beside}")
    lost = {name: int(runs[runs["policy"] == name]["lost"].sum()) for name in simulated}
    if any(lost.values()):
        counts = ", ".join(f"{count} under {name}" for name, count in lost.items())
        summary.append(f"Caution: pods without an owner do not come again when they are evicted: {counts}")
    return summary


def _recorded(runs: pd.DataFrame, seconds: float) -> str:
    """Return what the recorded nodes cost, in the windows where each of them has a price."""
    mine = runs[runs["policy"] == RECORDED]
    known = mine[mine["bill"].notna()]
    hours = seconds / _HOUR_S / len(mine)
    told = f"${known['bill'].sum() * hours:.4g}, by the prices of its nodes' types"
    if len(known) == len(mine):
        return told
    there = runs[(runs["policy"] == REFERENCE) & runs["seed"].isin(known["seed"])]
    return (
        f"{told}, in the {len(known)} of {len(mine)} windows in which each has one; "
        f"{REFERENCE} in these: ${there['bill'].sum() * hours:.4g}"
    )


def _every_pod(window: Window) -> Iterable[Pod]:
    return (*(each.pod for each in (*window.running, *window.others)), *window.arrivals)


def recorded_row(task: str, nodes: int, window: Window, prices: PriceList | None = None) -> dict[str, Any]:
    """Return the row of what the recorded schedulers made of a window, as `aaml.evaluation.evaluate` has them.

    With `prices` it holds what the recorded nodes cost instead.
    """
    metrics = recorded_metrics(window) if prices is None else recorded_dollars(window, prices)[0]
    return {
        "task": task, "nodes": nodes, "policy": RECORDED, "seed": window.index, **metrics,
        "decisions": len(window.chosen), "latency_p50_ms": float("nan"), "latency_p99_ms": float("nan"),
    }  # fmt: skip


def recorded_metrics(window: Window) -> Mapping[str, float]:
    """Return the metrics of a window as it was recorded."""
    state, journal = ClusterState(window.nodes), Journal()
    now_s = 0.0
    for at_s, _, happen in sorted(_moments(window, state, journal), key=lambda each: each[:2]):
        if at_s > window.length_s:
            break
        journal.hold(state, at_s - now_s)
        now_s = at_s
        happen(at_s)
    journal.hold(state, window.length_s - now_s)
    return journal.metrics(state, window.length_s)


_Moment = tuple[float, int, Callable[[float], object]]
_ENDS, _NODES, _PODS, _BINDS = range(4)  # of what happens at the same time, in the simulator's order


def _moments(window: Window, state: ClusterState, journal: Journal) -> Iterable[_Moment]:  # noqa: C901
    """Yield what happens, when, and in which order at the same time."""

    def leave(uid: str) -> Callable[[float], object]:
        def happen(_at_s: float) -> None:
            if state.remove_pod(uid) is not None:
                journal.counts["departed"] += 1

        return happen

    def place(placed: Placed, *, decided: bool) -> Callable[[float], object]:
        def happen(at_s: float) -> None:
            if placed.node_name in state.index:
                state.assume(placed.pod, placed.node_name, placed.gpus, placed.since_s)
            if decided:
                journal.bound(placed.pod.uid, at_s)

        return happen

    def arrive(pod: Pod) -> Callable[[float], object]:
        def happen(at_s: float) -> None:
            journal.counts["arrived"] += 1
            journal.waits(pod, at_s)

        return happen

    def give_up(uid: str) -> Callable[[float], object]:
        def happen(_at_s: float) -> None:
            journal.counts["deleted"] += 1
            journal.gone(uid)

        return happen

    def renew(change: NodeChange) -> Callable[[float], object]:
        def happen(_at_s: float) -> None:
            if change.node is not None:
                state.upsert_node(change.node)
            else:
                state.remove_node(change.name)

        return happen

    for change in window.changes:
        yield change.at_s, _NODES, renew(change)
    for placed in (*window.running, *window.others, *window.chosen.values()):
        decided = placed.pod.uid in window.chosen
        yield placed.at_s, _BINDS if decided else _NODES, place(placed, decided=decided)
        if placed.pod.lifetime_s is not None:
            yield placed.at_s + placed.pod.lifetime_s, _ENDS, leave(placed.pod.uid)
    for pod in window.arrivals:
        yield pod.created_s, _PODS, arrive(pod)
    for at_s, uid in window.removed:
        yield at_s, _NODES, give_up(uid)
