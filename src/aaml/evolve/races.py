"""What a formula is worth: its losses on fixed episodes, relative to a reference that meets the same arrivals.

The loss on an episode is log(metric / reference's metric) where lower is better and both are above zero, and otherwise
by how much the metric is worse than the reference's. Losses of two formulas are compared in pairs, episode by episode:
what the arrivals do to both cancels out.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count as count_from

import numpy as np
import numpy.typing as npt

from aaml.episodes.formulas import FormulaEpisodes
from aaml.evaluation.held_out import episode_of
from aaml.evaluation.statistics import mean_bounds
from aaml.evolve.settings import EvolveConfig
from aaml.policies.formulas.expression import FEATURES, NUMBERED
from aaml.policies.formulas.policy import columns_of
from aaml.policies.formulas.program import INSTRUCTION, Program, registers_of
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.observation import PLAIN, Context, Observation, ObservationSpec
from aaml.scheduling.play import play
from aaml.scheduling.ports import Decision, Policy
from aaml.sim.task import Task
from aaml.sim.task_episodes import TaskEpisodes
from aaml.training.rollouts import TRAINING_SEEDS, EnvConfig, EnvFactory

FloatArray = npt.NDArray[np.float64]
FIRST_BLOCK = 8
"""Episodes that every formula plays; those that are not clearly worse then play as many again, and so on."""
_MISTAKES = 0.05  # chance that a race drops a formula that is as good as the one it is compared with, at most
_PROBES = 256


def relative(task: Task, value: float, reference: float) -> float:
    """Return the loss of a metric's value, relative to the reference's on the same episode."""
    if task.higher_is_better:
        return reference - value
    return math.log(value / reference) if value > 0.0 and reference > 0.0 else value - reference


def training_seed(config: EvolveConfig) -> int:
    """Return the first seed of the episodes that a search sees."""
    return TRAINING_SEEDS + 1_000_000 * config.seed


@dataclass(frozen=True)
class Scores:
    """Losses on the first episodes, in their order; `loss` is what stands for all, also where a race was lost."""

    loss: float
    losses: tuple[float, ...]


class Probes:
    """States that formulas are asked about: two that choose alike in all of them are taken for the same formula.

    `columns` float32 [features, nodes] are the features of all nodes of all states, `masks` bool [nodes] which of them
    may be chosen, `sizes` int64 [S] how many nodes each state has.
    """

    def __init__(
        self, columns: npt.NDArray[np.float32], masks: npt.NDArray[np.bool_], sizes: npt.NDArray[np.int64]
    ) -> None:
        self._columns, self._masks, self._sizes = columns, masks, sizes
        self._starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> "Probes":
        """Return the states that these observations are of."""
        every = np.arange(len(FEATURES))
        return cls(
            np.concatenate([columns_of(every, each) for each in observations], axis=1),
            np.concatenate([each.mask for each in observations]),
            np.array([len(each.mask) for each in observations]),
        )

    def choices(self, program: Program) -> npt.NDArray[np.int64]:
        """Return the index of the node that a formula chooses in each state, int64 [S]."""
        code = program.code.copy()
        code[:, INSTRUCTION.uniform] = 0  # nothing is the same for all nodes of all states
        registers = registers_of(program._replace(code=code), self._columns[program.features])
        scores = np.where(self._masks, registers[-1], -np.inf)
        best = np.maximum.reduceat(scores, self._starts)
        hit = (scores == np.repeat(best, self._sizes)) & self._masks
        first = np.where(hit, np.arange(len(scores)), len(scores))
        nodes: npt.NDArray[np.int64] = np.minimum.reduceat(first, self._starts) - self._starts
        return nodes

    def signature(self, program: Program) -> str:
        """Return what stands for all choices of a formula."""
        return hashlib.blake2b(self.choices(program).astype(np.int32).tobytes(), digest_size=12).hexdigest()

    def informative(self) -> tuple[str, ...]:
        """Return the features that are not the same everywhere."""
        differ = np.ptp(np.where(self._masks, self._columns, self._columns[:, self._masks][:, :1]), axis=1) > 0.0
        return tuple(
            name
            for name, number in NUMBERED.items()
            if number < len(differ) and differ[number] and name not in ("pair.feasible", "node.capacity")
        )


class ProbeRecorder:
    """A policy that shows what another one sees, now and then, while that one decides.

    `turns` counts the decisions; every so many are shown.
    """

    def __init__(
        self, policy: Policy, spec: ObservationSpec, every: int, turns: Iterator[int], into: list[Observation]
    ) -> None:
        self.name, self.observation_spec = policy.name, spec if spec_of(policy).lookahead == 0 else spec_of(policy)
        self._policy, self._spec, self._every, self._into, self._turns = policy, spec, every, into, turns

    def act(self, context: Context) -> Decision:
        """Let the other decide."""
        if next(self._turns) % self._every == 0:
            self._into.append(context.observation_by(self._spec))
        return self._policy.act(context)


class Races:
    """Evaluates formulas by `count` cases, such as episodes. The first ones decide whether the others are worth it."""

    count: int
    tuning: int = 16
    """in how many cases constants are tuned"""
    probes: Probes
    observation_spec: ObservationSpec = PLAIN
    """what features are measured with"""

    def play(self, program: Program, numbers: Sequence[int]) -> FloatArray:
        """Return the losses of a formula in cases by their numbers, float64 [n]."""
        raise NotImplementedError

    def play_policy(self, policy: Policy, numbers: Sequence[int]) -> FloatArray:
        """Return the losses of any policy in cases by their numbers, float64 [n]."""
        raise NotImplementedError

    def described(self, number: int) -> str:
        """Return what a case is, in words."""
        raise NotImplementedError

    def race(self, program: Program, against: Scores | None = None) -> Scores:
        """Return the losses of a formula, in all cases unless it is clearly worse than another one on the first.

        Clearly worse: after 8, 16, 32 ... cases the interval of the mean of the paired differences lies above zero,
        at a confidence that all looks together are wrong in 5% of the races at most (Bonferroni). The loss that stands
        for all is then the other's, and the mean difference so far.
        """
        ends = [end for k in range(16) if (end := FIRST_BLOCK << k) < self.count] + [self.count]
        losses: list[float] = []
        for end in ends:
            losses += self.play(program, range(len(losses), end)).tolist()
            if against is None or end == self.count or len(against.losses) < self.count:
                continue
            behind = np.array(losses) - np.array(against.losses[:end])
            confidence = 1.0 - 2.0 * _MISTAKES / max(len(ends) - 1, 1)  # one side of an interval
            if mean_bounds(behind[None], confidence=confidence)[0][0] > 0.0:
                return Scores(against.loss + float(behind.mean()), tuple(losses))
        return Scores(float(np.mean(losses)), tuple(losses))


class EpisodeRaces(Races):
    """Episodes with the reference's results, ready for formulas; `probes` are states that the reference met."""

    def __init__(self, config: EvolveConfig, first_seed: int, count: int) -> None:
        self.episodes: list[tuple[int, int, int]] = []  # task, seed, nodes
        sizes = [config.nodes or task.sizes or (task.nodes,) for task in config.tasks]
        kinds = [(number, size) for number, own in enumerate(sizes) for size in own]
        known = set()  # of a trace's few windows each counts once: a second time it says nothing new
        for number in range(count):
            (which, size), seed = kinds[number % len(kinds)], first_seed + number // len(kinds)
            if (episode := (which, episode_of(seed, config.tasks[which]), size)) not in known:
                known.add(episode)
                self.episodes.append((which, seed, size))
        self.count = count = len(self.episodes)
        self._tasks = config.tasks
        self._place = np.zeros(count, dtype=np.int64)
        self._played: list[FormulaEpisodes | None] = []
        self._factories: list[EnvFactory] = []
        self.reference = np.zeros(count)
        seen, turns = list[Observation](), count_from(1)  # over all episodes: of many, not each is seen
        for number, task in enumerate(config.tasks):
            factory = EnvFactory(
                EnvConfig(task.name, sizes[number], config.pods, remaining_lifetimes=config.remaining_lifetimes)
            )
            self._factories.append(factory)
            plans = TaskEpisodes(task, config.pods, lifetime_model=factory.observation_spec.lifetime_model)
            mine = [place for place, each in enumerate(self.episodes) if each[0] == number]
            for place in mine:
                _, seed, nodes = self.episodes[place]
                cluster = factory.build(seed, nodes)
                every = max(1, len(cluster.workload) * count // _PROBES)
                play(
                    cluster,
                    ProbeRecorder(
                        factory.policy(config.reference_policy), factory.observation_spec, every, turns, seen
                    ),
                )
                self.reference[place] = cluster.metrics()[task.metric]
            self._place[mine] = np.arange(len(mine))
            self._played.append(
                FormulaEpisodes([plans.plan(*self.episodes[place][1:]) for place in mine], factory.observation_spec)
                if mine
                else None
            )
        self.observation_spec = self._factories[0].observation_spec
        self.probes = Probes.of(seen)

    def play_policy(self, policy: Policy, numbers: Sequence[int]) -> FloatArray:
        """Return the losses of any policy on episodes by their numbers, played in the simulator."""
        losses = np.zeros(len(numbers))
        for k, number in enumerate(numbers):
            which, seed, nodes = self.episodes[number]
            task = self._tasks[which]
            value = self._factories[which].play(policy, seed, nodes)[task.metric]
            losses[k] = relative(task, value, float(self.reference[number]))
        return losses

    def described(self, number: int) -> str:
        """Return what an episode is, in words."""
        which, _, nodes = self.episodes[number]
        return f"{self._tasks[which].name} with {nodes} nodes"

    def play(self, program: Program, numbers: Sequence[int]) -> FloatArray:
        """Return the losses of a formula on episodes by their numbers."""
        losses = np.zeros(len(numbers))
        for task, played in enumerate(self._played):
            mine = [k for k, number in enumerate(numbers) if self.episodes[number][0] == task]
            if played is None or not mine:
                continue
            ended = played.play(program, [int(self._place[numbers[k]]) for k in mine])
            metric = self._tasks[task].metric
            for k, end in zip(mine, ended, strict=True):
                losses[k] = relative(self._tasks[task], end.metrics[metric], float(self.reference[numbers[k]]))
        return losses
