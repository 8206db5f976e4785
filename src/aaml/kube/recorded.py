"""What a recorder watches: every pod, finished ones too, with the API server's own word on when it was bound and ended.

Schedulers do not need that, so their watches decode less (`aaml.kube.sources`).
"""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from aaml.cluster.objects import Pod
from aaml.kube.objects import wire
from aaml.kube.objects.convert import gpu_indices
from aaml.kube.reflector import Source
from aaml.kube.sources import converted, uid_of
from aaml.workload.trace.events import End


class _Terminated(wire.Wire):
    finished_at: datetime | None = None


class _State(wire.Wire):
    terminated: _Terminated | None = None


class _ContainerStatus(wire.ContainerStatus):
    state: _State | None = None


class _PodStatus(wire.PodStatus):
    reason: str = ""
    conditions: list[wire.TimedCondition] | None = None  # type: ignore[assignment]
    container_statuses: list[_ContainerStatus] | None = None  # type: ignore[assignment]


class RecordedPodObject(wire.PodObject):
    """A pod with the times of its status."""

    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


@dataclass(frozen=True, slots=True)
class RecordedPod:
    """A pod as it is now; the times, in seconds since 1970, are the API server's, None where it tells none.

    `ended` is how it ended where it holds nothing any more; `if_deleted` how, should it be deleted from here.
    """

    pod: Pod
    gpus: tuple[int, ...] | None
    bound_s: float | None
    ended: End | None
    ended_s: float | None
    if_deleted: End


def recorded_pod(raw: RecordedPodObject) -> RecordedPod:
    """Convert a pod; annotations that cannot be read count as none. Raises `UserError` for an impossible quantity."""
    raw, pod = converted(raw)
    conditions = {each.type: each for each in raw.status.conditions or () if each.status == "True"}
    scheduled = conditions.get("PodScheduled")
    disrupted = conditions.get("DisruptionTarget")
    evicted: End | None = None
    if disrupted is not None:
        evicted = "preempted" if disrupted.reason == "PreemptionByScheduler" else "evicted"
    elif raw.status.reason == "Evicted":
        evicted = "evicted"
    finished = [
        each.state.terminated.finished_at.timestamp()
        for each in raw.status.container_statuses or ()
        if each.state is not None and each.state.terminated is not None and each.state.terminated.finished_at
    ]
    failed: End = evicted or "failed"
    ended: End | None = {"Succeeded": "succeeded", "Failed": failed}.get(raw.status.phase)
    return RecordedPod(
        pod,
        gpu_indices(raw) if raw.spec.node_name else None,
        scheduled.last_transition_time.timestamp() if scheduled and scheduled.last_transition_time else None,
        ended,
        max(finished) if ended and finished else None,
        evicted or "deleted",
    )


EVERY_POD: Source[RecordedPod] = Source(
    "pods",
    "/api/v1/pods",
    RecordedPodObject,
    recorded_pod,
    key=lambda seen: seen.pod.uid,
    version=lambda seen: seen.pod.resource_version,
    wire_key=uid_of,
)
