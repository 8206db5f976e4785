"""What a trace says, event by event, and how an event is written as a line of JSON.

Times are seconds since 1970 where a cluster was recorded, and seconds since any beginning where a file was converted.
An event's `at` is when it happened as far as that is known: the recorder's clock for what it saw happen, and the API
server's own (whole seconds) for what it found when it came or came back.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from aaml.cluster.objects import Node, Pod
from aaml.errors import UserError

FORMAT = "aaml-trace/1"
End = Literal["succeeded", "failed", "deleted", "preempted", "evicted", "unseen"]
"""How a pod ended; "unseen": it was gone when the recorder came back."""


class Event(msgspec.Struct, frozen=True, tag_field="event", kw_only=True):
    """Something that happened at a time."""

    at: float


class Began(Event, frozen=True, tag="began"):
    """A recorder, or a converter, begins to write; what there is follows, up to `Listed`.

    `source` says what is recorded, `hashed` whether names were replaced.
    """

    format: str = FORMAT
    source: str = ""
    hashed: bool = False


class Listed(Event, frozen=True, tag="listed"):
    """The first list is complete: what was there before `Began` and was not listed since is gone."""


class Watched(Event, frozen=True, tag="watched"):
    """Everything that happened up to now is in the trace."""


class Lost(Event, frozen=True, tag="lost"):
    """The cluster could not be watched from `since` until now."""

    since: float


class NodeSeen(Event, frozen=True, tag="node"):
    """A node joined or changed."""

    node: Node


class NodeGone(Event, frozen=True, tag="node-gone"):
    """A node was removed."""

    name: str


class PodSeen(Event, frozen=True, tag="pod"):
    """A pod came, or changed in what scheduling reads; `pod.node_name` is always empty here."""

    pod: Pod


class PodBound(Event, frozen=True, tag="bound"):
    """A pod got its node, and the GPU devices where an annotation names them.

    `found`: the pod had its node when it was first seen, so that nobody knows what the cluster looked like when that
    was decided (or nobody decided it, as for a static pod).
    """

    uid: str
    node_name: str
    gpus: tuple[int, ...] | None = None
    found: bool = False


class PodEnded(Event, frozen=True, tag="ended"):
    """A pod holds nothing any more."""

    uid: str
    how: End = "deleted"


AnyEvent = Began | Listed | Watched | Lost | NodeSeen | NodeGone | PodSeen | PodBound | PodEnded
_DECODER = msgspec.json.Decoder(AnyEvent)
_GANG = b'"gang":'
_ENCODER = msgspec.json.Encoder()


def to_line(event: AnyEvent) -> bytes:
    """Return an event as a line of JSON. What has its usual value is left out."""
    content: dict[str, Any] = {"event": event.__struct_config__.tag, "at": round(event.at, 3)}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name != "at":
            content[name] = _plain(value) if dataclasses.is_dataclass(value) else value
    return _ENCODER.encode(content) + b"\n"


def from_line(line: bytes, where: str) -> AnyEvent:
    """Return the event of a line. Raises `UserError`, which says where, for what is none."""
    try:
        event: AnyEvent = _DECODER.decode(_with_group(line) if _GANG in line else line)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise UserError(f"{where}: is no event of a trace ({error})") from None
    return event


def _with_group(line: bytes) -> bytes:
    """Return the line of a pod with the gang, which traces of version 1 may name so, as its group."""
    content = msgspec.json.decode(line)
    pod = content.get("pod") if isinstance(content, dict) else None
    if isinstance(pod, dict) and pod.get("gang"):
        pod["group"] = {"name": pod.pop("gang"), "min_count": pod.pop("gang_size", 0)}
    return msgspec.json.encode(content)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: an object without the fields that have their usual values."""
    if not dataclasses.is_dataclass(value):
        return [_plain(each) for each in value] if isinstance(value, tuple) else value
    return {
        name: _plain(each)
        for name, usual in _fields(value.__class__)
        if (each := getattr(value, name)) is not usual and each != usual
    }


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of an object with their usual values, MISSING where they have none."""
    return tuple(
        (each.name, each.default if each.default_factory is dataclasses.MISSING else each.default_factory())
        for each in dataclasses.fields(kind)
    )


def waiting(pod: Pod) -> Pod:
    """Return what scheduling reads of a pod, without its state, and without a group of which only the name is known.

    In a replay such pods would wait for ever, where nobody could tell the recorder more of their group.
    """
    group = pod.group if pod.group is not None and pod.group.seen else None
    return dataclasses.replace(
        pod, group=group, node_name="", nominated_node="", phase="Pending", terminating=False, started_s=0.0,
        resource_version="", requests=dict(pod.requests), labels=_sorted(pod.labels),
        node_selector=_sorted(pod.node_selector),
    )  # fmt: skip


def _sorted(labels: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(labels.items()))
