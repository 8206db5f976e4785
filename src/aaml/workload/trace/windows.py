"""A trace in windows of time: what a scheduler would have found in each, and which are for training, which for judging.

The split is a property of the trace. It is written beside the parts the first time that anybody asks (`split.json`) and
stays, so that what a policy was trained on is never what it is judged on, however long the recording goes on.
"""

import logging
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from aaml.cluster.objects import Node, Pod
from aaml.errors import UserError, bad_value
from aaml.files import write_json
from aaml.schema import convert, of_json, read_bytes
from aaml.workload.trace.events import NodeGone, NodeSeen
from aaml.workload.trace.trace import Life, Trace

Part = Literal["training", "validation", "holdout", "all"]
SPLIT = "split.json"
_log = logging.getLogger(__name__)
_WINDOWS, _LONG_WINDOWS = 20, 10  # of a trace that nobody said anything else about; fewer only where it is short
_LIFETIMES = 5.0  # a window is to last this many median lifetimes: what ran already says little then
_HOLDOUT = 0.3
FEWEST = 5
"""Windows that a verdict takes, as `aaml.evaluation.statistics` has it."""
_VALIDATION = 5  # every so many training windows one judges a training while it goes on
_SECOND_S, _MINUTE_S = 1.0, 60.0


@dataclass(frozen=True)
class Split:
    """Windows of `window_s` seconds; those that begin at `holdout_from_s` or later are for judging alone."""

    window_s: float
    holdout_from_s: float


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod that has a node from `at_s` on; its `lifetime_s` is what is left from then, None for ever.

    It ran from `since_s` on, which is before the window for what ran at its beginning.
    """

    at_s: float
    pod: Pod
    node_name: str
    gpus: tuple[int, ...] | None
    since_s: float


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node joined or changed, or was removed where `node` is None."""

    at_s: float
    name: str
    node: Node | None


@dataclass(frozen=True)
class Window:
    """A window of a trace, with times from its beginning.

    `nodes` are there and `running` runs when it begins; `arrivals` are to be placed, in the order in which they came,
    by whoever is asked; a pod that waited already arrives at 0. `changes` are those of nodes, `others` pods that had
    their node when they were first seen, `removed` when pods (by uid) that never had a node were deleted. `chosen` is
    what the recorded scheduler made of the arrivals, as far as it bound them in this window.
    """

    index: int
    start_s: float
    length_s: float
    nodes: tuple[Node, ...]
    running: tuple[Placed, ...]
    arrivals: tuple[Pod, ...]
    changes: tuple[NodeChange, ...]
    others: tuple[Placed, ...]
    removed: tuple[tuple[float, str], ...]
    chosen: Mapping[str, Placed]


@dataclass(frozen=True, slots=True)
class Tally:
    """What part a trace's pods have in some windows: `arrive`, `ran` and `outside` add up to all of them.

    `arrive` came in them, or waited when one began; `twice` of these waited from one window into the next and arrive in
    both. `ran` had a node when they were first met, `outside` are in none of them.
    """

    arrive: int
    twice: int
    ran: int
    outside: int


