"""ClusterState: which pods run on which nodes, as arrays that are updated in place and never rebuilt for a decision."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI, choose_devices
from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import CPU, EPHEMERAL_STORAGE, MEMORY, PODS

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# kube-scheduler scores pods that request nothing as if they asked for this much (pkg/scheduler/util, pod_resources.go).
DEFAULT_CPU_MILLI = 100
DEFAULT_MEMORY_BYTES = 200 * 1024 * 1024
BASE_RESOURCES = (CPU, MEMORY, EPHEMERAL_STORAGE, PODS)
CPU_COLUMN, MEMORY_COLUMN, _, PODS_COLUMN = range(len(BASE_RESOURCES))
_FINISHED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod on a node, with the indices of the GPU devices that it holds in `gpus`.

    It is `assumed` when it was decided here and the cluster has not confirmed it yet. The `node_name` of an assumed
    placement's pod is still empty, so read the placement's own. `since_s` is when the pod began to run, on the clock of
    the cluster that the state belongs to (`Cluster.now_s`).
    """

    pod: Pod
    node_name: str
    gpus: tuple[int, ...] = ()
    assumed: bool = False
    since_s: float = 0.0

    @property
    def until_s(self) -> float:
        """When the pod is ended at the latest, as it declares itself (`activeDeadlineSeconds`); inf without that."""
        return inf if self.pod.deadline_s is None else self.since_s + self.pod.deadline_s


