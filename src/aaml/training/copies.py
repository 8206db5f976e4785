"""Training in compiled episodes in lockstep: rounds of whole episodes, each played by many copies at once.

A round takes one of the cluster sizes, plays new episodes of the task to their end and learns from them. Its generators
depend on the seed and the number of the round alone, so that an interrupted training goes on to the same weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from aaml.cluster.metrics import AVERAGED
from aaml.errors import bad_value
from aaml.learning.agent import LearnedAgent, first_agent, single_threaded
from aaml.learning.collate import Batch
from aaml.learning.config import Dqn
from aaml.learning.copies import Compared, CopiesActor, CopiesValue, in_copies
from aaml.learning.rounds import Generator, Record, demonstrated, make_generator, stars
from aaml.policies.fragment_meter import FragmentMeter
from aaml.scheduling.ports import RunWriter, Transition
from aaml.sim.compiled.batch import Batch as Lockstep
from aaml.sim.compiled.episodes import TaskEpisodes
from aaml.sim.compiled.rewards import REWARDS
from aaml.sim.tasks import Task
from aaml.training.lockstep import judge_in_lockstep
from aaml.training.rollouts import TRAINING_SEEDS, Arena, demonstrate
from aaml.training.rounds import Stop, StoppedError
from aaml.training.runfolder import RunFolder
from aaml.training.settings import TrainConfig
from aaml.training.validation import Glimpse

_BEGIN: Mapping[str, Mapping[str, float]] = {
    "least-variance": {"cpu_growth_scaled": -1.0, "memory_growth_scaled": -1.0},
    "least-allocated": {"cpu_after": -1.0, "memory_after": -1.0},
    "most-allocated": {"cpu_after": 1.0, "memory_after": 1.0},
}
"""Heuristics that an actor is by a weighted sum of features: it begins as one instead of imitating it."""
_TEN = 10.0  # nodes that horizons are said for
_LARGEST_ROUND = 3_000_000  # nodes of all decisions that a round keeps: of more, a random part is learned from


@dataclass(frozen=True)
class _Reward:
    """What a decision earns: what the task's own metric changed by until the next, or a reward by name."""

    column: int | None
    sign: float
    name: str

    @classmethod
    def of(cls, task: Task, name: str) -> "_Reward":
        metric = "pending_pods" if task.metric == "waiting_mean_s" else task.metric.removeprefix("mean_")
        held = not name and (metric in AVERAGED)
        sign = 1.0 if task.higher_is_better else -1.0
        return cls(AVERAGED.index(metric) if held else None, sign if held else 1.0, name or task.reward)