@dataclass(frozen=True)
class Windows:
    """All windows of a trace without gaps, by number, and whether each is for training or evaluation."""

    trace: Trace
    split: Split

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The windows that can be used: whole, and without a gap."""
        length_s = self.split.window_s
        count = int((self.trace.end_s + 1e-9) // length_s)
        return tuple(
            number
            for number in range(count)
            if not any(
                since_s < (number + 1) * length_s and until_s > number * length_s
                for since_s, until_s in self.trace.gaps
            )
        )

    def part(self, part: Part) -> tuple[int, ...]:
        """Return the numbers of the windows that are for something. Raises `UserError` when there is none."""
        boundary = [number * self.split.window_s < self.split.holdout_from_s - 1e-9 for number in self.numbers]
        early = [number for number, is_early in zip(self.numbers, boundary, strict=True) if is_early]
        judging = early[_VALIDATION - 1 :: _VALIDATION] or early[-1:]
        chosen = {
            "all": list(self.numbers),
            "holdout": [number for number in self.numbers if number not in set(early)],
            "validation": judging,
            "training": [number for number in early if number not in set(judging)] or early,
        }[part]
        if not chosen:
            raise UserError(
                f"trace {self.trace.name}: no whole window of {self.split.window_s:g} s is for {part}; "
                f"it has {len(self.numbers)}, and those from {self.split.holdout_from_s:g} s on are the holdout"
            )
        return tuple(chosen)

    def window(self, number: int) -> Window:
        """Return a window. Raises `UserError` for a number that none of the trace's has."""
        if number not in self.numbers:
            raise bad_value("window", number, f"one of {', '.join(map(str, self.numbers)) or 'none'}")
        start_s, length_s = number * self.split.window_s, self.split.window_s
        end_s = start_s + length_s
        nodes, changes = self._nodes(start_s, end_s)
        created, bound, ended = self._times
        alive = np.flatnonzero((created < end_s) & (ended > start_s))
        running, others, arrivals, removed = [], [], [], []
        chosen: dict[str, Placed] = {}
        for row in alive.tolist():
            life = self._lives[row]
            known = bound[row] < math.inf and ended[row] < math.inf
            left_s = float(ended[row] - max(bound[row], start_s)) if known else None
            pod = replace(life.pod, lifetime_s=left_s)
            if bound[row] < start_s:
                running.append(Placed(0.0, pod, life.node_name, life.gpus, float(bound[row]) - start_s))
            elif life.found and bound[row] < end_s:
                at_s = float(bound[row]) - start_s
                others.append(Placed(at_s, pod, life.node_name, life.gpus, at_s))
            else:
                if math.isinf(bound[row]) and life.pod.lifetime_s is not None:
                    # Nobody says where it ran, only how long: it is placed anew, for what is left.
                    left_s = life.pod.lifetime_s - max(0.0, start_s - float(created[row]))
                    pod = replace(pod, lifetime_s=left_s, created_s=max(0.0, float(created[row]) - start_s))
                    arrivals.append(pod)
                    continue
                arrivals.append(replace(pod, created_s=max(0.0, float(created[row]) - start_s)))
                if math.isinf(bound[row]) and ended[row] < end_s:
                    removed.append((float(ended[row]) - start_s, pod.uid))
                elif bound[row] < end_s:
                    at_s = float(bound[row]) - start_s
                    chosen[pod.uid] = Placed(at_s, pod, life.node_name, life.gpus, at_s)
        arrivals.sort(key=lambda pod: pod.created_s)
        return Window(
            number, start_s, length_s, nodes, tuple(running), tuple(arrivals), changes,
            tuple(sorted(others, key=lambda each: each.at_s)), tuple(sorted(removed)), chosen,
        )  # fmt: skip

    # ---- what they say -----------------------------------------------------------------------------------------------

    def tally(self, numbers: Iterable[int]) -> "Tally":
        """Return what part the trace's pods have in some windows; each pod counts once."""
        arrived: Counter[str] = Counter()
        there: set[str] = set()
        for number in numbers:
            window = self.window(number)
            arrived.update(pod.uid for pod in window.arrivals)
            there |= {placed.pod.uid for placed in (*window.running, *window.others)}
        ran = len(there - arrived.keys())
        twice = arrived.total() - len(arrived)
        return Tally(len(arrived), twice, ran, len(self.trace.lives) - len(arrived) - ran)

    def carried(self, numbers: Iterable[int]) -> float:
        """Return which share of the pods' time in some windows is of pods that ran when these began; NaN of none."""
        _, bound, ended = self._times
        whole = before = 0.0
        for number in numbers:
            start_s = number * self.split.window_s
            run_s = np.minimum(ended, start_s + self.split.window_s) - np.maximum(bound, start_s)
            run_s = np.maximum(run_s, 0.0)
            whole += float(run_s.sum())
            before += float(run_s[bound < start_s].sum())
        return before / whole if whole else math.nan

    def cautions(self, numbers: Sequence[int]) -> list[str]:
        """Return the cautions for a reader of differences over some windows, a sentence each."""
        lines, window_s, lived_s = [], self.split.window_s, self.trace.lifetimes_s
        if len(numbers) < FEWEST:
            lines.append(
                f"{len(numbers)} windows are too few for a verdict; it takes {FEWEST}: record for longer, cut shorter "
                "ones with `aaml trace split`, or play all where no model learned from this trace"
            )
        if lived_s and window_s < _LIFETIMES * (usual_s := float(np.median(lived_s))):
            carried = self.carried(numbers)
            share = "" if math.isnan(carried) else f", so {carried:.0%} of the pods' time is of pods that ran already"
            lines.append(
                f"windows of {window_s:g} s are short: half of the pods that end run for {usual_s:.3g} s or "
                f"longer{share}, and those stay where they were recorded. Differences come out smaller than they are"
            )
        return lines

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _nodes(self, start_s: float, end_s: float) -> tuple[tuple[Node, ...], tuple[NodeChange, ...]]:
        nodes: dict[str, Node] = {}
        changes = []
        for event in self.trace.events:
            if not isinstance(event, NodeSeen | NodeGone) or event.at >= end_s:
                continue
            node, name = (event.node, event.node.name) if isinstance(event, NodeSeen) else (None, event.name)
            if event.at > start_s:
                changes.append(NodeChange(event.at - start_s, name, node))
            elif node is None:
                nodes.pop(name, None)
            else:
                nodes[name] = node
        return tuple(nodes.values()), tuple(changes)

    @cached_property
    def _lives(self) -> list[Life]:
        return list(self.trace.lives.values())

    @cached_property
    def _times(self) -> tuple[npt.NDArray[np.float64], ...]:
        """[P] when each pod was created, bound and ended; infinity for what did not happen.

        A pod whose node was removed ends with it: the pod that took its place is in the trace as well.
        """
        gone: dict[str, list[float]] = defaultdict(list)
        for event in self.trace.events:
            if isinstance(event, NodeGone):
                gone[event.name].append(event.at)

        def ended_s(life: Life) -> float:
            end_s = math.inf if life.ended_s is None else life.ended_s
            removals = gone.get(life.node_name, ())
            later = bisect_right(removals, life.bound_s) if life.bound_s is not None else len(removals)
            return min(end_s, removals[later]) if later < len(removals) else end_s

        times = [
            (life.created_s, math.inf if life.bound_s is None else life.bound_s, ended_s(life)) for life in self._lives
        ]
        created, bound, ended = np.array(times, dtype=np.float64).reshape(-1, 3).T
        return created, bound, ended


