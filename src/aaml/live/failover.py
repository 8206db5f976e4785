"""When to fail over to another policy: a sequential test of both policies' choices from the same states."""

import copy
import logging
import time
from dataclasses import replace

import numpy as np

from aaml.evaluation.statistics import Bets
from aaml.scheduling.cycle import Reward
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision, Policy
from aaml.scheduling.rewards import range_of

_LOG = logging.getLogger("aaml")
_MISTAKES = 0.01  # chance that a policy that is not worse is ever replaced
_USUAL = (-1.0, 1.0)  # the range of a reward that declares none


class Failover:
    """Compares the reward of a policy's choice with that of the `fallback`'s, from the same state.

    Call `worse` with each decision before it is carried out. Differences of rewards, in units of the reward's range, go
    to `aaml.evaluation.statistics.Bets`: a policy that is no worse than the fallback on average is replaced with a
    chance of 1% at most, however often one looks and however skewed the differences are. The test needs the range of
    the reward (`aaml.scheduling.rewards.range_of`); values outside count as its nearer end. A reward of a person's own
    that declares no range is taken to lie in -1 ... 1, with a warning.

    Explored decisions are not compared. The reward is that of the one placement: what a choice is worth later is not
    seen.

    `share` is the fraction of the time that comparisons may take, because copying the state of a large cluster takes
    milliseconds. Decisions in between are not compared.
    """

    def __init__(self, fallback: Policy, reward: Reward, *, share: float = 0.02) -> None:
        self._fallback, self._reward, self._share = fallback, reward, share
        known = range_of(reward)
        self._low, self._high = known or _USUAL
        if known is None:
            _LOG.warning(
                "the reward says no range: where policies are compared its values count as within %g ... %g; "
                "say it as the attribute `range` of the function or class",
                *_USUAL,
            )  # fmt: skip
        self._bets = Bets()
        self._began_s, self._spent_s = time.monotonic(), 0.0

    def worse(self, context: Context, decision: Decision) -> str | None:
        """Compare, if it is time; returns the verdict in words once the policy is measurably worse, else None."""
        began_s = time.monotonic()
        if (
            decision.node_index is None
            or decision.info.get("explored")
            or self._spent_s > self._share * (began_s - self._began_s)
        ):
            return None
        other = self._fallback.act(context)
        if other.node_index is not None:
            self._bets.add(
                0.0 if other.node_index == decision.node_index else self._difference(context, decision, other)
            )
        self._spent_s += time.monotonic() - began_s
        return self._verdict()

    def _difference(self, context: Context, decision: Decision, other: Decision) -> float:
        """Return the reward of the decision less that of the other, tried on a copy of the state, in -1 ... 1."""
        trial = replace(context, state=context.state.fork())
        worth = []
        for node_index, gpus in ((decision.node_index, decision.gpus), (other.node_index, other.gpus)):
            if node_index is None:
                raise AssertionError("both place the pod")
            reward = copy.deepcopy(self._reward)  # what it remembers of the one is nothing to the other
            reward.before(trial)
            trial.state.assume(trial.pod, trial.state.names[node_index], gpus)
            worth.append(float(np.clip(reward.after(trial, node_index), self._low, self._high)))
            trial.state.forget(trial.pod.uid)
        return (worth[0] - worth[1]) / (self._high - self._low)

    def _verdict(self) -> str | None:
        bets = self._bets
        if not bets.count or bets.capital < 1.0 / _MISTAKES:
            return None
        difference = float(bets.mean) * (self._high - self._low)
        return (
            f"the reward is lower by {-difference:.3g} on average over {bets.count} decisions; "
            f"one that is no worse gets here with a chance of {_MISTAKES:.0%} at most"
        )
