"""What commitments have paid for on a recording's nodes, and what more of them would have saved.

Hours are settled as a cloud settles them, each clock hour by itself. What one more dollar an hour saves in an hour is
what it pays for, less the dollar; at the best amount x of a plan with the discount d, P(spend that it could pay for >
x / (1 - d)) = 1 - d.

Neighbouring hours are alike, so intervals are over blocks of 24 hours, of which there are at least five. In a shorter
recording they are over hours, and narrower than what is unknown.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Node
from aaml.errors import UserError
from aaml.evaluation.statistics import LEAST_SEEDS, Interval, mean_interval
from aaml.nodes.commitments import Commitments, Covered, Pool
from aaml.nodes.prices import PriceList, kind, usd
from aaml.nodes.usage import HOUR_S, Hours, Usage, pool_of
from aaml.telemetry.tables import plain, table
from aaml.workload.trace.events import NodeGone, NodeSeen
from aaml.workload.trace.trace import Trace

FloatArray = npt.NDArray[np.float64]
_DAY, _WHOLE = 24, 20.0  # clock hours of a block, of which so many were looked at
_MOST_TRIED, _FINER = 200, 41  # amounts
_ALIKE = 1e-9  # of dollars or amounts that are as good as one


@dataclass(frozen=True)
class EvaluatedCommitment:
    """A commitment on a recording's nodes; dollars an hour.

    `one_more`: what one more dollar an hour of a plan, or one more instance, would have saved. `best`: the amount that
    would have cost the least with all others as they are, which would have saved `best_saves`.
    """

    name: str
    amount: float
    per_hour: float
    used_per_hour: float
    one_more: Interval
    best: float
    best_saves: Interval


@dataclass(frozen=True)
class RecordedBill:
    """What a recording's nodes have cost with commitments, dollars an hour on average over `hours`.

    `alone_per_hour`: what all would have cost on demand. `spot_per_hour`: spot nodes, in none of the others.
    `blocks`: what intervals are over, in words. `unpriced`: nodes without a price by type, which are left out.
    """

    source: str
    hours: float
    per_hour: Covered
    alone_per_hour: float
    spot_per_hour: float
    blocks: str
    lines: tuple[EvaluatedCommitment, ...]
    unpriced: dict[str, int]

    def to_json(self) -> str:
        """Return it as a line of JSON; ends of intervals that are not known are null."""
        content = asdict(self)
        for line in content["lines"]:
            for name in ("one_more", "best_saves"):
                line[name] = {key: value if np.isfinite(value) else None for key, value in line[name].items()}
        return json.dumps(content)

    def text(self) -> str:
        """Return it as text."""
        of = self.per_hour
        used = f", {1.0 - of.unused / of.committed:.0%} used" if of.committed else ""
        spot = f", spot ${usd(self.spot_per_hour)}" if self.spot_per_hour else ""
        lines = [
            (
                f"{self.source}: {self.hours:.4g} h recorded, ${usd(of.paid + self.spot_per_hour)} an hour; "
                f"without commitments ${usd(self.alone_per_hour + self.spot_per_hour)}"
            ),
            (
                f"commitments ${usd(of.committed)} an hour{used}, for nodes of ${usd(of.covered)}; "
                f"unused ${usd(of.unused)}; nodes on demand ${usd(of.on_demand)}{spot}"
            ),
        ]
        if self.unpriced:
            types = ", ".join(f"{name} ({count})" for name, count in sorted(self.unpriced.items()))
            lines.append(f"left out, without a price: {types}")
        drawn = table(
            ("commitment", "$ an hour", "used", "one more saves, $ an hour", "best", "it saves, $ an hour"),
            (
                (each.name, usd(each.per_hour),
                 f"{each.used_per_hour / each.per_hour:.0%}" if each.per_hour else "",
                 f"{each.one_more:+}", f"{each.best:.4g}",
                 "" if each.best == each.amount else f"{each.best_saves:+}")
                for each in self.lines
            ),
            right=("$ an hour", "used", "best"),
        )  # fmt: skip
        notes = [
            f"one more: a dollar an hour, or an instance. 95% intervals over {self.blocks}",
            "best: the amount that costs least in these hours, which the next ones may not repeat",
        ]
        return "\n".join((*lines, "", plain(drawn), "", *notes))


def evaluate_commitments(trace: Trace, prices: PriceList, commitments: Commitments) -> RecordedBill:
    """Return what commitments have paid for on the nodes of a recording.

    Raises `UserError` for a trace in which no time was recorded, or no node has a price.
    """
    usage, spot, unpriced = _recorded(trace, prices)
    found = usage.by_hour(commitments)
    hours = float(found.hours.sum())
    if not hours:
        raise UserError(f"trace {trace.name}: no time was recorded in it")
    if not found.nodes.any() and not spot:
        raise UserError(f"trace {trace.name}: none of its nodes has a price; give one by type (instance_types)")
    total = found.total
    per_hour = Covered(*(each / hours for each in (total.committed, total.unused, total.covered, total.on_demand)))
    blocks, told = _blocks(found)
    return RecordedBill(
        trace.name, hours, per_hour, (total.covered + total.on_demand) / hours, spot / hours, told,
        tuple(_evaluated(found, which, blocks) for which in range(len(commitments.names))), dict(unpriced),
    )  # fmt: skip


def _evaluated(found: Hours, which: int, blocks: Sequence[npt.NDArray[np.int64]]) -> EvaluatedCommitment:
    book, amounts = found.book, found.book.amounts
    units, hours = book.commitments.unit_dollars, float(found.hours.sum())
    now, used = found.with_amounts(amounts)

    def saved(amount: float) -> Interval:
        other = amounts.copy()
        other[which] = amount
        dollars = now - found.with_amounts(other)[0]
        return mean_interval([float(dollars[block].sum() / found.hours[block].sum()) for block in blocks])

    best = _best(found, which)
    return EvaluatedCommitment(
        book.commitments.names[which], float(amounts[which]), float(amounts[which] * units[which]),
        float(used[:, which].sum() * units[which] / hours), saved(float(amounts[which]) + 1.0), best, saved(best),
    )  # fmt: skip


def _best(found: Hours, which: int) -> float:
    """Return the amount of a commitment that would have cost the least; of several the smallest.

    Costs bend where an hour has used all that it can. They also bend where commitments that come later in the order are
    left with less, which is looked for more and more finely.
    """
    amounts, whole = found.book.amounts.copy(), which < len(found.book.commitments.reservations)

    def costs(tried: FloatArray) -> FloatArray:
        dollars = []
        for amount in tried.tolist():
            amounts[which] = amount
            dollars.append(found.with_amounts(amounts)[0].sum())
        return np.array(dollars)

    now = float(amounts[which])
    amounts[which] = np.inf
    used = found.with_amounts(amounts)[1][:, which] / found.hours
    tried = np.unique([0.0, now, *(np.concatenate([np.floor(used), np.ceil(used)]) if whole else used).tolist()])
    if len(tried) > _MOST_TRIED:
        tried = np.unique([now, *np.quantile(tried, np.linspace(0.0, 1.0, _MOST_TRIED), method="nearest").tolist()])
    dollars = costs(tried)
    least = dollars.min()
    best = float(tried[np.argmax(dollars <= least + _ALIKE * abs(least))])
    low, high = 0.0, float(used.max())
    while high - low > (1.0 if whole else _ALIKE * high):
        near = np.linspace(low, high, _FINER)
        near = np.unique(np.round(near)) if whole else near
        dollars = costs(near)
        place = int(np.argmin(dollars))
        if dollars[place] < least - _ALIKE * abs(least):
            least, best = dollars[place], float(near[place])
        around = float(near[max(place - 1, 0)]), float(near[min(place + 1, len(near) - 1)])
        if around == (low, high):
            break
        low, high = around
    return best


def _blocks(found: Hours) -> tuple[list[npt.NDArray[np.int64]], str]:
    """Return the hours of each block that intervals are over, and what blocks are, in words."""
    day = (found.begins - found.begins[0]) // _DAY
    days = [np.flatnonzero(day == number) for number in np.unique(day)]
    whole = [each for each in days if found.hours[each].sum() >= _WHOLE]
    if len(whole) >= LEAST_SEEDS:
        return whole, f"{len(whole)} blocks of {_DAY} hours"
    hours = [np.array([place]) for place in range(len(found.hours))]
    counted = "1 clock hour" if len(hours) == 1 else f"{len(hours)} clock hours"
    return hours, f"{counted}: under {LEAST_SEEDS} days, which is too short to tell a day from a week"


# ---- what was recorded -----------------------------------------------------------------------------------------------


def _recorded(trace: Trace, prices: PriceList) -> tuple[Usage, float, Counter[str]]:
    """Return for how long nodes were there, what spot nodes cost, and the nodes without a price by type."""
    usage, spot, unpriced = Usage(), 0.0, dict[str, str]()
    for since_s, until_s in _looked_at(trace, 0.0, trace.end_s):
        usage.observe(trace.began_s + since_s, trace.began_s + until_s)
    for node, since_s, until_s in _spans(trace):
        price = prices.price(node)
        if price is None:
            unpriced[node.name] = kind(node)
            continue
        pool: Pool | None = pool_of(node, price)
        for from_s, to_s in _looked_at(trace, since_s, until_s):
            if pool is None:
                spot += price * (to_s - from_s) / HOUR_S
            else:
                usage.add(pool, trace.began_s + from_s, trace.began_s + to_s)
    return usage, spot, Counter(unpriced.values())


def _spans(trace: Trace) -> Iterator[tuple[Node, float, float]]:
    """Yield the workers, each from when it was seen, or seen to change, until then or until it went."""
    there: dict[str, tuple[Node, float]] = {}
    for event in trace.events:
        name = event.node.name if isinstance(event, NodeSeen) else event.name if isinstance(event, NodeGone) else None
        if name is None:
            continue
        if (before := there.pop(name, None)) is not None:
            yield (*before, event.at)
        if isinstance(event, NodeSeen) and not event.node.is_control_plane:
            there[name] = event.node, event.at
    yield from ((node, since_s, trace.end_s) for node, since_s in there.values())


def _looked_at(trace: Trace, since_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    """Yield the parts of a time in which the cluster was recorded."""
    for gap_s, end_s in sorted(trace.gaps):
        if gap_s > since_s:
            yield since_s, min(gap_s, until_s)
        since_s = max(since_s, end_s)
        if since_s >= until_s:
            return
    if since_s < until_s:
        yield since_s, until_s
