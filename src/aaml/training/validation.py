"""Validation during training: on fixed episodes, against a reference; the best model is kept."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aaml.cluster.metrics import use_of_nodes
from aaml.evaluation.held_out import check_held_out, episode_of
from aaml.evaluation.policies import frozen
from aaml.evaluation.statistics import mean_interval
from aaml.files import write_json
from aaml.scheduling.curves import VALIDATION_DIFFERENCE, VALIDATION_SCORE, validation_metric
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision, Observer, Outcome, Policy
from aaml.telemetry.timelapse import Timelapse
from aaml.training.rollouts import TRAINING_SEEDS, EnvFactory

_DRAWN = 1 << 32  # seeds of training episodes are drawn from so many
VALIDATION_SEEDS = 1 << 30  # validation episodes have seeds from here on: apart from training's and from small ones


class Snapshot(Observer):
    """What episodes looked like: the nodes chosen in all of them, and the use of nodes over the first one."""

    def __init__(self) -> None:
        self.chosen: list[int] = []
        self.lapse = Timelapse()
        self.episodes = 0

    def on_decision(self, context: Context, decision: Decision, outcome: Outcome) -> None:
        """Take one decision of the simulator; `context.state` holds its pod already."""
        del outcome
        if decision.node_index is not None:
            self.chosen.append(decision.node_index)
        if not self.episodes:
            self.lapse.see(lambda: use_of_nodes(context.state))


Evaluator = Callable[[Sequence[int], int, Snapshot | None], Sequence[Mapping[str, float]]]
"""(seeds, nodes, where to note what it looks like) -> the metrics of an episode for each seed."""


@dataclass
class Progress:
    """Where a run is: decisions learned from, the best validation score and when it was reached."""

    step: int = 0
    best: float = float("inf")
    best_step: int = -1
    validations: int = 0
    since_best: int = 0

    def facts(self, result: Mapping[str, float]) -> dict[str, str]:
        """Return what stands behind a progress bar after a validation."""
        best = {"best": f"{self.best:.3f}"} if math.isfinite(self.best) else {}
        return {"score": f"{result[VALIDATION_SCORE]:.3f}", **best}

    def update(self, result: Mapping[str, float]) -> bool:
        """Take a validation into account; returns whether it is the best so far."""
        self.validations += 1
        self.since_best += 1
        if result[VALIDATION_SCORE] >= self.best:
            return False
        self.best, self.best_step, self.since_best = result[VALIDATION_SCORE], self.step, 0
        return True


class _Played(NamedTuple):
    """Episodes of one size, [episodes]: the task's metric, and what a policy is measured by."""

    metric: np.ndarray
    value: np.ndarray


class Validation:
    """Evaluates a policy on fixed episodes, relative to a reference: 1 is as good, below 1 is better.

    A window of a trace is one, however many `episodes` are asked for.
    """

    def __init__(self, factory: EnvFactory, sizes: Sequence[int], episodes: int, reference: str) -> None:
        self._factory = factory
        self._sizes = sizes
        seeds = range(VALIDATION_SEEDS, VALIDATION_SEEDS + episodes)
        self._seeds = sorted({episode_of(seed, factory.task): seed for seed in reversed(seeds)}.values())
        check_held_out(
            self._seeds, {"training": range(TRAINING_SEEDS, TRAINING_SEEDS + _DRAWN)}, field="validation seeds"
        )
        self._task = factory.task
        self.snapshot = Snapshot()
        """What the policy's episodes looked like the last time, at the first cluster size."""
        self._expected = self._values(self._by_playing(factory.policy(reference)))

    def __call__(self, policy: Policy, evaluate: Evaluator | None = None) -> dict[str, float]:
        """Return a point for each curve: the mean of the task's metric, how it differs, and `VALIDATION_SCORE`.

        The difference from the reference is paired by episode, over all cluster sizes, with its interval. The score is
        the policy's value over the reference's, averaged over the sizes: lower is better. Where values are above zero
        and lower is better it is the geometric mean over the episodes, so that each counts alike. An agent does not
        learn meanwhile. `evaluate` plays the policy's episodes, None: one after the other in the simulator.
        """
        self.snapshot = Snapshot()
        with frozen(policy):
            values = self._values(evaluate or self._by_playing(policy), self.snapshot)
        ratios = []
        for size, mine in values.items():
            ratio = _ratio(mine.value, self._expected[size].value, alike=not self._task.higher_is_better)
            ratios.append(2.0 - ratio if self._task.higher_is_better else ratio)
        metric, reference = (np.concatenate([one.metric for one in each.values()]) for each in (values, self._expected))
        difference = mean_interval(metric - reference)
        interval = (difference.mean, *difference.ends)
        return {
            validation_metric(self._task.metric): float(metric.mean()), VALIDATION_SCORE: float(np.mean(ratios)),
            **dict(zip(VALIDATION_DIFFERENCE, interval, strict=True)),
        }  # fmt: skip

    def _by_playing(self, policy: Policy) -> Evaluator:
        return lambda seeds, size, snapshot: by_playing(self._factory, policy, seeds, size, snapshot)

    def _values(self, evaluate: Evaluator, snapshot: Snapshot | None = None) -> dict[int, "_Played"]:
        """Return by size what the episodes came to."""
        values: dict[int, _Played] = {}
        for size in self._sizes:
            played = evaluate(self._seeds, size, None if values else snapshot)
            values[size] = _Played(
                np.array([each[self._task.metric] for each in played]),
                np.array([self._task.value(each) for each in played]),
            )
        return values


def _ratio(values: np.ndarray, reference: np.ndarray, *, alike: bool) -> float:
    """Return how large values are in terms of a reference's: by each episode `alike`, or by their means."""
    if alike and (values > 0).all() and (reference > 0).all():
        return float(np.exp(np.log(values / reference).mean()))
    own, theirs = float(values.mean()), float(reference.mean())
    return own / theirs if theirs else 1.0 + own


def by_playing(
    factory: EnvFactory, policy: Policy, seeds: Sequence[int], nodes: int, snapshot: Snapshot | None
) -> list[Mapping[str, float]]:
    """Play episodes one after the other in the simulator; returns their metrics."""
    metrics = []
    for seed in seeds:
        metrics.append(factory.play(policy, seed, nodes, () if snapshot is None else (snapshot,)))
        if snapshot is not None:
            snapshot.episodes += 1
    return metrics


def write_summary(folder: Path, progress: Progress, task: str, reference: str, seconds: float) -> None:
    """Write summary.json: how far a run came and what it was compared with."""
    facts = {**dataclasses.asdict(progress), "seconds": round(seconds, 1), "task": task, "reference": reference}
    write_json(folder / "summary.json", facts, indent=2, field="out")
