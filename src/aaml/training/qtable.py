"""Training a Q-table of a few nodes: an episode a round, or an episode in each of `envs` compiled clusters at once."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from aaml.episodes.batch import BatchedEnv, Episodes
from aaml.episodes.plan import Plan
from aaml.learning.config import QTable
from aaml.learning.qtable import BinnedState, QTableAgent
from aaml.policies.fragment_meter import FragmentMeter
from aaml.scheduling.loop import SchedulingLoop, whole_run
from aaml.scheduling.ports import RunWriter, Step
from aaml.sim.task_episodes import TaskEpisodes
from aaml.training.learner import Learner, Stop, draw_episode
from aaml.training.lockstep import evaluate_in_lockstep
from aaml.training.rollouts import EnvFactory
from aaml.training.settings import TrainConfig
from aaml.training.validation import Snapshot, by_playing

_CURVE_EVERY = 200


class QTableLearner(Learner):
    """Updates the table after every decision; a round is an episode, or one of each cluster in lockstep.

    Episodes are compiled where they can be (`TrainConfig.resolved_method`). Others, with a reward of one's own for
    instance, are played one by one in the simulator.
    """

    def __init__(self, config: TrainConfig, factory: EnvFactory, writer: RunWriter) -> None:
        table = config.learner
        if not isinstance(table, QTable):
            raise TypeError(f"{table.name} is no Q-table")
        asked: Literal["emptiest", "fullest"] = (
            "fullest" if (config.reward or factory.task.reward) == "compress" else "emptiest"
        )
        self.policy: QTableAgent = QTableAgent(
            replace(table, takes=table.takes or asked), observation_spec=factory.observation_spec, seed=config.seed
        )
        self._sizes, self._factory, self._writer = config.sizes, factory, writer
        self._rng = np.random.default_rng(config.seed)
        self._reward, self._compiled = config.reward or factory.task.reward, config.resolved_method == "group"
        self._episodes = TaskEpisodes(factory.task, config.pods, config.trace)
        self._drawn: list[tuple[int, int]] = []
        self._batch = self._open(lambda row, _: self._plan(*self._drawn[row]), config.envs) if self._compiled else None

    def evaluate(self, seeds: Sequence[int], nodes: int, snapshot: Snapshot | None) -> Sequence[Mapping[str, float]]:
        """Play episodes by the best choices, all at once where they are compiled."""
        if self._batch is None:
            return by_playing(self._factory, self.policy, seeds, nodes, snapshot)

        def best(batch: BatchedEnv) -> npt.NDArray[np.int64]:
            return np.array(
                [self.policy.choose(one, explore=False)[0] if one.choices else 0 for one in self._look(batch)]
            )

        return evaluate_in_lockstep(
            self._open(lambda row, _: self._plan(seeds[row], nodes), len(seeds)), best, snapshot
        )

    def round(self, step: int, stop: Stop) -> int:  # noqa: ARG002  (a round is over in a moment)
        """Play an episode, or one in each cluster, and learn from every decision."""
        return self._in_simulator(step) if self._batch is None else self._in_lockstep(self._batch, step)

    def _in_lockstep(self, batch: BatchedEnv, first: int) -> int:
        agent, step = self.policy, first
        self._drawn = [draw_episode(self._rng, self._sizes) for _ in range(len(batch))]
        batch.reset()
        alive, now = batch.alive, self._look(batch)
        while alive.any():
            chosen = [agent.choose(one, explore=True) if able else (0, 0) for one, able in zip(now, alive, strict=True)]
            reward = batch.step([row for row, _ in chosen]).reward.tolist()
            goes_on, following = batch.alive, self._look(batch)
            # Every cluster is taken for one that would go on: a last step, whose continuation nobody saw, is left out.
            for row in np.flatnonzero(goes_on).tolist():
                agent.learn_from(now[row], chosen[row][1], reward[row], following[row])
                step = self._counted(step + 1)
            alive, now = goes_on, following
        return step - first

    def _in_simulator(self, first: int) -> int:
        agent, factory, step = self.policy, self._factory, first
        cluster = factory.build(*draw_episode(self._rng, self._sizes))
        loop = SchedulingLoop(
            cluster,
            agent,
            factory.reward(),
            observation_of=agent.observation_of,
            episodes=whole_run(continuing=True),
        )
        for event in loop.events():
            if isinstance(event, Step) and event.transition is not None and not event.transition.truncated:
                agent.observe(event.transition)
                step = self._counted(step + 1)
        return step - first

    def _counted(self, step: int) -> int:
        if step % _CURVE_EVERY == 0:
            for name, value in self.policy.learn().items():
                self._writer.scalar(name, value, step)
        return step

    def _plan(self, seed: int, nodes: int) -> Plan:
        return self._episodes.plan(seed, nodes)

    def _open(self, episodes: Episodes, rows: int) -> BatchedEnv:
        expected = self._factory.observation_spec.fragmentation
        return BatchedEnv(
            episodes, rows, observation_spec=self.policy.observation_spec, reward=self._reward, restart=False,
            threads=1, expected=expected if isinstance(expected, FragmentMeter) else None,
            queue_sort=self._factory.queue_sort,
        )  # fmt: skip

    def _look(self, batch: BatchedEnv) -> list[BinnedState]:
        seen = batch.seen
        return self.policy.look(seen.nodes, seen.pod, seen.mask, batch.nodes.tolist())

    def state(self) -> dict[str, Any]:
        """Return the table and both generators."""
        return {"agent": self.policy.state(), "rng": json.dumps(self._rng.bit_generator.state)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.policy.restore(state["agent"])
        self._rng.bit_generator.state = json.loads(state["rng"])
