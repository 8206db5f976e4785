"""Explanation: why a pod went to a node, as a value that prints, that notebooks show and that files keep."""

import html
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY, format_bytes, format_cpu
from aaml.errors import UserError
from aaml.extras import lazily
from aaml.scheduling.ports import Places
from aaml.telemetry.tables import plain, table

if TYPE_CHECKING:
    import pandas as pd
else:  # only who asks for a table waits for it
    pd = lazily("pandas")

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
_NODES_SHOWN = 10
_PARTS_SHOWN = 6


@dataclass(frozen=True)
class Counts:
    """What is known of all nodes where an explanation holds only some: how many, feasible, and refused by which."""

    nodes: int
    feasible: int
    refused: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class OnDevice:
    """What a pod scores on a GPU device of a node, by the node's index, and the parts of that."""

    node_index: int
    device: int
    score: float
    parts: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Explanation:
    """One decision taken apart; N is the number of nodes, in the order of the cluster's arrays.

    ============  ==============  ==================================================================================
    pod           str             namespace/name
    asks          str             what it requests, in words
    policy        str             who decided
    nodes         N names
    mask          bool [N]        which nodes passed every filter
    refusals      N pairs         (filter, reason) of the filter that refused a node first; ("", "") where none did
    scores        float [N]       the policy's score of each node, NaN where it has none; None: it gives no scores
    parts         name -> [N]     what the scores are made of, as `parts_are` says
    devices       D `OnDevice`    for a pod with a part of a GPU, under a policy that scores devices: each of them
    chosen        int or None     index of the chosen node; None: the pod was left pending
    seconds       name -> float   what each part of the decision took, when it was measured
    ============  ==============  ==================================================================================

    `number` counts the decisions of a run from 0, -1 where there is no such number; `time_s` is the run's time, None
    where it has none that says anything.
    `notes` say what a reader has to know of this explanation. A record in a log holds some of the nodes, and `counts`
    tells of all.
    """

    pod: str
    asks: str
    policy: str
    nodes: tuple[str, ...]
    mask: BoolArray
    refusals: tuple[tuple[str, str], ...]
    scores: FloatArray | None = None
    parts: Mapping[str, FloatArray] = field(default_factory=dict)
    parts_are: str = ""
    chosen: int | None = None
    number: int = -1
    time_s: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    counts: Counts | None = None
    devices: tuple[OnDevice, ...] = ()

    # ---- what follows from it ----------------------------------------------------------------------------------------

    @property
    def node(self) -> str:
        """The chosen node's name, "" where none was chosen."""
        return "" if self.chosen is None else self.nodes[self.chosen]

    @property
    def feasible(self) -> int:
        """How many nodes of the cluster passed every filter."""
        return int(self.mask.sum()) if self.counts is None else self.counts.feasible

    @property
    def of(self) -> int:
        """How many nodes the cluster had."""
        return len(self.mask) if self.counts is None else self.counts.nodes

    @property
    def refused(self) -> Mapping[tuple[str, str], int]:
        """(filter, reason) -> how many nodes of the cluster it refused, most first."""
        if self.counts is not None:
            return self.counts.refused
        return dict(Counter(refusal for refusal in self.refusals if refusal[0]).most_common())

    @property
    def order(self) -> list[int]:
        """Feasible nodes by index, the chosen one first and then by falling score."""
        node_indices = [int(node_index) for node_index in np.flatnonzero(self.mask)]
        scores = self.scores
        if scores is not None:
            node_indices.sort(
                key=lambda node_index: -scores[node_index] if scores[node_index] == scores[node_index] else np.inf
            )
        if self.chosen in node_indices:
            node_indices.remove(self.chosen)
            node_indices.insert(0, self.chosen)
        return node_indices

    @property
    def second(self) -> int | None:
        """The best feasible node but for the chosen one, None where there is no other or no score."""
        node_indices = [node_index for node_index in self.order if node_index != self.chosen]
        return node_indices[0] if node_indices and self.scores is not None else None

    @property
    def margin(self) -> float | None:
        """By how much the chosen node's score is above the second's; below 0 where a better one was passed over."""
        if self.chosen is None or self.second is None or self.scores is None:
            return None
        return float(self.scores[self.chosen] - self.scores[self.second])

    @property
    def telling(self) -> list[str]:
        """Names of the parts, those first that tell the chosen node most from the second."""
        first, second = self.chosen, self.second
        if first is None or second is None:
            return list(self.parts)
        return sorted(self.parts, key=lambda name: -abs(self.parts[name][first] - self.parts[name][second]))

    def frame(self) -> "pd.DataFrame":
        """Return a row a node: feasible, filter, reason, score, and its parts."""
        columns: dict[str, Any] = {"node": self.nodes, "feasible": self.mask}
        columns |= {name: [each[place] for each in self.refusals] for place, name in enumerate(("filter", "reason"))}
        if self.scores is not None:
            columns["score"] = self.scores
        return pd.DataFrame({**columns, **self.parts})

    # ---- how it is shown ---------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        lines = [*self._headline(), ""]
        if self.mask.any():
            header, rows = self._grid()
            lines += [plain(table(header, rows, right=header[1:])), ""]
        return "\n".join([*lines, *self._footnotes()])

    def _repr_html_(self) -> str:
        header, rows = self._grid()
        cells = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
        heads = "".join(f"<th>{html.escape(name)}</th>" for name in header)
        grid = f"<table><thead><tr>{heads}</tr></thead><tbody>{cells}</tbody></table>" if rows else ""
        above, below = ("<br>".join(map(html.escape, lines)) for lines in (self._headline(), self._footnotes()))
        return f"<p>{above}</p>{grid}<p>{below}</p>"

    def _headline(self) -> Iterator[str]:
        number = f"decision {self.number} of " if self.number >= 0 else ""
        at = "" if self.time_s is None else f" at {self.time_s:,.1f} s"
        yield f"{self.pod} ({self.asks}) -> {self.node or 'nowhere'}, {number}{self.policy}{at}"
        yield f"{self.feasible} of {self.of} nodes are feasible"
        for (plugin, reason), count in self.refused.items():
            yield f"  {plugin} refuses {count}: {reason}"
        if self.chosen is not None and self.scores is not None:
            outcome = f"score {self.scores[self.chosen]:.6g}"
            if self.margin is not None and self.second is not None:
                side = "above" if self.margin > 0 else "below"
                distance = f"{abs(self.margin):.4g} {side}" if self.margin else "level with"
                outcome += f", {distance} the best other node ({self.nodes[self.second]})"
            yield outcome

    def _grid(self) -> tuple[list[str], list[list[str]]]:
        names = self.telling[:_PARTS_SHOWN]
        header = ["node", *(["score"] if self.scores is not None else []), *names]
        rows = []
        for node_index in self.order[:_NODES_SHOWN]:
            cells = [f"{self.nodes[node_index]} *" if node_index == self.chosen else self.nodes[node_index]]
            cells += [f"{self.scores[node_index]:.6g}"] if self.scores is not None else []
            rows.append([*cells, *(f"{self.parts[name][node_index]:.4g}" for name in names)])
            for each in (each for each in self.devices if each.node_index == node_index):
                device_cells = (
                    f"  GPU {each.device}",
                    f"{each.score:.6g}",
                    *(f"{each.parts[name]:.4g}" for name in names),
                )
                rows.append(list(device_cells))
        return header, rows

    def _footnotes(self) -> Iterator[str]:
        more = self.order[_NODES_SHOWN:]
        if more:
            yield f"{_nodes(len(more))}{self._compared(more)}"
        if (lacking := self.feasible - int(self.mask.sum())) > 0:
            yield f"{_nodes(lacking)} {'is' if lacking == 1 else 'are'} not in this record"
        if self.parts:
            hidden = len(self.parts) - _PARTS_SHOWN
            smaller = f"; {hidden} smaller ones are not shown" if hidden > 0 else ""
            yield f"parts: {self.parts_are}{smaller}"
        if self.devices:
            yield "below a node: its GPU devices that the pod may share; the node has the score of the best"
        yield from self.notes
        if self.seconds:
            yield "time: " + ", ".join(f"{name} {_milliseconds(value)} ms" for name, value in self.seconds.items())

    def _compared(self, node_indices: list[int]) -> str:
        """Return how the scores of nodes that are not shown compare with the last one that is."""
        if self.scores is None:
            return ""
        last = self.scores[self.order[_NODES_SHOWN - 1]]
        level = int((self.scores[node_indices] >= last).sum())
        if level in (0, len(node_indices)):
            return f" with {'the score of the last one shown' if level else 'lower scores'}"
        return f": {level} with the score of the last one shown, {len(node_indices) - level} with a lower one"

    # ---- in files ----------------------------------------------------------------------------------------------------

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Return JSON-able values; with `top` only so many of the best nodes and as many of the refused ones.

        How many nodes each filter refused is kept in any case.
        """
        node_indices = self.order if top is None else self.order[:top]
        others = [node_index for node_index, (plugin, _) in enumerate(self.refusals) if plugin]
        kept = node_indices + (others if top is None else others[:top])
        return {
            "pod": self.pod, "asks": self.asks, "policy": self.policy, "number": self.number, "time_s": self.time_s,
            "node": self.node, "feasible": self.feasible, "of": self.of, "margin": self.margin,
            "second": "" if self.second is None else self.nodes[self.second],
            "refused": [[plugin, reason, count] for (plugin, reason), count in self.refused.items()],
            "nodes": [self.nodes[node_index] for node_index in kept],
            "mask": [bool(self.mask[node_index]) for node_index in kept],
            "refusals": [list(self.refusals[node_index]) for node_index in kept],
            "scores": None if self.scores is None else _numbers(self.scores[kept]),
            "parts": {name: _numbers(self.parts[name][kept]) for name in self.telling},
            "parts_are": self.parts_are,
            "chosen": kept.index(self.chosen) if self.chosen in kept else None,
            "seconds": dict(self.seconds), "notes": list(self.notes),
            "devices": [
                [kept.index(each.node_index), each.device, each.score, dict(each.parts)]
                for each in self.devices if each.node_index in kept
            ],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Explanation":
        """Read what `to_dict` wrote; of the nodes that it left out there are the counts. Raises `UserError`."""
        try:
            counts = None
            if fields["of"] > len(fields["nodes"]):
                refused = {(plugin, why): int(count) for plugin, why, count in fields["refused"]}
                counts = Counts(fields["of"], fields["feasible"], refused)
            return cls(
                fields["pod"], fields["asks"], fields["policy"], tuple(fields["nodes"]),
                np.array(fields["mask"], dtype=np.bool_), tuple((plugin, why) for plugin, why in fields["refusals"]),
                None if fields["scores"] is None else _array(fields["scores"]),
                {name: _array(values) for name, values in fields["parts"].items()}, fields["parts_are"],
                fields["chosen"], fields["number"], fields["time_s"], fields["seconds"], tuple(fields["notes"]), counts,
                tuple(OnDevice(*each) for each in fields.get("devices", ())),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"explanation: is not one that was written by aaml ({error!r})") from error


def devices_of(places: Places, mask: BoolArray) -> tuple[OnDevice, ...]:
    """Return what a pod scores on each device of the feasible nodes, where places are devices."""
    return tuple(
        OnDevice(node_index, device, float(places.scores[k]), {name: float(of[k]) for name, of in places.terms.items()})
        for k, (node_index, device) in enumerate(
            zip(places.node_indices.tolist(), places.devices.tolist(), strict=True)
        )
        if device >= 0 and mask[node_index]
    )


def requests_of(pod: Pod) -> str:
    """Return what a pod requests, in words."""
    words = []
    for name, amount in pod.requests.items():
        text = format_cpu(amount) if name == CPU else format_bytes(amount) if name == MEMORY else str(amount)
        words.append(f"{name} {text}")
    if pod.gpu.count:
        whole = pod.gpu.milli >= DEVICE_MILLI
        words.append(f"{pod.gpu.count} GPU" if whole else f"{pod.gpu.milli / DEVICE_MILLI:g} of a GPU")
    return ", ".join(words) or "nothing"


def _nodes(count: int) -> str:
    return f"{count} more feasible node{'s' if count > 1 else ''}"


def _cell(text: str) -> str:
    return f'<td style="white-space: nowrap">{html.escape(text)}</td>'


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"


def _numbers(values: FloatArray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _array(values: list[float | None]) -> FloatArray:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