def usual_split(trace: Trace) -> Split:
    """Return windows of five median lifetimes: twenty at most and, where the trace is long enough, ten at least.

    They last whole minutes where twenty of them fit. The last 30% are the holdout, and five of ten or more. A trace of
    less than twenty seconds has fewer, of a second each, and one of less than a second is one window.
    """
    unit_s = _MINUTE_S if trace.end_s >= _WINDOWS * _MINUTE_S else _SECOND_S
    lived_s = _LIFETIMES * float(np.median(trace.lifetimes_s)) if trace.lifetimes_s else 0.0
    wanted_s = min(max(trace.end_s / _WINDOWS, lived_s), max(trace.end_s / _LONG_WINDOWS, unit_s))
    window_s = min(max(unit_s, wanted_s // unit_s * unit_s), trace.end_s)
    count = trace.end_s // window_s if window_s else 0
    return make_split(trace, window_s, max(_HOLDOUT, FEWEST / count) if count >= _LONG_WINDOWS else _HOLDOUT)


def make_split(trace: Trace, window_s: float, holdout: float) -> Split:
    """Return windows of some seconds, of which a share at the end is for judging; `UserError` for what is no split."""
    if trace.end_s <= 0:
        raise UserError(f"trace {trace.name}: nothing happens in it after its first moment; there are no windows of it")
    if not 0 < window_s <= trace.end_s:
        raise bad_value("window_s", window_s, f"a number above 0 and at most the trace's {trace.end_s:g} s")
    if not 0 < holdout <= 1:
        raise bad_value("holdout", holdout, "a share above 0, and 1 where nothing is for training")
    count = int((trace.end_s + 1e-9) // window_s)
    return Split(window_s, (count - max(1, math.ceil(count * holdout - 1e-9))) * window_s)


def write_split(folder: Path, split: Split) -> None:
    """Write the split of a trace; a later one than the first mixes what was trained on with what judges."""
    write_json(folder / SPLIT, {"window_s": split.window_s, "holdout_from_s": split.holdout_from_s})


def read_split(folder: Path) -> Split | None:
    """Return the split of a trace, None before there is one. Raises `UserError` for a file that holds none."""
    path = folder / SPLIT
    if not path.exists():
        return None
    try:
        found = convert(of_json(read_bytes(path, "split"), str(path)), _Kept, str(path))
    except UserError as error:
        raise UserError(f"{path}: is no split of a trace ({error})") from error
    return Split(found.window_s, found.holdout_from_s)


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    window_s: Annotated[float, Meta(gt=0)]
    holdout_from_s: Annotated[float, Meta(ge=0)]


def read_windows(folder: Path | str) -> Windows:
    """Read a trace and its windows; the usual split is written where there is none yet."""
    return _read(Path(folder).resolve())


@lru_cache(maxsize=4)
def _read(folder: Path) -> Windows:
    trace = Trace.read(folder)
    split = read_split(folder)
    if split is None:
        split = usual_split(trace)
        try:
            write_split(folder, split)
        except UserError as error:
            _log.warning("%s: its windows are the usual ones, and stay so if nothing more is recorded", error)
    return Windows(trace, split)
