"""Training a Q-table of a few nodes: an episode a round."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aaml.learning.config import QTable
from aaml.learning.qtable import QTableAgent
from aaml.scheduling.ports import RunWriter, Step
from aaml.scheduling.walk import Walk, whole_run
from aaml.training.rollouts import Arena
from aaml.training.rounds import Stop, draw_episode
from aaml.training.runfolder import RunFolder
from aaml.training.settings import TrainConfig
from aaml.training.validation import Glimpse, by_playing

_CURVE_EVERY = 200


class QTableLearner:
    """Plays an episode a round and updates the table after every decision."""

    def __init__(self, config: TrainConfig, arena: Arena, writer: RunWriter) -> None:
        table = config.learner
        if not isinstance(table, QTable):
            raise TypeError(f"{table.name} is no Q-table")
        asked: Literal["emptiest", "fullest"] = (
            "fullest" if (config.reward or arena.task.reward) == "compress" else "emptiest"
        )
        self.policy = QTableAgent(replace(table, takes=table.takes or asked), sees=arena.sees, seed=config.seed)
        self._sizes, self._arena, self._writer = config.sizes, arena, writer
        self._rng = np.random.default_rng(config.seed)

    def begin(self) -> None:
        """Begin from nothing."""

    def judge(self, seeds: Sequence[int], nodes: int, glimpse: Glimpse | None) -> Sequence[Mapping[str, float]]:
        """Play episodes one after the other."""
        return by_playing(self._arena, self.policy, seeds, nodes, glimpse)

    def round(self, step: int, stop: Stop) -> int:  # noqa: ARG002  (an episode is over in a moment)
        """Play one episode."""
        agent, arena, first = self.policy, self._arena, step
        cluster = arena.build(*draw_episode(self._rng, self._sizes))
        # Every cluster is taken for one that would go on: the last step, whose continuation nobody saw, is left out.
        walk = Walk(cluster, agent, arena.reward(), perceive=agent.perceive, episodes=whole_run(continuing=True))
        for event in walk.events():
            if isinstance(event, Step) and event.transition is not None and not event.transition.truncated:
                agent.observe(event.transition)
                step += 1
                if step % _CURVE_EVERY == 0:
                    for name, value in agent.learn().items():
                        self._writer.scalar(name, value, step)
        return step - first

    def save(self, folder: RunFolder) -> Path:
        """Write the table."""
        return Path(self.policy.save(str(folder.models), folder.stem)[0])

    def state(self) -> dict[str, Any]:
        """Return the table and both generators."""
        return {"agent": self.policy.state(), "rng": json.dumps(self._rng.bit_generator.state)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.policy.restore(state["agent"])
        self._rng.bit_generator.state = json.loads(state["rng"])
