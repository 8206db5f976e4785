"""Compiled episodes in lockstep: rounds that groups play to learn from, and those that a policy is evaluated on."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from aaml.cluster.metrics import AVERAGED
from aaml.episodes.batch import BatchedEnv as Lockstep
from aaml.episodes.own_rewards import compiled_reward
from aaml.episodes.rewards import REWARDS
from aaml.errors import StoppedError
from aaml.learning.collate import Batch
from aaml.learning.group_rollouts import Generator, RolloutRecorder, best, choose, pinned, stars
from aaml.learning.networks import Network
from aaml.policies.fragment_meter import FragmentMeter
from aaml.scheduling.observation import NODE
from aaml.sim.task import Task
from aaml.sim.task_episodes import TaskEpisodes
from aaml.training.learner import Stop
from aaml.training.rollouts import TRAINING_SEEDS, EnvFactory
from aaml.training.settings import TrainConfig
from aaml.training.validation import Snapshot

Choose = Callable[[Lockstep], npt.NDArray[np.int64]]
"""What rows see now -> int64 [B], the node that takes each row's pod; what it says of a resting row counts nothing."""
_LARGEST_ROUND = {"cpu": 3_000_000, "cuda": 100_000_000}
"""Nodes of all decisions that a round keeps: of more, a random part is learned from."""


class LockstepCollector:
    """Plays rounds of whole episodes, each by a whole group at once.

    A round's episodes depend on the seed and its number alone. A decision earns what the task's own metric changed by
    until the next, where that is an average over time, or a reward by name.
    """

    def __init__(self, config: TrainConfig, factory: EnvFactory) -> None:
        self._config, self._factory = config, factory
        self._episodes = TaskEpisodes(factory.task, config.pods, config.trace, factory.observation_spec.lifetime_model)
        self._column, self._sign = _measured(factory.task, config.reward)
        self._round = 0
        self._opened: dict[int, Lockstep] = {}

    def play(
        self, number: int, size: int, network: Network, n_step: int, generator: Generator, stop: Stop
    ) -> RolloutRecorder:
        """Play round `number` on clusters of a size to its end. Raises `StoppedError`."""
        config, self._round = self._config.group, number
        if size not in self._opened:
            self._opened[size] = self._open(size, self._config.groups(size), config.group_size, self._seed)
        lockstep, pods = self._opened[size], self._factory.task.size(size, self._config.pods)[1]
        expected = config.sampled * pods * len(lockstep) * size
        record = RolloutRecorder(
            config.group_size, n_step, min(1.0, _LARGEST_ROUND[self._config.device] / max(expected, 1.0))
        )
        lockstep.reset()
        while (going := lockstep.alive).any():
            if stop():
                raise StoppedError
            seen = self._batch(lockstep)
            choice = choose(network, seen, config.sampled, generator)
            record.see(seen, choice, going, generator)
            step = lockstep.step(choice.action.cpu().numpy())
            record.earn(self._sign * (step.reward if self._column is None else step.held[:, self._column]))
        return record

    def evaluate(
        self, network: Network, seeds: Sequence[int], nodes: int, snapshot: Snapshot | None
    ) -> list[Mapping[str, float]]:
        """Return the metrics of episodes that a network plays by its best choices, in the order of their seeds."""
        lockstep = self._open(nodes, len(seeds), 1, lambda group, _: seeds[group])
        return evaluate_in_lockstep(lockstep, lambda rows: best(network, self._batch(rows)).cpu().numpy(), snapshot)

    def _open(self, nodes: int, groups: int, group_size: int, seed: Callable[[int, int], int]) -> Lockstep:
        expected, reward = (
            self._factory.observation_spec.fragmentation,
            self._config.reward or self._factory.task.reward,
        )
        return Lockstep(
            lambda group, number: self._episodes.plan(seed(group, number), nodes),
            groups,
            group_size=group_size,
            observation_spec=self._factory.observation_spec,
            reward=reward if reward in REWARDS else "balance",
            expected=expected if isinstance(expected, FragmentMeter) else None,
            own=compiled_reward(self._config.reward),
            queue_sort=self._factory.queue_sort,
            restart=False,
            zeros=pinned if self._config.device == "cuda" else np.zeros,
        )

    def _batch(self, lockstep: Lockstep) -> Batch:
        """Return what all rows see, on the device of the networks."""
        seen = lockstep.seen
        return stars(seen.nodes, seen.pairs, seen.pod, seen.mask, lockstep.nodes, self._config.device)

    def _seed(self, group: int, _number: int) -> int:
        sequence = np.random.SeedSequence([self._config.seed, self._round, group])
        return TRAINING_SEEDS + int(sequence.generate_state(1)[0])


def evaluate_in_lockstep(batch: Lockstep, choose: Choose, snapshot: Snapshot | None) -> list[Mapping[str, float]]:
    """Play an episode in each row to its end and return their metrics, by row; closes the batch.

    `snapshot` takes what was chosen, and looks at the first row.
    """
    metrics: dict[int, Mapping[str, float]] = {}
    batch.reset()
    nodes = int(batch.nodes[0])
    while batch.alive.any():
        choice = choose(batch)
        if snapshot is not None:
            snapshot.chosen += choice[batch.alive].tolist()
            if batch.alive[0]:
                snapshot.lapse.see(lambda: batch.seen.nodes[0, :nodes, [NODE.cpu_used, NODE.memory_used]].T)
        metrics |= {each.row: each.metrics for each in batch.step(choice).ended}
    batch.close()
    return [metrics[row] for row in range(len(batch))]


def _measured(task: Task, reward: str) -> tuple[int | None, float]:
    """Return the column of what is held that a decision earns, None: its reward; and the sign."""
    metric = "pending_pods" if task.metric == "waiting_mean_s" else task.metric.removeprefix("mean_")
    if reward or metric not in AVERAGED:
        return None, 1.0
    return AVERAGED.index(metric), 1.0 if task.higher_is_better else -1.0
