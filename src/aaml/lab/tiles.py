"""A replay in windows of time, small enough to send: use by groups of nodes, the queue, and the balance."""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from aaml.cluster.quantity import CPU
from aaml.insight.replay import Replay
from aaml.nodes.prices import PriceList
from aaml.telemetry.top import natural

FRAMES = 200  # moments of a window
MOST_GROUPS = 100  # rows of a heat map of all nodes
MOST_OPENED = 400  # rows of one that shows the nodes of a group
_NOTHING = 255  # where a group offers none of a resource
_SCALE = 200.0  # 200 of a byte stand for a use of 1, so that more than all there is shows too


@dataclass(frozen=True, slots=True)
class Groups:
    """The row of a heat map that each node of a replay belongs to (-1: none), and the names of the rows."""

    of: tuple[int, ...]
    names: tuple[str, ...]
    nodes: bool
    """Whether each row is one node."""


def group(replay: Replay, within: Groups | None = None, row: int = -1) -> Groups:
    """Return the rows of a replay's heat map: its nodes, or its racks, or blocks of nodes where there are too many.

    `within` and `row` show the nodes of one row of another grouping. The control plane has no row.
    """
    places = [place for place, node in enumerate(replay.nodes) if not node.is_control_plane]
    if within is not None:
        places = [place for place in places if within.of[place] == row]
    places.sort(key=lambda place: natural(replay.nodes[place].name))
    rack_of = replay.racks
    racks = sorted({rack_of[place] for place in places}, key=natural)
    of = [-1] * len(replay.nodes)
    most = MOST_GROUPS if within is None else MOST_OPENED
    if len(places) <= most:
        for number, place in enumerate(places):
            of[place] = number
        return Groups(tuple(of), tuple(replay.nodes[place].name for place in places), nodes=True)
    if 1 < len(racks) <= MOST_GROUPS and within is None:
        number_of = {rack: number for number, rack in enumerate(racks)}
        for place in places:
            of[place] = number_of[rack_of[place]]
        counts = [sum(rack_of[place] == rack for place in places) for rack in racks]
        names = tuple(f"{rack or '(no rack)'} ({count})" for rack, count in zip(racks, counts, strict=True))
        return Groups(tuple(of), names, nodes=False)
    size = -(-len(places) // most)
    blocks = [places[start : start + size] for start in range(0, len(places), size)]
    for number, block in enumerate(blocks):
        for place in block:
            of[place] = number
    names = tuple(f"{replay.nodes[block[0]].name} ... ({len(block)})" for block in blocks)
    return Groups(tuple(of), names, nodes=False)


def tile(replay: Replay, groups: Groups, start_s: float, end_s: float, prices: PriceList) -> dict[str, Any]:
    """Return `FRAMES` moments from `start_s` to `end_s` as JSON-able values.

    `use` is base64 of bytes [T, G, 4]: 200 stand for all there is, 255 for none that could be used, and for a node that
    is not there. `pending` counts the pods that wait, `spread` is the variance of the nodes' CPU use, `decided` how
    many decisions were made before. `there` counts the nodes, and `dollars` is what they cost an hour by
    `prices`, None where none has a price.
    """
    times = np.linspace(start_s, end_s, FRAMES)
    use = replay.use(times, groups.of)
    with np.errstate(invalid="ignore"):
        levels = np.where(np.isnan(use), _NOTHING, np.clip(use * _SCALE, 0, _NOTHING - 1)).astype(np.uint8)
    there = replay.there(times)[:, : len(groups.of)]
    if groups.nodes:
        for place, row in enumerate(groups.of):
            if row >= 0:
                levels[~there[:, place], row] = _NOTHING
    priced = [prices.price(node) for node in replay.nodes[: len(groups.of)]]
    known = np.array([0.0 if price is None else price for price in priced])
    is_worker = np.array([not node.is_control_plane for node in replay.nodes[: len(groups.of)]], dtype=np.bool_)
    workers = [-1 if node.is_control_plane else place for place, node in enumerate(replay.nodes)]
    of_workers = replay.use(times, workers, (CPU,))[:, :, 0]
    absent = ~replay.there(times)[:, np.flatnonzero(np.array(workers) >= 0)][:, : of_workers.shape[1]]
    spread = np.ma.masked_array(of_workers, absent).var(axis=1).filled(0.0)
    tried, waiting, decided = replay.queue()
    last = np.searchsorted(tried, times, side="right") - 1
    pending = np.where(last >= 0, waiting[last], 0) if len(tried) else np.zeros(FRAMES)
    return {
        "start_s": start_s, "end_s": end_s, "rows": list(groups.names), "nodes": groups.nodes,
        "use": base64.b64encode(levels.tobytes()).decode(),
        "pending": pending.tolist(),
        "spread": spread.tolist(),
        "there": (there & is_worker).sum(axis=1).tolist(),
        "dollars": None if all(price is None for price in priced) else (there @ known).tolist(),
        "decided": (replay.forgotten + np.searchsorted(decided, times, side="right")).tolist(),
    }  # fmt: skip
