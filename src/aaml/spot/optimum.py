"""What somebody would pay who knew beforehand when spot is there, and is never late: the ceiling of every score.

Dynamic programming, backwards over ticks. The state is the slack (seconds to the deadline less seconds of work left),
in steps that divide a tick and a restart, and what runs: nothing; nothing, because spot was just lost; spot or
on-demand, with so much of its restart left. Zones need no state: a living spot instance changes its zone at no cost.
"""

from math import gcd, inf

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import with_refcount
from aaml.spot.cases import ON_DEMAND as ON_DEMAND_PRICE
from aaml.spot.cases import Cases

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
_IDLE, _LOST, _SPOT = 0, 1, 2


@with_refcount
def _cheapest(  # noqa: C901
    up: BoolArray, price: FloatArray, deadline: int, d: int, work: int, tick: int, step: int, guarantee: bool,
) -> float:  # fmt: skip
    """Return the dollars of one case; `up` [R, T], `price` [R] a tick of each zone and last that of on-demand."""
    levels = max(-(-d // tick), 1)  # of what may be left of a restart: none, then d - tick, d - 2 tick ...
    on_demand = _SPOT + levels
    slacks = (deadline * tick - work) // step + 1
    value, later = np.full((slacks, on_demand + levels), inf), np.full((slacks, on_demand + levels), inf)
    for k in range(deadline - 1, -1, -1):
        here, lasting = inf, inf  # the cheapest zone that is up, and that is up at the next tick too
        for zone in range(up.shape[0]):
            if up[zone, k]:
                here = min(here, price[zone])
                if k + 1 < up.shape[1] and up[zone, k + 1]:
                    lasting = min(lasting, price[zone])
        for s in range(slacks):
            left = (deadline - k) * tick - s * step
            if left <= 0:
                value[s] = 0.0
                continue
            critical = guarantee and s * step < tick + d
            idle = later[s - tick // step, _IDLE] if s * step >= tick else inf
            fresh_spot, fresh = inf, inf
            for level in range(levels, -1, -1):  # the last one is that of a start; it is looked at first
                pending = 0 if level == 0 else d - (level % levels) * tick
                done = max(tick - pending, 0)
                rest = pending - (tick - done)
                after = 0 if rest == 0 else level % levels + 1
                lost = (tick - done) // step
                spot, demand = inf, inf
                if done >= left:
                    spot, demand = here, price[-1]
                elif s >= lost:
                    spot = min(
                        lasting + later[s - lost, _SPOT + after], here + later[s - lost, _LOST if after == 0 else _IDLE]
                    )
                    demand = price[-1] + later[s - lost, on_demand + after]
                if level == levels:
                    fresh_spot, fresh = spot, demand
                    anew = min(idle, fresh_spot, fresh)
                    value[s, _IDLE] = fresh if critical else anew
                    value[s, _LOST] = min(idle, fresh_spot) if critical else anew
                elif critical:
                    value[s, _SPOT + level] = spot if level == 0 else fresh
                    value[s, on_demand + level] = demand
                else:
                    value[s, _SPOT + level] = min(idle, spot, fresh)
                    value[s, on_demand + level] = min(idle, fresh_spot, demand)
        value, later = later, value
    return later[slacks - 1, _IDLE]


def optimum(cases: Cases, *, guarantee: bool = True) -> FloatArray:
    """Return [C], the least that a case could cost; inf where its deadline cannot be kept.

    Each tick of spot is paid at its own zone's price. With `guarantee` the published guarantee buys on-demand as it
    does for every policy; without, whoever knows the future needs none.
    """
    hours = cases.tick_s / 3600.0
    found = np.zeros(len(cases.window))
    for case, window in enumerate(cases.window):
        d, prices = int(cases.overhead_s[case]), cases.dollars_per_hour[window]
        step = gcd(cases.tick_s, d)
        found[case] = _cheapest(
            cases.up[window], np.append(prices, ON_DEMAND_PRICE) * hours, cases.deadline_s[case] // cases.tick_s, d,
            cases.work_s, cases.tick_s, step, guarantee,
        )  # fmt: skip
    return found
