"""When a policy is to step aside: its choices against another one's, from the same states."""

import time
from dataclasses import replace

from aaml.evaluation.statistics import RunningInterval
from aaml.scheduling.cycle import Reward
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision, Policy

ROUND = 1000  # comparisons after which the counting begins anew, for what was true long ago may not be so today
_LEAST = 100  # comparisons before a verdict: the interval is that of many
_MISTAKES = 0.01  # chance that a policy that is not worse is ever made to step aside


class HandOver:
    """Compares the reward of a policy's choice with that of the `fallback`'s, from the same state.

    `worse` is called with each decision before it is carried out. Differences are summed up by an interval that holds
    at all times at once, so that it may be looked at after each of them; every `ROUND` comparisons a new one begins,
    each with a smaller share of the 1% chance that a policy which is not worse is made to step aside (shares of
    1 / (k (k + 1)), which sum to 1). Decisions by which the policy only tries something out do not count. The reward is
    that of the one placement: what a choice is worth later is not seen.

    `share` is the part of the time that comparisons may take, as a copy of a large cluster's state takes milliseconds:
    decisions in between are not compared.
    """

    def __init__(self, fallback: Policy, reward: Reward, *, share: float = 0.02) -> None:
        self._fallback, self._reward, self._share = fallback, reward, share
        self._round = 1
        self._interval = RunningInterval(_MISTAKES / 2.0)
        self._began_s, self._spent_s = time.monotonic(), 0.0

    def worse(self, context: Context, decision: Decision) -> str | None:
        """Compare, if it is time; returns the verdict in words once the policy is measurably worse, else None."""
        began_s = time.monotonic()
        if (
            decision.row is None
            or decision.info.get("explored")
            or self._spent_s > self._share * (began_s - self._began_s)
        ):
            return None
        other = self._fallback.act(context)
        if other.row is not None:
            self._interval.add(0.0 if other.row == decision.row else self._difference(context, decision, other))
        self._spent_s += time.monotonic() - began_s
        return self._verdict()

    def _difference(self, context: Context, decision: Decision, other: Decision) -> float:
        """Return the reward of the decision less that of the other, tried on a copy of the state."""
        trial = replace(context, state=context.state.fork())
        worth = []
        for row, gpus in ((decision.row, decision.gpus), (other.row, other.gpus)):
            if row is None:
                raise AssertionError("both place the pod")
            self._reward.before(trial)
            trial.state.assume(trial.pod, trial.state.names[row], gpus)
            worth.append(self._reward.after(trial, row))
            trial.state.forget(trial.pod.uid)
        return worth[0] - worth[1]

    def _verdict(self) -> str | None:
        interval = self._interval
        if interval.count < _LEAST:
            return None
        if interval.high < 0.0:
            return f"difference of rewards {interval} over {interval.count} decisions"
        if interval.count >= ROUND:
            self._round += 1
            self._interval = RunningInterval(_MISTAKES / (self._round * (self._round + 1)))
        return None
