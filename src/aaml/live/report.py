"""The report of a live run: outcomes of pods and binds, curves and settings, made from the run's records."""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from aaml.evaluation.charts import bar_chart, curve_chart, curve_frame, thinned
from aaml.evaluation.figures import Panel, curve_figure
from aaml.evaluation.page import Page
from aaml.scheduling.curves import CLUSTER_VARIANCE, CUMULATIVE_REWARD

_MOST_NODES = 40  # of the chart of pods by node
_PERCENTILES = (50, 90, 99)


@dataclass
class Records:
    """What a run's file of decisions and binds (JSON lines) says, summed up."""

    curves: dict[str, tuple[array, array]] = field(default_factory=dict)  # type: ignore[type-arg]
    outcomes: Counter[str] = field(default_factory=Counter)
    binds: Counter[str] = field(default_factory=Counter)
    nodes: Counter[str] = field(default_factory=Counter)
    deciders: Counter[str] = field(default_factory=Counter)
    """Decisions by who made them in the policy's place."""
    unplaced: Counter[str] = field(default_factory=Counter)
    """Attempts that found no node, by the pod's uid."""
    bind_s: array = field(default_factory=partial(array, "d"))  # type: ignore[type-arg]
    begin_s: float = 0.0
    end_s: float = 0.0

    @classmethod
    def read(cls, path: Path) -> "Records":
        """Read a file line by line; one that was cut off is read up to there."""
        records = cls()
        decode = msgspec.json.Decoder().decode
        with path.open("rb") as file:
            for line in file:
                try:
                    records.take(decode(line))
                except msgspec.DecodeError:
                    break
        return records

    def take(self, line: Mapping[str, Any]) -> None:
        """Take one line."""
        self.end_s = line["time"]
        self.begin_s = self.begin_s or self.end_s
        match line["kind"]:
            case "scalar" if line["value"] is not None:
                steps, values = self.curves.setdefault(line["name"], (array("d"), array("d")))
                steps.append(line["step"])
                values.append(line["value"])
            case "decision":
                self.outcomes[line["outcome"]] += 1
                if "by" in line:
                    self.deciders[line["by"]] += 1
                if line["node"]:
                    self.nodes[line["node"]] += 1
            case "unschedulable":
                self.unplaced[line["uid"]] += 1
            case "bind":
                self.binds[line["status"]] += 1
                self.bind_s.append(line["latency_s"])


def write_live_report(
    events: Path,
    name: str,
    settings: Mapping[str, object],
    usual: Mapping[str, object],
    files: Sequence[Path] = (),
) -> Path:
    """Write the report of the run whose records are `events` beside them, as STEM.html; returns the page's path.

    `settings` that differ from the `usual` ones are set off; `files` are models, which are hashed.
    Raises `UserError` where it cannot be written, OSError where the records cannot be read.
    """
    records = Records.read(events)
    page = Page(f"Live run: {name}", events.parent, f"{events.stem}.html")
    seconds = records.end_s - records.begin_s
    decisions = records.outcomes.total()
    facts: dict[str, object] = {
        "decisions": f"{decisions:,} in {seconds:,.1f} s", "decisions led to": _counted(records.outcomes),
        "attempts that found no node": f"{records.unplaced.total():,}, of {len(records.unplaced):,} pods",
        "binds": _counted(records.binds),
    }  # fmt: skip
    if records.deciders:
        facts["decided by another policy"] = _counted(records.deciders)
    if records.bind_s:
        times = np.percentile(np.asarray(records.bind_s), _PERCENTILES) * 1000.0
        shown = ", ".join(f"p{place} {ms:.1f} ms" for place, ms in zip(_PERCENTILES, times, strict=True))
        facts["time of a bind"] = shown
    page.facts(facts)
    _curves(page, records)
    if records.nodes:
        page.heading("Pods by node")
        most = dict(records.nodes.most_common(_MOST_NODES))
        rest = f" (the {_MOST_NODES} that got most of {len(records.nodes)})" * (len(records.nodes) > _MOST_NODES)
        page.figure(bar_chart(f"pods placed{rest}", most, "pods"))
    page.settings(settings, usual)
    page.hashed([*files, events])
    return page.write()


def _curves(page: Page, records: Records) -> None:
    if not records.curves:
        return
    drawn = {name: thinned(*curve) for name, curve in records.curves.items()}
    first = [name for name in (CUMULATIVE_REWARD, CLUSTER_VARIANCE) if name in drawn]
    panels = [Panel({name: [drawn[name]]}, name, name) for name in first]
    page.heading("Curves")
    with page.grid():
        for number, name in enumerate(sorted(drawn, key=lambda name: (name not in first, name))):
            chart = curve_chart(name, {name: drawn[name]})
            if number or not panels:
                page.figure(chart)
            else:
                page.figure(chart, "curves", partial(curve_figure, *panels), curve_frame(drawn))


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())) or "none"