class ClusterState:
    """Nodes and placed pods as structure of arrays.

    Row i of every array is `names[i]`; rows keep their order, and when a node is removed the rows after it close up.
    Columns of `allocatable` and `requested` are `resources` (milli-cores, bytes, pieces); "pods" counts pods.

    ===================  ==========  =================================================================
    allocatable          int [N, R]  what each node offers
    requested            int [N, R]  what placed pods (assumed ones included) ask for
    nonzero              int [N, 2]  CPU and memory with kube-scheduler's defaults for pods without requests
    gpu_free             int [N, G]  thousandths left of each device, 0 beyond a node's last
    gpu_count            int [N]     devices per node
    gpu_model            int [N]     index into `gpu_models` (0 is "", no model)
    unschedulable        bool [N]    cordoned
    capacity             bool [N]    False for the control plane, which no metric counts
    node_generation      int [N]     `generation` at the row's last change: tells a cache which rows to look at again
    ===================  ==========  =================================================================

    Arrays are views that live until the next node is added or removed; do not keep them across changes.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.resources: list[str] = list(BASE_RESOURCES)
        self.resource_index: dict[str, int] = {name: column for column, name in enumerate(self.resources)}
        self.nodes: list[Node] = []
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.gpu_models: list[str] = [""]
        self.placements: dict[str, Placement] = {}  # by pod uid
        self.node_pods: list[dict[str, Pod]] = []  # per row, by pod uid
        self.generation = 0
        self.topology_generation = 0  # rises when a node comes, goes or changes (labels, taints, allocatable)
        self.namespace_labels: dict[str, Mapping[str, str]] = {}
        self.nominated: dict[str, tuple[Pod, str]] = {}  # by pod uid: (pod, node it made room on by preemption)
        self.indexes: dict[type, Any] = {}  # views that follow this state, by their class; a fork starts without
        self._homeless: dict[str, dict[str, Placement]] = {}  # bound to a node that is not known (yet)
        self._observers: list[Callable[[Pod, str, bool], None]] = []
        self._allocatable = np.zeros((0, len(self.resources)), dtype=np.int64)
        self._requested = self._allocatable.copy()
        self._nonzero = np.zeros((0, 2), dtype=np.int64)
        self._gpu_free = np.zeros((0, 0), dtype=np.int64)
        self._gpu_count = np.zeros(0, dtype=np.int64)
        self._gpu_model = np.zeros(0, dtype=np.int64)
        self._unschedulable = np.zeros(0, dtype=np.bool_)
        self._capacity = np.zeros(0, dtype=np.bool_)
        self._node_generation = np.zeros(0, dtype=np.int64)
        for node in nodes:
            self.upsert_node(node)

    # ---- views -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return N, the number of nodes."""
        return len(self.nodes)

    @property
    def allocatable(self) -> IntArray:
        """[N, R] amounts each node offers."""
        return self._allocatable[: len(self.nodes)]

    @property
    def requested(self) -> IntArray:
        """[N, R] amounts placed pods ask for."""
        return self._requested[: len(self.nodes)]

    @property
    def nonzero(self) -> IntArray:
        """[N, 2] CPU and memory asked for, where pods that request none count with the defaults."""
        return self._nonzero[: len(self.nodes)]

    @property
    def gpu_free(self) -> IntArray:
        """[N, G] thousandths left of each device."""
        return self._gpu_free[: len(self.nodes)]

    @property
    def gpu_count(self) -> IntArray:
        """[N] devices."""
        return self._gpu_count[: len(self.nodes)]

    @property
    def gpu_model(self) -> IntArray:
        """[N] index into `gpu_models`."""
        return self._gpu_model[: len(self.nodes)]

    @property
    def unschedulable(self) -> BoolArray:
        """[N] cordoned."""
        return self._unschedulable[: len(self.nodes)]

    @property
    def capacity(self) -> BoolArray:
        """[N] counts in metrics (not the control plane)."""
        return self._capacity[: len(self.nodes)]

    @property
    def node_generation(self) -> IntArray:
        """[N] `generation` of each row's last change."""
        return self._node_generation[: len(self.nodes)]

    def pods(self) -> Iterator[Placement]:
        """Yield every placement on a known node."""
        return iter(self.placements.values())

    # ---- pods' amounts as vectors ------------------------------------------------------------------------------------

    def request_vector(self, pod: Pod) -> IntArray:
        """Return the pod's requests as an int64 [R] vector, in which the pod itself counts 1 under "pods".

        A resource that was not known before gets a column.
        """
        for name in pod.requests:
            if name not in self.resource_index:
                self._add_resource(name)
        vector = np.zeros(len(self.resources), dtype=np.int64)
        for name, value in pod.requests.items():
            vector[self.resource_index[name]] = value
        vector[self.resource_index[PODS]] = 1
        return vector

    @staticmethod
    def nonzero_request(pod: Pod) -> tuple[int, int]:
        """Return (cpu_milli, memory_bytes) as scores count them: 100m and 200Mi where nothing is requested."""
        if pod.nonzero is not None:
            return pod.nonzero
        return pod.requests.get(CPU, 0) or DEFAULT_CPU_MILLI, pod.requests.get(MEMORY, 0) or DEFAULT_MEMORY_BYTES

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def upsert_node(self, node: Node) -> None:
        """Add a node, or replace what is known of it.

        Pods that were bound to the node before it was seen are placed on it.
        """
        for name in node.allocatable:
            if name not in self.resource_index:
                self._add_resource(name)
        if node.gpu_model not in self.gpu_models:
            self.gpu_models.append(node.gpu_model)
        row = self.index.get(node.name)
        is_new = row is None
        if row is None:
            row = len(self.nodes)
            self._make_room(row + 1, node.gpu_count)
            self.nodes.append(node)
            self.names.append(node.name)
            self.index[node.name] = row
            self.node_pods.append({})
        else:
            self._make_room(len(self.nodes), node.gpu_count)
        self.nodes[row] = node
        self._allocatable[row] = 0
        for name, value in node.allocatable.items():
            self._allocatable[row, self.resource_index[name]] = value
        self._unschedulable[row] = node.unschedulable
        self._capacity[row] = not node.is_control_plane
        self._gpu_model[row] = self.gpu_models.index(node.gpu_model)
        if self._gpu_count[row] != node.gpu_count or is_new:
            self._gpu_count[row] = node.gpu_count
            self._recount_devices(row)
        self._touch(row)
        self.topology_generation += 1
        for placement in self._homeless.pop(node.name, {}).values():
            self._place(placement)

    def remove_node(self, name: str) -> list[Placement]:
        """Forget a node and return the placements that it had.

        They are kept aside until their pods are deleted or the node returns. Raises KeyError when there is no such
        node.
        """
        row = self.index[name]
        displaced = [self.placements[uid] for uid in self.node_pods[row]]
        for placement in displaced:
            self._displace(placement.pod.uid)
            if not placement.assumed:
                self._homeless.setdefault(name, {})[placement.pod.uid] = placement
        last = len(self.nodes)
        for array in self._arrays():
            array[row : last - 1] = array[row + 1 : last]
            array[last - 1] = 0
        del self.nodes[row], self.names[row], self.node_pods[row]
        self.index = {other: i for i, other in enumerate(self.names)}
        self.generation += 1
        self.node_generation[:] = self.generation
        self.topology_generation += 1
        return displaced

    # ---- pods --------------------------------------------------------------------------------------------------------

    def upsert_pod(self, pod: Pod, gpus: tuple[int, ...] | None = None, since_s: float = 0.0) -> None:
        """Take the cluster's word on a pod: it is where `pod.node_name` says, and gone when it has finished.

        This confirms an assumed placement, or moves it when the cluster bound the pod elsewhere. A pod that the cluster
        shows as unbound stays assumed where it was. Without `gpus` the devices that are known are kept, and otherwise
        the best-fitting ones are chosen. `since_s` is when it began to run, for a pod that was not placed on this node
        before.
        """
        known = self.placements.get(pod.uid)
        if not pod.node_name:
            if known is not None and not known.assumed:
                self._displace(pod.uid)
            return
        if pod.phase in _FINISHED:
            self.remove_pod(pod.uid)
            return
        if known is not None and known.node_name == pod.node_name and known.pod.requests == pod.requests:
            self.placements[pod.uid] = replace(known, pod=pod, assumed=False)
            self.node_pods[self.index[pod.node_name]][pod.uid] = pod
            seen = (pod.labels, pod.terminating, pod.owner)
            if (known.pod.labels, known.pod.terminating, known.pod.owner) != seen:
                self._notify(known.pod, pod.node_name, placed=False)
                self._notify(pod, pod.node_name, placed=True)
            return
        if known is not None:
            self._displace(pod.uid)
        self._place(Placement(pod, pod.node_name, gpus if gpus is not None else (-1,), since_s=since_s))

    def remove_pod(self, uid: str) -> Placement | None:
        """Free what a pod holds and return its placement, or None when it held nothing."""
        for waiting in self._homeless.values():
            waiting.pop(uid, None)
        self.nominated.pop(uid, None)
        return self._displace(uid)

    def assume(self, pod: Pod, node_name: str, gpus: tuple[int, ...] | None = None, since_s: float = 0.0) -> Placement:
        """Place a pod before its binding is confirmed, as kube-scheduler's cache does, and return the placement.

        It runs from `since_s` on. Without `gpus` it takes the best-fitting devices. Raises KeyError for an unknown
        node, and ValueError when the pod is placed already.
        """
        if pod.uid in self.placements:
            raise ValueError(f"pod {pod.key} is placed on {self.placements[pod.uid].node_name} already")
        if node_name not in self.index:
            raise KeyError(node_name)
        return self._place(Placement(pod, node_name, gpus if gpus is not None else (-1,), True, since_s))

    def forget(self, uid: str) -> None:
        """Undo an assumed placement whose bind failed; does nothing to a confirmed one."""
        placement = self.placements.get(uid)
        if placement is not None and placement.assumed:
            self._displace(uid)

    def nominate(self, pod: Pod, node_name: str) -> None:
        """Reserve room on a node for a pod that preempted others there.

        The reservation ends when the pod is placed or removed.
        """
        self.nominated[pod.uid] = (pod, node_name)

    def withdraw(self, uid: str) -> None:
        """End a pod's nomination, if it has one."""
        self.nominated.pop(uid, None)

    def label_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Take a namespace's labels, which namespace selectors of affinity terms read."""
        if self.namespace_labels.get(name) != labels:
            self.namespace_labels[name] = labels
            self.topology_generation += 1

    def observe(self, observer: Callable[[Pod, str, bool], None]) -> Callable[[], None]:
        """Call `observer(pod, node_name, placed)` at each placement and removal; calling what it returns ends that.

        Indexes over the pods are kept current by it.
        """
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def fork(self) -> "ClusterState":
        """Return an independent copy, to look ahead on.

        Objects that never change are shared with it, and the observers stay behind.
        """
        twin = ClusterState()
        twin.resources, twin.resource_index = list(self.resources), dict(self.resource_index)
        twin.nodes, twin.names, twin.index = list(self.nodes), list(self.names), dict(self.index)
        twin.gpu_models = list(self.gpu_models)
        twin.placements = dict(self.placements)
        twin.node_pods = [dict(pods) for pods in self.node_pods]
        twin.namespace_labels, twin.nominated = dict(self.namespace_labels), dict(self.nominated)
        twin.generation, twin.topology_generation = self.generation, self.topology_generation
        twin._homeless = {name: dict(pods) for name, pods in self._homeless.items()}
        for name in _ARRAYS:
            setattr(twin, name, getattr(self, name)[: len(self.nodes)].copy())
        return twin

    def check(self) -> None:
        """Raise AssertionError unless every sum agrees with the placed pods and no amount is negative."""
        requested = np.zeros_like(self.requested)
        nonzero = np.zeros_like(self.nonzero)
        used = np.zeros_like(self.gpu_free)
        for placement in self.placements.values():
            row = self.index[placement.node_name]
            requested[row] += self.request_vector(placement.pod)
            nonzero[row] += self.nonzero_request(placement.pod)
            used[row, list(placement.gpus)] += placement.pod.gpu.milli
        devices = np.arange(self.gpu_free.shape[1]) < self.gpu_count[:, None]
        if not np.array_equal(requested, self.requested) or not np.array_equal(nonzero, self.nonzero):
            raise AssertionError("requested amounts differ from the sum over placed pods")
        if not np.array_equal(np.where(devices, DEVICE_MILLI - used, 0), self.gpu_free):
            raise AssertionError("free GPU thousandths differ from the sum over placed pods")
        if (
            (self.requested < 0).any()
            or (self.gpu_free < 0).any()
            or sum(map(len, self.node_pods)) != len(self.placements)
        ):
            raise AssertionError("a negative amount, or a pod counted twice")

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _arrays(self) -> list[npt.NDArray[Any]]:
        return [getattr(self, name) for name in _ARRAYS]

    def _touch(self, row: int) -> None:
        self.generation += 1
        self._node_generation[row] = self.generation

    def _notify(self, pod: Pod, node_name: str, *, placed: bool) -> None:
        for observer in self._observers:
            observer(pod, node_name, placed)

    def _place(self, placement: Placement) -> Placement:
        pod, row = placement.pod, self.index.get(placement.node_name)
        if row is None:
            self._homeless.setdefault(placement.node_name, {})[pod.uid] = placement
            return placement
        if placement.gpus == (-1,):
            chosen = choose_devices(self._gpu_free[row], pod.gpu) if pod.gpu.milli else ()
            placement = Placement(
                pod, placement.node_name, chosen, placement.assumed, placement.since_s
            )  # `replace` takes 5 times as long
        vector = self.request_vector(pod)  # may add a column, so before the row is read
        self._requested[row] += vector
        self._nonzero[row] += self.nonzero_request(pod)
        for device in placement.gpus:
            self._gpu_free[row, device] -= pod.gpu.milli
        self.placements[pod.uid] = placement
        self.node_pods[row][pod.uid] = pod
        self.nominated.pop(pod.uid, None)
        self._touch(row)
        self._notify(pod, placement.node_name, placed=True)
        return placement

    def _displace(self, uid: str) -> Placement | None:
        placement = self.placements.pop(uid, None)
        if placement is None:
            return None
        pod, row = placement.pod, self.index[placement.node_name]
        self._requested[row] -= self.request_vector(pod)
        self._nonzero[row] -= self.nonzero_request(pod)
        for device in placement.gpus:
            self._gpu_free[row, device] += pod.gpu.milli
        del self.node_pods[row][uid]
        self._touch(row)
        self._notify(pod, placement.node_name, placed=False)
        return placement

    def _recount_devices(self, row: int) -> None:
        free = np.where(np.arange(self._gpu_free.shape[1]) < self._gpu_count[row], DEVICE_MILLI, 0)
        for uid in self.node_pods[row]:
            placement = self.placements[uid]
            free[list(placement.gpus)] -= placement.pod.gpu.milli
        self._gpu_free[row] = free

    def _add_resource(self, name: str) -> None:
        self.resource_index[name] = len(self.resources)
        self.resources.append(name)
        column = np.zeros((len(self._allocatable), 1), dtype=np.int64)
        self._allocatable = np.hstack([self._allocatable, column])
        self._requested = np.hstack([self._requested, column])

    def _make_room(self, rows: int, devices: int) -> None:
        """Grow the arrays (rows by doubling, so that adding N nodes costs O(N))."""
        room, width = len(self._gpu_count), self._gpu_free.shape[1]
        if rows <= room and devices <= width:
            return
        more = max(2 * room, rows, 16) if rows > room else room
        for name in _ARRAYS:
            old = getattr(self, name)
            shape = (more, *old.shape[1:]) if name != "_gpu_free" else (more, max(width, devices))
            grown = np.zeros(shape, dtype=old.dtype)
            grown[tuple(slice(0, size) for size in old.shape)] = old
            setattr(self, name, grown)


_ARRAYS = (
    "_allocatable", "_requested", "_nonzero", "_gpu_free", "_gpu_count", "_gpu_model", "_unschedulable", "_capacity",
    "_node_generation",
)  # fmt: skip
