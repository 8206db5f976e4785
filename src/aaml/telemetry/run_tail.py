"""A scheduler's log as it grows: its latest decisions and its curves."""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aaml.scheduling import curves

_POINTS = 60  # of a curve
_DECISIONS = 8
CLUSTER = "cluster"
"""The kind of a log's first event, which says `where` the scheduler works: the server, or `IN_PROCESS`."""
IN_PROCESS = "in-process cluster"
_CHUNK = 1 << 20  # bytes of a log that are read at once
_LABELS = {
    curves.CUMULATIVE_REWARD: "cumulative reward",
    curves.VALUE_LOSS: "value loss",
    curves.ADVANTAGE: "advantage",
    curves.CLUSTER_VARIANCE: "variance of CPU use",
    curves.ACTOR_LOSS: "actor loss",
    curves.CRITIC_LOSS: "critic loss",
    curves.EPSILON: "epsilon",
    curves.ENTROPY: "policy entropy",
    curves.ACTION_VALUE: "mean action value",
    curves.TABLE_STATES: "states in the table",
    curves.SEARCH_DEVIATION: "search deviation",
}


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """A decision of a scheduler, with the score of its node where the policy has one."""

    pod: str
    node: str
    score: float | None
    reward: float | None
    feasible: int | None
    by: str = ""
    """Who decided in the policy's place, "" where it did."""

    def __str__(self) -> str:
        """Return it as a line, with what is known of it."""
        facts = (("score {:.3g}", self.score), ("reward {:.3g}", self.reward), ("{} feasible", self.feasible))
        shown = [words.format(value) for words, value in facts if value is not None]
        return "  ".join([f"{self.pod} -> {self.node}", *shown, *([f"by {self.by}"] if self.by else [])])


class RunTail:
    """The latest decisions and curves in a scheduler's log (logs/*.jsonl), as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.decisions: deque[DecisionLine] = deque(maxlen=_DECISIONS)
        self.curves: dict[str, deque[float]] = {}
        self._read_to = max(0, path.stat().st_size - _CHUNK) if path.exists() else 0
        self._rest = b""

    def read(self) -> None:
        """Take in what was written since the last time; the first time the end of the file alone."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            while content := file.read(_CHUNK):
                *lines, self._rest = (self._rest + content).split(b"\n")
                for line in lines:
                    try:
                        self._take(json.loads(line))
                    except (ValueError, KeyError, TypeError):
                        continue  # the first line may be half of one
            self._read_to = file.tell()

    def _take(self, event: dict[str, Any]) -> None:
        if event["kind"] == "decision":
            score = event.get("score", event.get("value"))
            where = event["node"] or event["outcome"]
            by = str(event.get("by", ""))
            self.decisions.append(DecisionLine(event["pod"], where, score, event["reward"], event["feasible"], by))
        elif event["kind"] == "scalar" and event["value"] is not None:
            self.curves.setdefault(event["name"], deque(maxlen=_POINTS)).append(float(event["value"]))


def curve_label(name: str) -> str:
    """Return what a curve of a log shows, in words; a name that is not known stays as it is."""
    return _LABELS.get(name, name)


def newest_log(folder: Path, cluster: str, *, within_s: float = 3600.0, now_s: float) -> Path | None:
    """Return the log of a cluster's scheduler that was written to last; None when that is longer ago than `within_s`.

    The log of a learner beside kube-scheduler names a socket and no cluster: it may be of any.
    """
    recent = {path: path.stat().st_mtime for path in folder.glob("*.jsonl")}
    for path in sorted(recent, key=lambda path: recent[path], reverse=True):
        if now_s - recent[path] >= within_s:
            return None
        if not path.name.endswith(".explained.jsonl") and ((where := _where(path)) == cluster or where.startswith("/")):
            return path
    return None


def _where(log: Path) -> str:
    """Return the cluster in a log's first line, "" where it has none."""
    try:
        with log.open("rb") as file:
            event = json.loads(file.readline())
        return str(event["where"]) if event["kind"] == CLUSTER else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def sparkline(values: Sequence[float]) -> str:
    """Return a curve as a line of blocks, from its least to its greatest value."""
    if not values:
        return ""
    low, span = min(values), max(values) - min(values)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / span) if span else 0] for value in values)
