"""Who decides: the published policies whose rules are public, and ours.

A policy sees the past alone: which zones are up now, for how long, how often each changed, the work and the time left.
It says what it wants to run until the next tick, and in which zone. `Policy` names a rule in compiled code (`_RULES`).
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import inlined
from aaml.errors import UserError
from aaml.schema import read_bytes
from aaml.settings import NotNegative, Positive, Settings, changed

NONE, SPOT, ON_DEMAND = 0, 1, 2
_ALWAYS, _GREEDY, _UNIFORM, _LINE, _LINE_ZONES, _OURS = range(6)
_HOUR_S = 3600.0
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Seen = tuple[BoolArray, FloatArray, IntArray, FloatArray, FloatArray]
"""What a rule sees of the zones: `wish` names its parts."""
Now = tuple[int, int, int, int, int, int, int, int, int]
"""Where a job is: `wish` names the numbers."""


@dataclass(frozen=True)
class Rule(Settings):
    """The numbers of our rule, `restart-budget`. *Slack* is the time left, less the work left, less one restart.

    ============  ================================================================================================
    spot is away  wait while slack > `restarts` restarts + (`share` - `availability` * how much of the time spot was
                  there + `outage_per_hour` * hours that it is away by now) of the work left; else run on-demand
    spot is back  leave on-demand for it once it has been there for `return_restarts` restarts, and `return_h` hours
                  times what restarts ahead (changes an hour, times work left, times a restart) take of the slack,
                  less `early_h` hours
    which zone    the one whose price an hour, and `loss_dollars` over the hours that it has been there and
                  `young_h`, is least: what has lasted lasts
    never         is spot started without time for two restarts, or waited without time for one (`kept`)
    ============  ================================================================================================
    """

    share: float = 0.1124
    """share of the work left by which slack has to be above what restarts take, for waiting"""
    availability: float = 0.069
    """how much less of it where spot was always there, than where it never was"""
    outage_per_hour: float = 0.024
    """how much more of it for every hour of an outage, up to six"""
    restarts: float = 6.2947
    """restarts that slack is kept for"""
    return_restarts: float = 2.2638
    """restarts for whose time spot has to be there before on-demand is left for it"""
    return_h: float = 0.2215
    """hours that it has to be there besides, where restarts ahead would take all slack"""
    early_h: float = 0.3134
    """hours off that"""
    loss_dollars: NotNegative = 1.3272
    """what losing a zone counts"""
    young_h: Positive = 0.0956
    """hours that every zone is taken to have been there before"""


@dataclass(frozen=True)
class Policy:
    """A policy: which rule, what it does in a line, and the rule's numbers."""

    name: str
    rule: int
    about: str
    numbers: Rule = field(default_factory=Rule)

    @property
    def vector(self) -> FloatArray:
        """The numbers as compiled code takes them."""
        return np.array(astuple(self.numbers), dtype=np.float64)


POLICIES: Mapping[str, Policy] = {
    each.name: each
    for each in (
        Policy("on-demand", _ALWAYS, "never spot"),
        Policy("greedy", _GREEDY, "spot or nothing, on-demand once the deadline forces it"),
        Policy("uniform-progress", _UNIFORM, "on-demand where less is done than time has passed (NSDI 2024)"),
        Policy("slack-line", _LINE, "the best published of one zone: wait while slack is above a tenth of the work"),
        Policy("progress-line", _LINE_ZONES, "the best published of several zones: wait while slack is above 5%"),
        Policy("restart-budget", _OURS, "ours"),
    )
}
OURS, BEST_ONE_ZONE, BEST_ZONES = "restart-budget", "slack-line", "progress-line"


def read_rule(path: Path) -> Rule:
    """Return the numbers that `aaml search spot` wrote. Raises `UserError` for a file that holds anything else."""
    accepted = "a JSON file that `aaml search spot` wrote"
    try:
        found = msgspec.json.decode(read_bytes(path, "rule", accepted), type=dict[str, float])
    except msgspec.MsgspecError as error:
        raise UserError(f"rule: {path}: {error}; expected {accepted}") from error
    try:
        return changed(Rule(), found)
    except UserError as error:
        raise UserError(f"rule: {path}: {error}") from error


@inlined
def kept(want: int, current: int, ticks_left: int, left_s: int, overhead_s: int, tick_s: int) -> int:
    """Return what may be done of what is wanted, so that the job is done by its deadline whatever spot does.

    There is always time for a start of on-demand: a tick spent waiting may not use that up. A start of spot may come
    to nothing, so there has to be time for two. While spot runs it delivers what passes, so the rest stays enough.
    """
    if want == SPOT and current != SPOT and _needs(left_s + 2 * overhead_s, tick_s) >= ticks_left:
        return ON_DEMAND
    if want == NONE and _needs(left_s + overhead_s, tick_s) >= ticks_left:
        return ON_DEMAND
    return want


@inlined
def forced(
    want: int, last: int, pending_s: int, is_up: bool, ticks_left: int, left_s: int, overhead_s: int, tick_s: int,
) -> int:  # fmt: skip
    """Return what the published guarantee makes of what is wanted."""
    if _needs(left_s + overhead_s, tick_s) >= ticks_left:
        want = SPOT if last == SPOT and pending_s == 0 else ON_DEMAND
    return NONE if want == SPOT and not is_up else want


