"""What stands in the scheduling queue: a pod, or a pod group with all of its pods that wait."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Literal

from aaml.cluster.objects import Pod, PodGroup

QueueName = Literal["new", "active", "backoff", "unschedulable", "gated", "in_flight"]
NO_PLUGINS: frozenset[str] = frozenset()


@dataclass(slots=True)
class QueuedPod:
    """A pod in the queue, with what is known of the tries to place it; times are seconds of the queue's clock.

    `attempts` counts the tries so far, with the one under way, and `last_failure` names the plugins that rejected the
    pod.
    """

    pod: Pod
    first_added_s: float
    added_s: float  # when it was last put in the queue: its age for the order
    attempts: int = 0
    failures: int = 0  # tries that ended without a node: doubles the backoff
    errors: int = 0  # tries in a row that ended in an error, such as a conflict
    last_failure: frozenset[str] = NO_PLUGINS
    queue: QueueName = "new"
    ticket: int = 0  # identifies the valid heap entry
    popped_at_event: int = 0
    delay_s: float = 0.0  # how much later than it did it counts as having come, where the policy sorts

    @property
    def uid(self) -> str:
        """What identifies the entry: the pod's uid."""
        return self.pod.uid

    @property
    def priority(self) -> int:
        """Higher ones are tried first."""
        return self.pod.priority

    @property
    def size(self) -> int:
        """The number of pods."""
        return 1

    @property
    def longer(self) -> float:
        """By how much its longest backoff is longer than that of one pod."""
        return 1.0

    def waiting(self) -> Iterator["QueuedPod | Member"]:
        """Yield what waits, pod by pod, in the order in which they are tried."""
        yield self

    def copy(self) -> "QueuedPod":
        """Return an independent copy."""
        return replace(self)


@dataclass(slots=True)
class Member:
    """A pod of a group that waits; `sequence` counts up with each time that one was put into the queue."""

    pod: Pod
    sequence: int
    attempts: int = 0

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.pod.uid


@dataclass(slots=True)
class QueuedGroup(QueuedPod):
    """A pod group in the queue, as kube-scheduler 1.37 queues it: its pods wait, and are tried, together.

    `pod` is the first that came, `coming` are those that came during a try. `size_failed` is the number of pods that
    waited when its last try ended.
    """

    group: PodGroup = field(default_factory=lambda: PodGroup(""))
    members: list[Member] = field(default_factory=list)
    coming: list[Member] = field(default_factory=list)
    size_failed: int = 1

    @staticmethod
    def uid_of(pod: Pod) -> str:
        """Return the uid that the group of a pod has in the queue."""
        return f"PodGroup/{pod.group_key}"

    @property
    def uid(self) -> str:
        """What identifies the entry."""
        return self.uid_of(self.pod)

    @property
    def priority(self) -> int:
        """That of the group, which its pods have to have too."""
        return self.group.priority

    @property
    def size(self) -> int:
        """The number of pods."""
        return len(self.members) + len(self.coming)

    @property
    def longer(self) -> float:
        """By how much its longest backoff is longer: the root of the number of its pods."""
        return sqrt(self.size_failed)

    def waiting(self) -> Iterator[QueuedPod | Member]:
        """Yield its pods: the more important ones first, then those that were tried more often, then the older."""
        yield from sorted(
            (*self.members, *self.coming), key=lambda each: (-each.pod.priority, -each.attempts, each.sequence)
        )

    def copy(self) -> "QueuedGroup":
        """Return an independent copy."""
        return replace(self, members=list(map(replace, self.members)), coming=list(map(replace, self.coming)))
