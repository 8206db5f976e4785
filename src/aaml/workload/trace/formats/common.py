"""What every format is converted to: nodes that come and go, and the lives of pods; and how these become events."""

import gzip
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aaml.cluster.objects import NO_GPU, GpuRequest, Node
from aaml.errors import UserError, bad_value
from aaml.workload.trace.events import AnyEvent, Began, Listed, NodeGone, NodeSeen, PodBound, PodEnded, PodSeen, Watched
from aaml.workload.trace.trace import Life
from aaml.workload.trace.windows import NodeChange

UNIT_CPU_MILLI = 100_000
UNIT_MEMORY_BYTES = 100 << 30
"""What stands for 1.0 where a trace tells shares of a machine: 100 cores and 100 GiB."""
PODS_PER_NODE = 1001
DEVICE_MILLI = 1000


@dataclass(frozen=True)
class Options:
    """What a source does not say: how many nodes there are, and of which kind where it knows several.

    `gpus_per_node` and `nodes_per_rack` are those of nodes of which only a number is known; 0: no racks.
    """

    nodes: int = 10
    machine: str = ""
    gpus_per_node: int = 8
    nodes_per_rack: int = 0


@dataclass(frozen=True)
class Converted:
    """A source as a trace has it; `left_out` says what was not taken over, and how often.

    Nothing is told of the time after `until_s`, by default the last that happened.
    """

    source: str
    nodes: tuple[NodeChange, ...]
    lives: tuple[Life, ...]
    left_out: Mapping[str, int]
    until_s: float = math.inf


def standing(nodes: Iterable[Node]) -> tuple[NodeChange, ...]:
    """Return nodes that are there from the beginning to the end."""
    return tuple(NodeChange(-math.inf, node.name, node) for node in nodes)


def events_of(converted: Converted) -> Iterator[AnyEvent]:
    """Yield the events of a source in the order of time. Raises `UserError` where it has no node or no pod."""
    if not converted.nodes or not converted.lives:
        what = "node" if not converted.nodes else "pod"
        raise UserError(f"{converted.source}: has no {what}")
    created_s = [life.created_s for life in converted.lives]
    begin_s = max(0.0, min(created_s))  # what has a negative time was there before
    events: list[tuple[float, int, AnyEvent]] = []
    for change in converted.nodes:
        at_s = max(change.at_s, begin_s)
        events.append(
            (at_s, 1, NodeSeen(at=at_s, node=change.node))
            if change.node is not None
            else (at_s, 3, NodeGone(at=at_s, name=change.name))
        )
    for life in converted.lives:
        if life.ended_s is not None and life.ended_s <= begin_s and life.created_s < begin_s:
            continue
        pod = replace(life.pod, created_s=life.created_s)
        events.append((max(life.created_s, begin_s), 2, PodSeen(at=life.created_s, pod=pod)))
        last_s = life.created_s if life.bound_s is None else life.bound_s
        if life.bound_s is not None:
            found = life.bound_s < begin_s
            bound = PodBound(at=last_s, uid=pod.uid, node_name=life.node_name, gpus=life.gpus, found=found)
            events.append((max(last_s, begin_s), 4, bound))
        if life.ended_s is not None:
            end = PodEnded(at=life.ended_s, uid=pod.uid, how=life.how or "deleted")
            events.append((life.ended_s, 0 if life.ended_s > last_s else 5, end))
    events = sorted((each for each in events if each[0] <= converted.until_s), key=lambda each: each[:2])
    yield Began(at=begin_s, source=converted.source)
    listed = False
    for at_s, _, event in events:
        if not listed and at_s > begin_s:
            listed = True
            yield Listed(at=begin_s)
        yield event
    if not listed:
        yield Listed(at=begin_s)
    yield Watched(at=events[-1][0])


def opened(path: Path) -> io.TextIOBase:
    """Open a text file, compressed by gzip or not. Raises `UserError` where it cannot be read."""
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8", newline="")
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def file_in(folder: Path, *names: str) -> Path:
    """Return the file of one of these names in a folder, compressed or not. Raises `UserError` when none is there."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    raise bad_value("source", str(folder), f"a folder with {' or '.join(names)}")


def gpus_of(share: float) -> GpuRequest:
    """Return the request for a number of GPUs, of which less than one is shared; more than one are whole ones."""
    if share <= 0:
        return NO_GPU
    milli = round(share * DEVICE_MILLI)
    return GpuRequest(1, milli) if milli <= DEVICE_MILLI else GpuRequest(math.ceil(milli / DEVICE_MILLI), DEVICE_MILLI)