@inlined
def _needs(seconds: int, tick_s: int) -> int:
    """Return in how many ticks so many seconds are over."""
    return -(-seconds // tick_s)


@inlined
def remember(
    there: BoolArray, count: int, tick: int, tick_s: int, age: IntArray, share: FloatArray, flips: FloatArray,
) -> None:  # fmt: skip
    """Take in a tick: for how many ticks each zone is up (below 0: away), its share of time up, changes an hour.

    Behind the zones is what holds of them together: whether any is up. Means are of 33 hours, and begin as if half of
    ten hours had been up, with 0.72 changes an hour.
    """
    hours = tick_s / _HOUR_S
    rate = max(hours / (tick * hours + 10.0), hours / 33.3)
    any_up = False
    for zone in range(count + 1):
        up = any_up if zone == count else there[zone, tick]
        any_up |= up
        if tick == 0:
            age[zone], share[zone], flips[zone] = (1 if up else -1), 0.5, 0.72
            continue
        changes = (age[zone] > 0) != up
        age[zone] = (0 if changes else age[zone]) + (1 if up else -1)
        share[zone] += rate * ((1.0 if up else 0.0) - share[zone])
        flips[zone] += rate * ((1.0 / hours if changes else 0.0) - flips[zone])


@inlined
def wish(rule: int, numbers: FloatArray, seen: Seen, now: Now) -> tuple[int, int]:  # noqa: C901, PLR0911, PLR0912
    """Return what a rule wants to run until the next tick, and in which zone.

    `seen` is whether each zone is up [R, T], what it costs an hour [R], and what `remember` knows of it. `now` is how
    many zones there are, the one where it runs or ran, what runs (NONE where spot was just lost), the tick, ticks to
    the deadline, seconds of work left and in all, of a restart, of a tick.
    """
    if rule == _OURS:
        return _restart_budget(numbers, seen, now)
    there, (count, zone, current, tick, ticks_left, left, work, d, tick_s) = seen[0], now
    if rule == _ALWAYS:
        return ON_DEMAND, zone
    up = _any_up(there, count, zone, tick)
    if rule == _GREEDY:
        if _needs(left + 2 * d, tick_s) >= ticks_left:
            return (SPOT if current == SPOT and _needs(left + d, tick_s) < ticks_left else ON_DEMAND), zone
        return (SPOT, up) if up >= 0 else (NONE, zone)
    if rule == _UNIFORM:
        deadline = (tick + ticks_left) * tick_s
        if _needs(left + d, tick_s) >= ticks_left:
            return ON_DEMAND, zone
        if up >= 0:
            return SPOT, up
        expected = tick * tick_s * work / deadline
        ahead = (tick * tick_s + 2 * d) * work / deadline
        behind = expected > work - left or (current == ON_DEMAND and ahead >= work - left)
        return (ON_DEMAND if behind else NONE), zone
    if rule == _LINE:
        slack = ticks_left * tick_s - left - d
        if slack <= tick_s:
            return (SPOT if current == SPOT else ON_DEMAND), zone
        if up >= 0:
            return SPOT, up
        return (NONE if current != ON_DEMAND and slack > 2 * tick_s + 0.1 * left else ON_DEMAND), zone
    total = (tick + ticks_left) * tick_s
    if ticks_left * tick_s <= 1.05 * (left + d):
        return (SPOT if there[zone, tick] else ON_DEMAND), zone
    if up >= 0:
        return SPOT, up
    if work - left >= work / total * tick * tick_s and ticks_left * tick_s - left > 0.05 * total:
        return NONE, ((zone + 1) % count if tick % 10 == 0 else zone)
    return ON_DEMAND, zone


@inlined
def _any_up(there: BoolArray, count: int, zone: int, tick: int) -> int:
    """Return the zone where one is, if it is up, else the first that is; -1 for none."""
    if there[zone, tick]:
        return zone
    for each in range(count):
        if there[each, tick]:
            return each
    return -1


@inlined
def _restart_budget(numbers: FloatArray, seen: Seen, now: Now) -> tuple[int, int]:
    """Return what our rule wants: `Rule` says it in words."""
    there, price, age, share, flips = seen
    count, zone, current, tick, ticks_left, left, _, d, tick_s = now
    share_left, availability, outage_per_hour, restarts = numbers[0], numbers[1], numbers[2], numbers[3]
    return_restarts, return_h, early_h, loss_dollars, young_h = (
        numbers[4],
        numbers[5],
        numbers[6],
        numbers[7],
        numbers[8],
    )
    hours = tick_s / _HOUR_S
    slack = ticks_left * tick_s - left - d
    up, least = -1, 0.0
    for each in range(count):
        if there[each, tick]:
            dear = price[each] + loss_dollars / (age[each] * hours + young_h)
            if up < 0 or dear < least:
                up, least = each, dear
    if up < 0:
        away_h = min(-age[count] * hours, 6.0)
        line = restarts * d + (share_left - availability * share[count] + outage_per_hour * away_h) * left
        want = NONE if current != ON_DEMAND and slack > line else ON_DEMAND
        return kept(want, current, ticks_left, left, d, tick_s), zone
    ahead = flips[up] / _HOUR_S * left * d / max(slack, 1.0)
    least_h = return_restarts * d / _HOUR_S + return_h * ahead - early_h
    stays = current == ON_DEMAND and age[up] * hours < least_h
    return kept(ON_DEMAND if stays else SPOT, current, ticks_left, left, d, tick_s), up
