"""How a training is judged while it goes on: on fixed episodes, against a reference; the best model is kept."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aaml.experiment.rollouts import Arena
from aaml.scheduling.ports import Policy

VALIDATION_SEEDS = 1 << 30  # validation episodes have seeds from here on: apart from training's and from small ones
SCORE = "Validation/Score"


@dataclass
class Progress:
    """Where a run is: decisions learned from, the best validation score and when it was reached."""

    step: int = 0
    best: float = float("inf")
    best_step: int = -1
    validations: int = 0
    since_best: int = 0

    def judged(self, result: Mapping[str, float]) -> bool:
        """Take a validation into account; returns whether it is the best so far."""
        self.validations += 1
        self.since_best += 1
        if result[SCORE] >= self.best:
            return False
        self.best, self.best_step, self.since_best = result[SCORE], self.step, 0
        return True


class Validation:
    """Judges a policy on fixed episodes, relative to a reference: 1 is as good, below 1 is better."""

    def __init__(self, arena: Arena, sizes: Sequence[int], episodes: int, reference: str) -> None:
        self._arena = arena
        self._jobs = [(VALIDATION_SEEDS + index, size) for size in sizes for index in range(episodes)]
        self._task = arena.task
        self._expected = self._values(arena.policy(reference))

    def __call__(self, policy: Policy) -> dict[str, float]:
        """Return the curves' points: `SCORE` (mean over sizes of the value's ratio, lower is better), the mean metric.

        An agent (what has `learning`) is frozen meanwhile.
        """
        learning = getattr(policy, "learning", None)
        if learning:
            policy.learning = False  # type: ignore[attr-defined]
        values = self._values(policy)
        if learning:
            policy.learning = True  # type: ignore[attr-defined]
        ratios = []
        for size, mine in values.items():
            own, theirs = float(mine[:, 1].mean()), float(self._expected[size][:, 1].mean())
            ratio = own / theirs if theirs else 1.0 + own
            ratios.append(2.0 - ratio if self._task.higher_is_better else ratio)
        metric = float(np.concatenate(list(values.values()))[:, 0].mean())
        return {f"Validation/{self._task.metric}": metric, SCORE: float(np.mean(ratios))}

    def _values(self, policy: Policy) -> dict[int, np.ndarray]:
        """Return by size [episodes, 2]: the metric, and what is judged by."""
        values: dict[int, list[tuple[float, float]]] = {}
        for seed, size in self._jobs:
            metrics = self._arena.play(policy, seed, size)
            values.setdefault(size, []).append((metrics[self._task.metric], self._task.value(metrics)))
        return {size: np.array(each) for size, each in values.items()}


def write_summary(folder: Path, progress: Progress, task: str, reference: str, seconds: float) -> None:
    """Write summary.json: how far a run came and what it was compared with."""
    facts = {**dataclasses.asdict(progress), "seconds": round(seconds, 1), "task": task, "reference": reference}
    (folder / "summary.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
