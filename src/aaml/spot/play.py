"""The published rules, tick by tick, in one kernel: what a policy pays on each case, and when it is done.

Of each tick, in this order: what ran delivers its seconds of work, less what is left of its restart; the job ends where
none is left, its last tick paid in full; spot is lost where it is not there any more; the policy says what it wants;
the guarantee may want otherwise; who starts, or changes, owes a restart anew.

The published guarantee buys on-demand so late that a spot instance which is lost at that very tick costs a tick too
many, and nobody looks at lateness. The strict one never lets that happen (`aaml.spot.policies.kept`).
"""

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import columns, without_refcount
from aaml.spot.cases import ON_DEMAND as ON_DEMAND_PRICE
from aaml.spot.cases import Cases
from aaml.spot.policies import NONE, ON_DEMAND, SPOT, Policy, forced, kept, remember, wish

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
RESULT = columns(("dollars", "published_dollars", "late_s", "spot", "on_demand", "starts"))
"""Columns of `play`: each tick of spot at its own zone's price, or all at that of the zone where the job ended, as the
published evaluator has it; seconds beyond the deadline; ticks of spot and of on-demand; starts of an instance."""


@without_refcount
def _play(
    rule: int, numbers: FloatArray, strict: bool, up: BoolArray, prices: FloatArray, zones: IntArray, window: IntArray,
    deadline_s: IntArray, overhead_s: IntArray, tick_s: int, work_s: int, age: IntArray, share: FloatArray,
    flips: FloatArray, result: FloatArray,
) -> None:  # fmt: skip
    hours = tick_s / 3600.0
    for case in range(len(window)):
        there, price, count = up[window[case]], prices[window[case]], zones[window[case]]
        d, ticks, line = overhead_s[case], deadline_s[case] // tick_s, result[case]
        left, pending, last, zone, tick = work_s, 0, NONE, 0, 0
        while True:
            if last != NONE:
                done = max(tick_s - pending, 0)
                pending -= tick_s - done
                if done >= left:
                    line[RESULT.late_s] = max(0, tick * tick_s - done + left - deadline_s[case])
                    break
                left -= done
            if tick >= there.shape[1]:
                line[RESULT.dollars] = line[RESULT.late_s] = np.inf
                break
            remember(there, count, tick, tick_s, age, share, flips)
            current = NONE if last == SPOT and not there[zone, tick] else last
            now = (count, zone, current, tick, ticks - tick, left, work_s, d, tick_s)
            want, zone = wish(rule, numbers, (there, price, age, share, flips), now)
            if strict:
                want = kept(want, current, ticks - tick, left, d, tick_s)
            act = forced(want, last, pending, there[zone, tick], ticks - tick, left, d, tick_s)
            if act not in (NONE, current):
                pending = d
                line[RESULT.starts] += 1
            if act == SPOT:
                line[RESULT.dollars] += price[zone] * hours
                line[RESULT.spot] += 1
            elif act == ON_DEMAND:
                line[RESULT.dollars] += ON_DEMAND_PRICE * hours
                line[RESULT.on_demand] += 1
            last = act
            tick += 1
        ran = line[RESULT.spot] * price[zone] + line[RESULT.on_demand] * ON_DEMAND_PRICE
        line[RESULT.published_dollars] = ran * hours if line[RESULT.dollars] < np.inf else np.inf


def play(cases: Cases, policy: Policy, *, strict: bool) -> FloatArray:
    """Return [C, 6], a row a case in the columns of `RESULT`; dollars are inf where the trace ends before the job."""
    zones = cases.up.shape[1] + 1
    result = np.zeros((len(cases.window), len(RESULT)))
    _play(
        policy.rule, policy.vector, strict, cases.up, cases.dollars_per_hour, cases.zones, cases.window,
        cases.deadline_s, cases.overhead_s, cases.tick_s, cases.work_s, np.zeros(zones, dtype=np.int64),
        np.zeros(zones), np.zeros(zones), result,
    )  # fmt: skip
    return result
