"""Workload: pods in the order in which they arrive, with the times at which they come and how long they run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from aaml.cluster.objects import Pod


@dataclass(frozen=True)
class Workload:
    """Pods in the order in which they arrive.

    `created_s` of a pod is when it arrives, and `lifetime_s` is how long it runs once bound, where None is for ever.
    Raises ValueError when the pods are not in order or a uid comes twice.
    """

    pods: tuple[Pod, ...] = ()
    name: str = "workload"

    def __post_init__(self) -> None:
        latest, uids = float("-inf"), set()
        for pod in self.pods:
            if pod.created_s < latest:
                raise ValueError(f"{self.name}: pod {pod.key} arrives at {pod.created_s} s, before its predecessor")
            if pod.uid in uids:
                raise ValueError(f"{self.name}: pod {pod.key} comes twice")
            latest = pod.created_s
            uids.add(pod.uid)

    @classmethod
    def of(cls, pods: Iterable[Pod], name: str = "workload") -> "Workload":
        """Return a workload of pods in any order; those that arrive at the same time keep theirs."""
        return cls(tuple(sorted(pods, key=lambda pod: pod.created_s)), name)

    def __len__(self) -> int:
        """Return the number of pods."""
        return len(self.pods)

    def __iter__(self) -> Iterator[Pod]:
        """Yield the pods by time of arrival."""
        return iter(self.pods)

    @overload
    def __getitem__(self, index: int) -> Pod: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Pod]: ...
    def __getitem__(self, index: int | slice) -> Pod | Sequence[Pod]:
        """Return one or several pods."""
        return self.pods[index]

    @property
    def duration_s(self) -> float:
        """Time of the last arrival, 0 without pods."""
        return self.pods[-1].created_s if self.pods else 0.0