class CopiesLearner:
    """One of the four agents, learning in rounds (`aaml.training.rounds.Learner`)."""

    def __init__(self, config: TrainConfig, arena: Arena, writer: RunWriter) -> None:
        config.check_method()
        single_threaded()
        self.policy: LearnedAgent = first_agent(config.network, config.begins_with, sees=arena.sees, seed=config.seed)
        self.policy.queue_sort = arena.queue_sort
        self._agent = in_copies(self.policy, config.copying)
        self._config, self._arena, self._writer = config, arena, writer
        self._reward = _Reward.of(arena.task, config.reward)
        self._episodes = TaskEpisodes(arena.task, config.pods, config.trace, arena.sees.expects)
        self._rounds = 0
        self._lockstep: dict[int, Lockstep] = {}

    def begin(self) -> bool:
        """Imitate the teacher, if there is one. What imitates, or goes on from a file, is a model already."""
        config = self._config
        if not config.imitates:
            return config.start is not None
        pieces = demonstrate(self._arena, config.teacher_name, config.seed, config.teacher_steps)
        if not pieces:
            raise bad_value("teacher_steps", config.teacher_steps, "enough decisions for an episode, or 0")
        by_size: dict[int, list[Transition]] = {}
        for step in (step for piece in pieces for step in piece):
            by_size.setdefault(len(step.observation.mask), []).append(step)
        shown = {size: demonstrated(steps) for size, steps in sorted(by_size.items())}
        facts: dict[str, float | str] = {"teacher": config.teacher_name}
        if config.teacher_name in _BEGIN and isinstance(self._agent, CopiesActor):
            self._agent.begin_as(_BEGIN[config.teacher_name], [seen for seen, _ in shown.values()])
        else:
            generator = make_generator(config.seed)
            facts["loss"] = self._agent.imitate(list(shown.values()), config.teacher_passes, generator)
        for size, (seen, action) in shown.items():
            facts[f"agreement at {size} nodes"] = float((self._agent.best(seen) == action).float().mean())
        self._writer.event("warm start", facts)
        return True

    def round(self, step: int, stop: Stop) -> int:
        """Play a round and learn from it."""
        config = self._config
        rng = np.random.default_rng([config.seed, self._rounds])
        generator = make_generator(int(rng.integers(1 << 62)))
        size = int(config.sizes[rng.integers(len(config.sizes))])
        compared, decisions = self._play(size, generator, stop)
        self._rounds += 1
        self.policy.decisions += decisions
        left = max(0.0, 1.0 - step / max(config.steps, 1))
        for name, value in self._agent.learn(compared, left, generator).items():
            self._writer.scalar(name, value, step + decisions)
        return decisions

    def judge(self, seeds: Sequence[int], nodes: int, glimpse: Glimpse | None) -> list[Mapping[str, float]]:
        """Return the metrics of episodes that the agent plays by its best choices, in the order of their seeds."""
        lockstep = self._open(nodes, len(seeds), 1, lambda group, _: seeds[group])
        return judge_in_lockstep(lockstep, lambda rows: self._agent.best(_batch(rows)).numpy(), glimpse)

    def save(self, folder: RunFolder) -> Path:
        """Write the model files."""
        return Path(self.policy.save(str(folder.models), folder.stem)[0])

    def state(self) -> dict[str, Any]:
        """Return what learning goes on from. A DQN's rounds are forgotten here, so that it stays small."""
        if isinstance(self._agent, CopiesValue):
            self._agent.forget()
        self.policy.cut()
        return {"agent": self.policy.state(), "rounds": self._rounds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.policy.restore(state["agent"])
        self._rounds = int(state["rounds"])

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _open(self, nodes: int, groups: int, copies: int, seed: Callable[[int, int], int]) -> Lockstep:
        expected = self._arena.sees.fragmentation
        return Lockstep(
            lambda group, number: self._episodes.plan(seed(group, number), nodes),
            groups,
            copies=copies,
            sees=self._arena.sees,
            reward=self._reward.name if self._reward.name in REWARDS else "balance",
            expected=expected if isinstance(expected, FragmentMeter) else None,
            queue_sort=self._arena.queue_sort,
            restart=False,
        )

    def _training(self, nodes: int) -> Lockstep:
        """Return the rows of a size, made once: about as many nodes in all, whatever the size."""
        if nodes not in self._lockstep:
            config = self._config
            self._lockstep[nodes] = self._open(nodes, config.groups(nodes), config.copying.copies, self._seed)
        return self._lockstep[nodes]

    def _seed(self, group: int, _number: int) -> int:
        sequence = np.random.SeedSequence([self._config.seed, self._rounds, group])
        return TRAINING_SEEDS + int(sequence.generate_state(1)[0])

    def _play(self, size: int, generator: Generator, stop: Stop) -> tuple[Compared, int]:
        """Play a round of a size to its end; returns what is learned from, and how many decisions there were."""
        config, agent, lockstep = self._config.copying, self._agent, self._training(size)
        network = self.policy.config
        ahead = ceil(network.n_step * size / _TEN) if isinstance(network, Dqn) else 0
        pods = self._arena.task.size(size, self._config.pods)[1]
        wanted = config.sampled * pods * len(lockstep) * size
        keep = min(1.0, _LARGEST_ROUND / max(wanted, 1.0))
        record = Record(config.copies, ahead, keep)
        lockstep.reset()
        while (going := lockstep.alive).any():
            if stop():
                raise StoppedError
            seen = _batch(lockstep)
            choice = agent.choose(seen, generator)
            record.see(seen, choice, going, generator)
            step = lockstep.step(choice.action.numpy())
            column = self._reward.column
            record.earn(self._reward.sign * (step.reward if column is None else step.held[:, column]))
        horizon = size / _TEN / max(1.0 - network.gamma, 1e-6)
        return record.compare(1.0 - 1.0 / max(horizon, 1.0)), record.decisions


def _batch(lockstep: Lockstep) -> Batch:
    """Return views of what all rows see."""
    seen = lockstep.seen
    return stars(seen.nodes, seen.pairs, seen.pod, seen.mask, lockstep.nodes)
