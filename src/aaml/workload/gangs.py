"""Training jobs as pods: one that fits a node is a pod, a larger one a pod group; and nodes with GPUs in racks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import HOSTNAME_LABEL, RACK_LABEL, GpuRequest, Node, Pod, PodGroup
from aaml.cluster.quantity import CPU, MEMORY, PODS

GPUS_PER_NODE = 8
CPU_MILLI_PER_GPU, MEMORY_PER_GPU = 8_000, 64 << 30
"""What a node has beside each GPU, where nobody says."""
_PODS = 110  # of a kubelet


@dataclass(frozen=True)
class Racks:
    """Makes nodes in racks of so many, by turns where that is several numbers; the last rack may be smaller.

    Without a number nodes are in no rack.
    """

    per_rack: tuple[int, ...] = (8,)
    gpus_per_node: int = GPUS_PER_NODE

    def __call__(self, count: int) -> tuple[Node, ...]:
        """Return so many nodes."""
        width = len(str(count - 1))
        room = {
            CPU: CPU_MILLI_PER_GPU * self.gpus_per_node, MEMORY: MEMORY_PER_GPU * self.gpus_per_node, PODS: _PODS,
        }  # fmt: skip
        names = [f"node-{number:0{width}d}" for number in range(count)]
        racks = [{RACK_LABEL: f"rack-{number}"} for number in islice(self._rack_of(), count)] or [{}] * count
        return tuple(
            Node(name, room, {HOSTNAME_LABEL: name, **rack}, gpu_count=self.gpus_per_node, gpu_model="GPU")
            for name, rack in zip(names, racks, strict=True)
        )

    def largest(self, count: int) -> int:
        """Return how many nodes the largest rack has, of so many in all; 0 without racks."""
        return max(min(max(self.per_rack, default=0), count), 0)

    def _rack_of(self) -> Iterator[int]:
        for number, size in enumerate(cycle(self.per_rack)):
            yield from [number] * size


@dataclass(frozen=True)
class JobShape:
    """What a job's pods look like: how large a node is, how large a rack (0: none is required), and what is asked for.

    A job of more nodes than a rack has requires none, as it would wait for ever.
    """

    gpus_per_node: int = GPUS_PER_NODE
    nodes_per_rack: int = 0
    cpu_milli_per_gpu: int = 0
    memory_per_gpu: int = 0
    scheduler_name: str = "default-scheduler"

    def pods(
        self, name: str, namespace: str, gpus: int, created_s: float = 0.0, lifetime_s: float | None = None
    ) -> tuple[Pod, ...]:
        """Return the pods of a job: of a whole node's GPUs each, and one of the rest."""
        whole, rest = divmod(gpus, self.gpus_per_node)
        parts = [self.gpus_per_node] * whole + [rest] * (rest > 0)
        group = None
        if len(parts) > 1:
            group = PodGroup(name, len(parts), RACK_LABEL if len(parts) <= self.nodes_per_rack else "")
        return tuple(
            Pod(
                f"{name}-{number}", namespace, requests=self._requests(part), gpu=GpuRequest(part, DEVICE_MILLI),
                owner=f"Job/{name}", scheduler_name=self.scheduler_name, group=group, created_s=created_s,
                lifetime_s=lifetime_s,
            )
            for number, part in enumerate(parts)
        )  # fmt: skip

    def _requests(self, gpus: int) -> dict[str, int]:
        asked = {CPU: self.cpu_milli_per_gpu * gpus, MEMORY: self.memory_per_gpu * gpus}
        return {resource: amount for resource, amount in asked.items() if amount}
