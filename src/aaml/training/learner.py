"""What the trainer needs of whatever learns: a round at a time, until it is told to stop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aaml.training.rollouts import TRAINING_SEEDS, EnvFactory
from aaml.training.runfolder import RunFolder
from aaml.training.validation import Snapshot, by_playing

Stop = Callable[[], bool]


class Learner(ABC):
    """What learns in rounds: an episode, a generation, some decisions of each cluster, episodes of groups."""

    policy: Any
    """What was learned so far."""
    _factory: EnvFactory

    def begin(self) -> bool:
        """Do what comes before the first round; returns whether there is a model to keep then: none by default."""
        return False

    @abstractmethod
    def round(self, step: int, stop: Stop) -> int:
        """Learn for a while from decision number `step` on; returns the decisions. Raises `StoppedError`."""

    def settle(self) -> Mapping[str, float]:
        """Learn from what was gathered and let go of what is not saved, before a validation; returns scalars."""
        return {}

    def evaluate(self, seeds: Sequence[int], nodes: int, snapshot: Snapshot | None) -> Sequence[Mapping[str, float]]:
        """Return the metrics of episodes that the policy plays, in the order of their seeds: one after the other."""
        return by_playing(self._factory, self.policy, seeds, nodes, snapshot)

    def save(self, folder: RunFolder) -> Path:
        """Write the model and return its path: the first of several."""
        return Path(self.policy.save(str(folder.models), folder.stem)[0])

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what learning goes on from, as plain values, after `settle`."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""


def draw_episode(rng: np.random.Generator, sizes: Sequence[int]) -> tuple[int, int]:
    """Return (seed, number of nodes)."""
    return TRAINING_SEEDS + int(rng.integers(1 << 30)), sizes[int(rng.integers(len(sizes)))]
