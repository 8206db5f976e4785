"""ClusterState: which pods run on which nodes, as arrays that are updated in place and never rebuilt for a decision."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI, choose_devices, devices_named
from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import CPU, EPHEMERAL_STORAGE, MEMORY, PODS
from aaml.cluster.storage import Storage

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
    the cluster that the state belongs to (`Cluster.now_s`). `noted` are the devices that the cluster says it has, or
    that were chosen with the decision; None where nobody says, so that `gpus` are a guess.
    """

    pod: Pod
    node_name: str
    gpus: tuple[int, ...] = ()
    assumed: bool = False
    since_s: float = 0.0
    noted: tuple[int, ...] | None = None

    @property
    def until_s(self) -> float:
        """When the pod is ended at the latest, as it declares itself (`activeDeadlineSeconds`); inf without that."""
        return inf if self.pod.deadline_s is None else self.since_s + self.pod.deadline_s


class ClusterState:
    """Nodes and placed pods as structure of arrays.

    Index i of every array is the node `names[i]`. Nodes keep their order; when one is removed those after it close up.
    Columns of `allocatable` and `requested` are `resources` (milli-cores, bytes, pieces); "pods" counts pods.

    ===================  ==========  =================================================================
    allocatable          int [N, R]  what each node offers
    requested            int [N, R]  what placed pods (assumed ones included) ask for
    nonzero              int [N, 2]  CPU and memory with kube-scheduler's defaults for pods without requests
    gpu_free             int [N, G]  thousandths left of each device, 0 beyond a node's last and where more is claimed
    gpu_count            int [N]     devices per node
    gpu_model            int [N]     index into `gpu_models` (0 is "", no model)
    unschedulable        bool [N]    cordoned
    capacity             bool [N]    False for the control plane, which no metric counts
    node_generation      int [N]     `generation` at the node's last change: tells a cache which nodes to look at again
    ===================  ==========  =================================================================

    Arrays are views that live until the next node is added or removed; do not keep them across changes.

    The order in which the cluster's words come does not matter, except where nobody says which devices a pod holds:
    what was chosen for it then stays, unless a pod whose devices are known needs the room.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.resources: list[str] = list(BASE_RESOURCES)
        self.resource_index: dict[str, int] = {name: column for column, name in enumerate(self.resources)}
        self.nodes: list[Node] = []
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.gpu_models: list[str] = [""]
        self.placements: dict[str, Placement] = {}  # by pod uid
        self.node_pods: list[dict[str, Pod]] = []  # by node index, then by pod uid
        self.generation = 0
        self.topology_generation = 0  # rises when a node comes, goes or changes (labels, taints, allocatable)
        self.namespace_labels: dict[str, Mapping[str, str]] = {}
        self.nominated: dict[str, tuple[Pod, str]] = {}  # by pod uid: (pod, node it made room on by preemption)
        self.storage = Storage()  # volumes that claims of pods may still get
        self.indexes: dict[type, Any] = {}  # views that follow this state, by their class; a fork starts without
        self._homeless: dict[str, dict[str, Placement]] = {}  # bound to a node that is not known (yet), by its name
        self._awaits: dict[str, str] = {}  # the name of that node by pod uid
        self._observers: list[Callable[[Pod, str, bool], None]] = []
        self._allocatable = np.zeros((0, len(self.resources)), dtype=np.int64)
        self._requested = self._allocatable.copy()
        self._nonzero = np.zeros((0, 2), dtype=np.int64)
        self._gpu_free = np.zeros((0, 0), dtype=np.int64)
        self._gpu_used = np.zeros((0, 0), dtype=np.int64)  # what pods claim, which may be more than there is
        self._without: set[str] = set()  # uids of placed pods for which there was no device
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
        """[N] `generation` of each node's last change."""
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
        node_index = self.index.get(node.name)
        is_new = node_index is None
        if node_index is None:
            node_index = len(self.nodes)
            self._grow(node_index + 1, node.gpu_count)
            self.nodes.append(node)
            self.names.append(node.name)
            self.index[node.name] = node_index
            self.node_pods.append({})
        else:
            self._grow(len(self.nodes), node.gpu_count)
        self.nodes[node_index] = node
        self._allocatable[node_index] = 0
        for name, value in node.allocatable.items():
            self._allocatable[node_index, self.resource_index[name]] = value
        self._unschedulable[node_index] = node.unschedulable
        self._capacity[node_index] = not node.is_control_plane
        self._gpu_model[node_index] = self.gpu_models.index(node.gpu_model)
        if self._gpu_count[node_index] != node.gpu_count or is_new:
            self._gpu_count[node_index] = node.gpu_count
            self._settle_devices(node_index)
        self._touch(node_index)
        self.topology_generation += 1
        for placement in self._homeless.pop(node.name, {}).values():
            del self._awaits[placement.pod.uid]
            self._place(placement)

    def remove_node(self, name: str) -> list[Placement]:
        """Forget a node and return the placements that it had.

        They are kept aside until their pods are deleted or the node returns. Raises KeyError when there is no such
        node.
        """
        node_index = self.index[name]
        displaced = [self.placements[uid] for uid in self.node_pods[node_index]]
        for placement in displaced:
            self._take_out(placement.pod.uid)
            if not placement.assumed:
                self._keep_aside(placement)
        last = len(self.nodes)
        for array in self._arrays():
            array[node_index : last - 1] = array[node_index + 1 : last]
            array[last - 1] = 0
        del self.nodes[node_index], self.names[node_index], self.node_pods[node_index]
        self.index = {other: i for i, other in enumerate(self.names)}
        self.generation += 1
        self.node_generation[:] = self.generation
        self.topology_generation += 1
        return displaced

    # ---- pods --------------------------------------------------------------------------------------------------------

    def upsert_pod(self, pod: Pod, gpus: tuple[int, ...] | None = None, since_s: float = 0.0) -> None:
        """Take the cluster's word on a pod: it is where `pod.node_name` says, and gone when it has finished.

        This confirms an assumed placement, or moves it when the cluster bound the pod elsewhere. A pod that the cluster
        shows as unbound stays assumed where it was. `gpus` are the devices that the cluster says the pod has. Where it
        says nothing, or names devices that the node or the pod cannot have, those that are known are kept, and
        otherwise the best-fitting ones are chosen. `since_s` is when it began to run, for a pod that was not placed on
        this node before.
        """
        if not pod.node_name:
            known = self.placements.get(pod.uid)
            if known is None or not known.assumed:
                self._displace(pod.uid)
            return
        if pod.phase in _FINISHED:
            self.remove_pod(pod.uid)
            return
        self.nominated.pop(pod.uid, None)
        known = self.placements.get(pod.uid) or self._homeless.get(pod.node_name, {}).get(pod.uid)
        if known is None or known.node_name != pod.node_name:
            self._displace(pod.uid)
            self._place(Placement(pod, pod.node_name, since_s=since_s, noted=gpus))
            return
        now = replace(known, pod=pod, assumed=False, noted=gpus)
        node_index = self.index.get(pod.node_name)
        if node_index is not None and gpus in {None, known.gpus, known.noted} and _counts_as(pod, known.pod):
            self.placements[pod.uid] = now
            self.node_pods[node_index][pod.uid] = pod
            return
        self._take_out(pod.uid)
        self._place(now)
        if node_index is not None:
            self._reassign_devices(node_index)

    def remove_pod(self, uid: str) -> Placement | None:
        """Free what a pod holds and return its placement, or None when it held nothing."""
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
        return self._place(Placement(pod, node_name, (), True, since_s, gpus))

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
        twin.storage = self.storage.fork()
        twin.generation, twin.topology_generation = self.generation, self.topology_generation
        twin._homeless = {name: dict(pods) for name, pods in self._homeless.items()}
        twin._awaits, twin._without = dict(self._awaits), set(self._without)
        for name in _ARRAYS:
            setattr(twin, name, getattr(self, name)[: len(self.nodes)].copy())
        return twin

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _arrays(self) -> list[npt.NDArray[Any]]:
        return [getattr(self, name) for name in _ARRAYS]

    def _touch(self, node_index: int) -> None:
        self.generation += 1
        self._node_generation[node_index] = self.generation

    def _notify(self, pod: Pod, node_name: str, *, placed: bool) -> None:
        for observer in self._observers:
            observer(pod, node_name, placed)

    def _place(self, placement: Placement) -> Placement:
        pod, node_index = placement.pod, self.index.get(placement.node_name)
        if node_index is None:
            self._keep_aside(placement)
            return placement
        if pod.gpu.milli:
            gpus = self._devices_for(node_index, placement)
            noted = gpus or None if placement.assumed else placement.noted
            placement = Placement(
                pod, placement.node_name, gpus, placement.assumed, placement.since_s, noted
            )  # `replace` takes 5 times as long
        elif placement.gpus:
            placement = replace(placement, gpus=())
        vector = self.request_vector(pod)  # may add a column, so before the node's amounts are read
        self._requested[node_index] += vector
        self._nonzero[node_index] += self.nonzero_request(pod)
        self.placements[pod.uid] = placement
        self.node_pods[node_index][pod.uid] = pod
        self.nominated.pop(pod.uid, None)
        self._touch(node_index)
        if pod.gpu.milli:
            self._hold(node_index, placement)
            if any(self._gpu_used[node_index, device] > DEVICE_MILLI for device in placement.gpus):
                self._settle_devices(node_index)  # a guess may have to give way
                placement = self.placements[pod.uid]
        self._notify(pod, placement.node_name, placed=True)
        return placement

    def _displace(self, uid: str) -> Placement | None:
        """Take a pod out, wherever it is, and return its placement on a known node."""
        if uid in self._awaits:
            del self._homeless[self._awaits.pop(uid)][uid]
        placement = self._take_out(uid)
        if placement is not None:
            self._reassign_devices(self.index[placement.node_name])
        return placement

    def _keep_aside(self, placement: Placement) -> None:
        self._homeless.setdefault(placement.node_name, {})[placement.pod.uid] = placement
        self._awaits[placement.pod.uid] = placement.node_name

    def _take_out(self, uid: str) -> Placement | None:
        placement = self.placements.pop(uid, None)
        if placement is None:
            return None
        pod, node_index = placement.pod, self.index[placement.node_name]
        self._requested[node_index] -= self.request_vector(pod)
        self._nonzero[node_index] -= self.nonzero_request(pod)
        for device in placement.gpus:
            self._gpu_used[node_index, device] -= pod.gpu.milli
            self._gpu_free[node_index, device] = max(DEVICE_MILLI - self._gpu_used[node_index, device], 0)
        self._without.discard(uid)
        del self.node_pods[node_index][uid]
        self._touch(node_index)
        self._notify(pod, placement.node_name, placed=False)
        return placement

    # ---- devices -----------------------------------------------------------------------------------------------------

    def _devices_for(self, node_index: int, placement: Placement) -> tuple[int, ...]:
        """Return the devices that are noted, or else those that the pod has had, or else the best-fitting ones."""
        gpu, free, count = placement.pod.gpu, self._gpu_free[node_index], int(self._gpu_count[node_index])
        if devices_named(placement.noted, gpu, count):
            return placement.noted or ()
        if devices_named(placement.gpus, gpu, count) and (free[list(placement.gpus)] >= gpu.milli).all():
            return placement.gpus
        return choose_devices(free, gpu)

    def _hold(self, node_index: int, placement: Placement) -> None:
        for device in placement.gpus:
            self._gpu_used[node_index, device] += placement.pod.gpu.milli
            self._gpu_free[node_index, device] = max(DEVICE_MILLI - self._gpu_used[node_index, device], 0)
        if not placement.gpus:
            self._without.add(placement.pod.uid)

    def _reassign_devices(self, node_index: int) -> None:
        """Give devices to pods that had none, where some were set free."""
        if self._without and not self._without.isdisjoint(self.node_pods[node_index]):
            self._settle_devices(node_index)

    def _settle_devices(self, node_index: int) -> None:
        """Share out a node's devices: to the pods of which they are noted, to those that have some, to the others."""
        count = int(self._gpu_count[node_index])
        self._gpu_used[node_index] = 0
        self._gpu_free[node_index] = np.where(np.arange(self._gpu_free.shape[1]) < count, DEVICE_MILLI, 0)
        sharing = [placement for uid in self.node_pods[node_index] if (placement := self.placements[uid]).pod.gpu.milli]
        sharing.sort(key=lambda each: (not devices_named(each.noted, each.pod.gpu, count), not each.gpus))
        for placement in sharing:
            settled = replace(placement, gpus=self._devices_for(node_index, placement))
            self.placements[placement.pod.uid] = settled
            self._without.discard(placement.pod.uid)
            self._hold(node_index, settled)

    def _add_resource(self, name: str) -> None:
        self.resource_index[name] = len(self.resources)
        self.resources.append(name)
        column = np.zeros((len(self._allocatable), 1), dtype=np.int64)
        self._allocatable = np.hstack([self._allocatable, column])
        self._requested = np.hstack([self._requested, column])

    def _grow(self, nodes: int, devices: int) -> None:
        """Grow the arrays (by doubling, so that adding N nodes costs O(N))."""
        size, width = len(self._gpu_count), self._gpu_free.shape[1]
        if nodes <= size and devices <= width:
            return
        more = max(2 * size, nodes, 16) if nodes > size else size
        for name in _ARRAYS:
            old = getattr(self, name)
            shape = (more, max(width, devices)) if name in _BY_DEVICE else (more, *old.shape[1:])
            grown = np.zeros(shape, dtype=old.dtype)
            grown[tuple(slice(0, size) for size in old.shape)] = old
            setattr(self, name, grown)


def _counts_as(pod: Pod, known: Pod) -> bool:
    """Whether nothing of a pod has changed that an array or an index over the pods counts."""
    if pod is known:
        return True
    return pod == replace(
        known, phase=pod.phase, started_s=pod.started_s, nominated_node=pod.nominated_node, preempted=pod.preempted,
        resource_version=pod.resource_version, node_name=pod.node_name,
    )  # fmt: skip


_BY_DEVICE = ("_gpu_free", "_gpu_used")
_ARRAYS = (
    "_allocatable", "_requested", "_nonzero", *_BY_DEVICE, "_gpu_count", "_gpu_model", "_unschedulable", "_capacity",
    "_node_generation",
)  # fmt: skip
