"""Learning by group rollouts: rounds of whole episodes in lockstep, each played by a whole group at once.

A round takes one of the cluster sizes, plays new episodes of the task to their end and learns from them. Its generators
depend on the seed and the number of the round alone, so that an interrupted training goes on to the same weights.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from aaml.learning.agents import first_agent
from aaml.learning.algorithms.imitation import fit_temperature, init_from
from aaml.learning.group_rollouts import (
    agreement,
    check_device,
    demonstrations,
    make_generator,
)
from aaml.learning.policy import single_threaded
from aaml.scheduling.ports import RunWriter
from aaml.training.learner import Learner, Stop
from aaml.training.lockstep import LockstepCollector
from aaml.training.rollouts import EnvFactory, demonstrate
from aaml.training.settings import TrainConfig
from aaml.training.validation import Snapshot

if TYPE_CHECKING:
    from aaml.learning.agent import NeuralAgent

_BEGIN: Mapping[str, Mapping[str, float]] = {
    "least-variance": {"cpu_growth_scaled": -1.0, "memory_growth_scaled": -1.0},
    "least-allocated": {"cpu_after": -1.0, "memory_after": -1.0},
    "most-allocated": {"cpu_after": 1.0, "memory_after": 1.0},
}
"""Heuristics that an actor is by a weighted sum of features: it begins as one instead of imitating it."""


class GroupLearner(Learner):
    """One of the four agents, learning in rounds."""

    def __init__(self, config: TrainConfig, factory: EnvFactory, writer: RunWriter) -> None:
        config.check_method()
        check_device(config.device)
        single_threaded()
        self.policy: NeuralAgent = first_agent(
            config.network,
            config.begins_with,
            observation_spec=factory.observation_spec,
            seed=config.seed,
            averaged=True,
        )
        self.policy.to(config.device)
        self.policy.queue_sort = factory.queue_sort
        self._config, self._factory, self._writer = config, factory, writer
        self._collector = LockstepCollector(config, factory)
        self._rounds = 0

    def begin(self) -> bool:
        """Imitate the teacher, if there is one. What imitates, or goes on from a file, is a model already."""
        config, network = self._config, self.policy.network
        if not config.imitates:
            return config.start is not None
        pieces = demonstrate(self._factory, config.teacher_name, config.seed, config.teacher_steps)
        shown = demonstrations([step for piece in pieces for step in piece], config.device)
        facts: dict[str, float | str] = {"teacher": config.teacher_name}
        acts = network.spec.head == "actor"
        if config.teacher_name in _BEGIN and acts:
            init_from(network, _BEGIN[config.teacher_name])
        else:
            facts["loss"] = self.policy.imitate(list(shown.values()), config.teacher_passes)
        if acts:
            fit_temperature(network, list(shown.values()))
        for size, each in shown.items():
            facts[f"agreement at {size} nodes"] = agreement(network, each)
        self._writer.event("warm start", facts)
        return True

    def round(self, step: int, stop: Stop) -> int:
        """Play a round and learn from it."""
        config, agent = self._config, self.policy
        rng = np.random.default_rng([config.seed, self._rounds])
        generator = make_generator(int(rng.integers(1 << 62)), config.device)
        size = int(config.sizes[rng.integers(len(config.sizes))])
        longer = size / config.group.horizon_nodes
        n_step = ceil(agent.n_step * longer)
        record = self._collector.play(self._rounds, size, agent.network, n_step, generator, stop)
        horizon = max(1.0, longer / max(1.0 - agent.config.gamma, 1e-6))
        left = max(0.0, 1.0 - step / max(config.steps, 1))
        for name, value in agent.learn_group(record, 1.0 - 1.0 / horizon, left, generator).items():
            self._writer.scalar(name, value, step + record.decisions)
        self._rounds += 1
        agent.updates += 1
        agent.decisions += record.decisions
        return record.decisions

    def settle(self) -> Mapping[str, float]:
        """Forget the rounds kept, so that what a run goes on from stays small."""
        self.policy.forget_groups()
        return {}

    def evaluate(self, seeds: Sequence[int], nodes: int, snapshot: Snapshot | None) -> list[Mapping[str, float]]:
        """Return the metrics of episodes that the agent plays by its best choices, in the order of their seeds."""
        return self._collector.evaluate(self.policy.network, seeds, nodes, snapshot)

    def state(self) -> dict[str, Any]:
        """Return what learning goes on from."""
        return {"agent": self.policy.state(experience=False), "rounds": self._rounds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.policy.restore(state["agent"])
        self._rounds = int(state["rounds"])
