"""What would let a job start sooner? Each change is made to the cluster as it is, to be played on like it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from aaml.cluster.filters import feasible
from aaml.cluster.objects import HOSTNAME_LABEL, GpuRequest, Node, Pod
from aaml.cluster.state import ClusterState
from aaml.scheduling.pod_groups import count_placed
from aaml.sim.cluster import SimCluster
from aaml.sim.forecast import STAYS
from aaml.sim.timeline import AddNode

_MOVES = 200  # pods whose move is tried


@dataclass(frozen=True)
class Change:
    """A cluster in which something was changed, and the pods that stand for the job there; `needed` of them start."""

    what: str
    cluster: SimCluster
    uids: tuple[str, ...]
    needed: int


def are_together(pods: Sequence[Pod]) -> bool:
    """Whether pods are of one group, or of none and of one owner."""
    return len({(pod.group_key, pod.owner if pod.group is None else "") for pod in pods}) == 1


def changes(cluster: SimCluster, pods: Sequence[Pod]) -> Iterator[Change]:
    """Yield what might help these waiting pods, each on a fork of its own; only one job can be asked for otherwise."""
    if are_together(pods):
        yield from _otherwise(cluster, pods)
    yield from _one_node_more(cluster, pods)
    yield from _one_pod_moved(cluster, pods)


# ---- the job asked for otherwise -------------------------------------------------------------------------------------


def _otherwise(cluster: SimCluster, pods: Sequence[Pod]) -> Iterator[Change]:
    first, count = pods[0], len(pods)
    group, half = first.group, (count + 1) // 2
    if count > 1 and (group is None or group.least > 1):
        yield _asked(cluster, pods, _named(pods[:half], "half", half), f"half as large: {half} of {count} pods")
    elif count == 1 and first.gpu.count > 1:
        fewer = replace(first, gpu=GpuRequest(first.gpu.count // 2, first.gpu.milli, first.gpu.models))
        what = f"half as large: {fewer.gpu.count} of {first.gpu.count} GPUs"
        yield _asked(cluster, pods, [_again(fewer, "half")], what)
    elif count == 1 and first.requests:
        fewer = replace(
            first, requests={name: (amount + 1) // 2 for name, amount in first.requests.items()}, nonzero=None,
            nonzero_containers=None,
        )  # fmt: skip
        yield _asked(cluster, pods, [_again(fewer, "half")], "half as large: half its requests")
    if group is not None and group.least > 1 and count > 1:
        parts = [*_named(pods[:half], "one", half), *_named(pods[half:], "two", count - half)]
        yield _asked(cluster, pods, parts, f"as two gangs, of {half} and {count - half} pods")
    if group is not None and group.topology_key:
        anywhere = [_again(replace(pod, group=replace(group, topology_key="")), "anywhere") for pod in pods]
        yield _asked(cluster, pods, anywhere, f"anywhere, not in one {group.topology_key}")
    if first.node_selector:
        free = [_again(replace(pod, node_selector={}), "unselected") for pod in pods]
        yield _asked(cluster, pods, free, f"without its node selector ({', '.join(sorted(first.node_selector))})")


def _asked(cluster: SimCluster, pods: Sequence[Pod], instead: Sequence[Pod], what: str) -> Change:
    """Return the cluster with other pods in place of these, at the end of the queue."""
    twin = cluster.fork()
    for pod in pods:
        twin.delete(pod.uid)
    twin.submit(instead)
    return Change(what, twin, tuple(pod.uid for pod in instead), len(instead))


def _again(pod: Pod, mark: str) -> Pod:
    group = None if pod.group is None else replace(pod.group, name=f"{pod.group.name}-{mark}")
    return replace(pod, name=f"{pod.name}-{mark}", uid=f"{pod.uid}-{mark}", group=group)


def _named(pods: Sequence[Pod], mark: str, least: int) -> list[Pod]:
    """Return these pods as a group of their own of at least so many, where they are in one."""
    again = [_again(pod, mark) for pod in pods]
    return [pod if pod.group is None else replace(pod, group=replace(pod.group, min_count=least)) for pod in again]


# ---- the cluster otherwise -------------------------------------------------------------------------------------------


def _one_node_more(cluster: SimCluster, pods: Sequence[Pod]) -> Iterator[Change]:
    """Yield the cluster with a copy of the node that could hold a pod were it empty, in the domain of the most room."""
    like = _empty_node_for(cluster.state, pods)
    if like is None:
        return
    twin = cluster.fork()
    name = f"{like.name}-more"
    twin.happen(AddNode(twin.now_s(), replace(like, name=name, labels={**like.labels, HOSTNAME_LABEL: name})))
    yield Change(f"one node more, like {like.name}", twin, tuple(pod.uid for pod in pods), needed(cluster, pods))


def _empty_node_for(state: ClusterState, pods: Sequence[Pod]) -> Node | None:
    first = pods[0]
    key = first.group.topology_key if first.group is not None else ""
    room: dict[str, int] = {}
    for index in np.flatnonzero(feasible(state, first).mask).tolist():
        domain = state.nodes[index].labels.get(key, "")
        room[domain] = room.get(domain, 0) + 1
    empty = ClusterState(state.nodes)
    fits = np.flatnonzero(feasible(empty, first).mask).tolist()
    if key:
        fits = [index for index in fits if key in state.nodes[index].labels]
    if not fits:
        return None
    return state.nodes[max(fits, key=lambda index: (room.get(state.nodes[index].labels.get(key, ""), 0), -index))]


def _one_pod_moved(cluster: SimCluster, pods: Sequence[Pod]) -> Iterator[Change]:
    """Yield the cluster with the smallest pod moved that makes room for a pod of the job at once, where one does."""
    state, first = cluster.state, pods[0]
    if len(pods) > 1 or feasible(state, first).mask.any():
        return
    running = [each for each in state.placements.values() if not each.pod.owner.startswith(STAYS)]
    running.sort(key=lambda each: (each.pod.gpu.total_milli, sum(each.pod.requests.values())))
    for placement in running[:_MOVES]:
        moved, source = placement.pod, state.index[placement.node_name]
        elsewhere = feasible(state, moved).mask.copy()
        elsewhere[source] = False
        if not elsewhere.any() or not _frees(state, moved, source, first):
            continue
        twin = cluster.fork()
        target = int(np.flatnonzero(elsewhere)[0])
        if twin.migrate(moved.uid, target):
            where = f"{placement.node_name} to {state.names[target]}"
            yield Change(f"{moved.key} moved from {where}", twin, (first.uid,), 1)
            return


def _frees(state: ClusterState, moved: Pod, source: int, pod: Pod) -> bool:
    """Whether the pod fits on a node once another has left it."""
    after = state.fork()
    after.remove_pod(moved.uid)
    return bool(feasible(after, pod).mask[source])


def needed(cluster: SimCluster, pods: Sequence[Pod]) -> int:
    """Return how many of these waiting pods have to get nodes for their job to have started."""
    group = pods[0].group
    if group is None or group.min_count is None or not are_together(pods):
        return len(pods)
    return min(len(pods), max(1, group.least - count_placed(cluster.state, pods[0].group_key)))
