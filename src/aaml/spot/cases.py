"""The published cases: Can't Be Late's 1,080 of one zone, Frontier-CS' twelve, 34 runs over up to nine zones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from aaml.spot.traces import Window, windows_2022, windows_2023

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
HOUR_S = 3600
WORK_S = 48 * HOUR_S
ON_DEMAND, SPOT = 3.06, 0.9731
"""Dollars an hour of the published cases, for every device; of several zones each has a spot price of its own."""
ONE_ZONE, NINE_ZONES = "leaderboard", "nine-zones"
SCARCE = ("us-west-2b_k80_1", "us-west-2b_v100_8", "us-west-2a_v100_8", "us-west-2b_v100_1")
PLENTY = ("us-west-2a_k80_8", "us-west-2b_k80_8", "us-west-2a_v100_1", "us-west-2a_k80_1")
LEADERBOARD = (
    "us-west-2a_k80_8", "us-west-2b_k80_1", "us-west-2b_k80_8",
    "us-west-2a_v100_1", "us-west-2a_v100_8", "us-west-2b_v100_1",
)  # fmt: skip
_WINDOWS = 30  # of the 300 of a zone
SCENARIOS = tuple(  # zones, and how many windows of them are played
    (tuple(f"us-{zone}_v100_1" for zone in zones.split()), windows)
    for zones, windows in (
        ("east-1a east-1c", 8), ("east-2a west-2a", 8), ("east-1a east-2b west-2c", 6),
        ("east-1a east-1c east-1d", 6), ("east-1a east-1f west-2a west-2b east-2b", 4),
        ("east-2a west-2c east-1d east-2b west-2a east-1f east-1a west-2b east-1c", 2),
    )
)  # fmt: skip
_DEADLINES = {"tight": 52, "loose": 70}
_LABELS = {"high": SCARCE, "low": PLENTY, "mixed": (*SCARCE, *PLENTY)}  # Frontier-CS has them the wrong way round
_OVERHEADS = {"small": 0.05, "large": 0.20}


@dataclass(frozen=True, eq=False)
class Cases:
    """C cases over W windows of R zones and T ticks.

    ==================  ===============  ==========================================================================
    up                  bool [W, R, T]   whether spot capacity is there; zones that a window has not are never up
    dollars_per_hour    float64 [W, R]   of spot
    zones               int64 [W]        how many zones a window has
    window              int64 [C]        which one a case is played on
    deadline_s          int64 [C]
    overhead_s          int64 [C]        what starting or changing an instance takes of its time
    weight              float64 [C]      what a case counts in the mean
    ==================  ===============  ==========================================================================

    `group` names what a case is of: its zone and device, or the zones of its scenario.
    """

    up: npt.NDArray[np.bool_]
    dollars_per_hour: FloatArray
    zones: IntArray
    window: IntArray
    deadline_s: IntArray
    overhead_s: IntArray
    weight: FloatArray
    group: tuple[str, ...]
    tick_s: int
    work_s: int = WORK_S

    def mean(self, dollars: FloatArray) -> float:
        """Return the mean of what the cases cost [C]."""
        return float(self.weight @ dollars)

    def score(self, dollars: FloatArray) -> float:
        """Return the published score of what the cases cost [C]: 100 where all of it is spot's hours, 0 on-demand's."""
        hours = self.work_s / HOUR_S
        return 100.0 * (hours * ON_DEMAND - self.mean(dollars)) / (hours * (ON_DEMAND - SPOT))


def one_zone(zones: Sequence[str], deadlines_h: Sequence[float], overheads_h: Sequence[float]) -> Cases:
    """Return the cases of zones and devices of 2022: each window that the benchmark plays, at each pair of numbers."""
    chosen = [(zone, window) for zone in zones for window in evenly(windows_2022()[zone], _WINDOWS)]
    rows = list(product(overheads_h, range(len(chosen)), deadlines_h))
    return cases(
        [[window] for _, window in chosen],
        [(place, round(deadline * HOUR_S), round(overhead * HOUR_S)) for overhead, place, deadline in rows],
        [chosen[place][0] for _, place, _ in rows],
        600,
    )


def several_zones() -> Cases:
    """Return the 34 runs: each scenario counts alike."""
    known = windows_2023()
    runs = [(zones, number, count) for zones, count in SCENARIOS for number in range(count)]
    windows = [[known[zone][number] for zone in zones] for zones, number, _ in runs]
    weights = [1.0 / (len(SCENARIOS) * count) for _, _, count in runs]
    groups = [" ".join(zones) for zones, _, _ in runs]
    rows = [(place, 52 * HOUR_S, 720) for place in range(len(windows))]
    return cases(windows, rows, groups, 195, weights)


def cases(
    windows: Sequence[Sequence[Window]],
    rows: Sequence[tuple[int, int, int]],
    group: Sequence[str],
    tick_s: int,
    weight: Sequence[float] | None = None,
) -> Cases:
    """Return cases of windows [W][R] and rows of (window, deadline in s, restart overhead in s), which count alike."""
    most = max(map(len, windows))
    ticks = min(len(zone.up) for zones in windows for zone in zones)
    up, price = np.zeros((len(windows), most, ticks), dtype=np.bool_), np.full((len(windows), most), np.inf)
    for place, zones in enumerate(windows):
        for zone, window in enumerate(zones):
            up[place, zone] = window.up[:ticks]
            price[place, zone] = window.dollars_per_hour or SPOT
    window, deadline_s, overhead_s = np.ascontiguousarray(np.array(rows, dtype=np.int64).T)
    return Cases(
        up, price, np.array([len(each) for each in windows]), window, deadline_s, overhead_s,
        np.full(len(rows), 1.0 / len(rows)) if weight is None else np.array(weight), tuple(group), tick_s,
    )  # fmt: skip


def evenly(windows: Sequence[Window], count: int) -> list[Window]:
    """Return so many of the windows, the first and the last and those evenly between them."""
    last = len(windows) - 1
    return [windows[round(place * last / (count - 1))] for place in range(count)]


def published(name: str) -> Cases:
    """Return the cases that one of `NAMES` stands for."""
    if name == NINE_ZONES:
        return several_zones()
    if name == ONE_ZONE:
        return one_zone(LEADERBOARD, tuple(_DEADLINES.values()), (0.02, 0.05, 0.1))
    zones, deadline, overhead = name.split("-")
    return one_zone(_LABELS[zones], (_DEADLINES[deadline],), (_OVERHEADS[overhead],))


NAMES: Mapping[str, str] = {
    ONE_ZONE: "Can't Be Late, one zone: 1,080 cases",
    NINE_ZONES: "Can't Be Late, several zones: 34 runs",
    **{
        f"{zones}-{deadline}-{overhead}": f"Frontier-CS: {zones} availability, {deadline} deadline, {overhead} overhead"
        for overhead, zones, deadline in product(_OVERHEADS, _LABELS, _DEADLINES)
    },
}
