"""Training a linear scorer by the cross-entropy method: a generation a round, evaluated on the same episodes."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.episodes.flow import BY_ARRIVAL, Flow
from aaml.errors import StoppedError
from aaml.learning.config import Linear
from aaml.learning.linear import save_linear
from aaml.policies.heuristics.linear import COST, FEATURE, FEATURES, GPU, LIFE, PLAIN, TERM, TERMS, LinearPolicy
from aaml.scheduling.curves import SEARCH_DEVIATION
from aaml.scheduling.ports import RunWriter
from aaml.scheduling.queue_sort import QueueSort
from aaml.study.samplers import CrossEntropy
from aaml.study.trial import Trial
from aaml.training import compilable
from aaml.training.learner import Learner, Stop, draw_episode
from aaml.training.rollouts import TRAINING_SEEDS, EnvFactory
from aaml.training.runfolder import RunFolder
from aaml.training.settings import TrainConfig

_SORT_SCALES = np.array([1000.0, 1000.0, 1000.0, 1.0, 10.0])  # what brings a queue sort's numbers to unit size
_EPISODES = 256  # of each size, that generations are evaluated on
FloatArray = npt.NDArray[np.float64]
Evaluator = Callable[[LinearPolicy], tuple[float, int]]
"""Scorer -> (value, lower is better; decisions that it took)."""


class LinearLearner(Learner):
    """Evaluates a generation of scorers a round on the same episodes, by the task's metric.

    Episodes run in compiled code (`aaml.episodes.flow`), a generation on `envs` of the largest size and on more of
    smaller ones; those that this refuses run one by one in the simulator. Where waiting is what counts, the order of
    waiting pods is searched too. What the search distribution's mean wanders by is averaged out: the scorer is the
    exponentially weighted average of the means (Polyak and Juditsky 1992).
    """

    def __init__(self, config: TrainConfig, factory: EnvFactory, writer: RunWriter) -> None:
        linear = config.learner
        if not isinstance(linear, Linear):
            raise TypeError(f"{linear.name} is no linear scorer")
        self._sizes, self._factory, self._writer = config.sizes, factory, writer
        self._rng = np.random.default_rng(config.seed)
        self._keep = linear.averaging
        self._envs = config.envs
        self._flows: dict[tuple[int, int], Flow] = {}
        gpus = any(pod.gpu.count for pod in factory.task.expected(config.trace))
        self._compiled = not compilable.why_no_task(config.task)  # such as a window in which pods run already
        lifetime_model = factory.observation_spec.lifetime_model is not None
        features = (*PLAIN, *(GPU if gpus else ()), *(LIFE if lifetime_model else ()))
        features += COST if factory.observation_spec.costs else ()
        self._columns = [FEATURES.index(name) for name in features]
        self._terms = [TERMS.index(name) for name in TERMS if lifetime_model or name != "pod_rest"]
        self._sorts = (5 if lifetime_model else 3) if "waiting" in factory.task.metric else 0
        start = start_weights(config.teacher_name)[np.ix_(self._terms, self._columns)].ravel()
        self._search = CrossEntropy(
            np.append(start, np.zeros(self._sorts)),
            population=linear.population, elite=linear.elite, deviation=linear.deviation, rng=self._rng,
        )  # fmt: skip
        self._average = self._search.mean.copy()
        self.policy: LinearPolicy = self._policy(self._average)

    def round(self, step: int, stop: Stop) -> int:
        """Evaluate one generation."""
        before, decisions = self._rng.bit_generator.state, 0
        evaluate_one = self._evaluate_compiled() if self._compiled else self._evaluate_one()

        def trial(vector: FloatArray) -> Trial[FloatArray]:
            nonlocal decisions
            if stop():
                raise StoppedError
            value, made = evaluate_one(self._policy(vector))
            decisions += made
            return Trial(vector, (value,))

        try:
            trials = [trial(vector) for vector in self._search.ask()]
        except StoppedError:
            self._rng.bit_generator.state = before
            raise
        self._search.tell(trials)
        self._average += (1.0 - self._keep) * (self._search.mean - self._average)
        self.policy = self._policy(self._average)
        self._writer.scalar(SEARCH_DEVIATION, float(self._search.deviation.mean()), step + decisions)
        return decisions

    def _policy(self, vector: FloatArray) -> LinearPolicy:
        count = len(self._terms) * len(self._columns)
        weights = np.zeros((len(TERMS), len(FEATURES)))
        weights[np.ix_(self._terms, self._columns)] = vector[:count].reshape(len(self._terms), -1)
        sort = QueueSort(*(_SORT_SCALES[: self._sorts] * vector[count:]).tolist()) if self._sorts else None
        return LinearPolicy(weights, queue_sort=sort, observation_spec=self._factory.observation_spec)

    def _evaluate_one(self) -> Evaluator:
        sign = -1.0 if self._factory.task.higher_is_better else 1.0
        seed, size = draw_episode(self._rng, self._sizes)

        def evaluate(policy: LinearPolicy) -> tuple[float, int]:
            metrics = self._factory.play(policy, seed, size)
            return sign * self._factory.task.value(metrics), int(metrics["bound"])

        return evaluate

    def _evaluate_compiled(self) -> Evaluator:
        task = self._factory.task
        sign = -1.0 if task.higher_is_better else 1.0
        drawn: list[tuple[float, Flow]] = []  # the episodes of a size together weigh as much as those of another
        for size in self._sizes:
            count = round(self._envs * max(self._sizes) / size)
            drawn += [(1.0 / count, self._flow(int(pick), size)) for pick in self._rng.integers(_EPISODES, size=count)]
        total = sum(len(flow.arrival_s) for _, flow in drawn)

        def evaluate(policy: LinearPolicy) -> tuple[float, int]:
            plays = ((share, flow.play(policy.weights, policy.queue_sort or BY_ARRIVAL)) for share, flow in drawn)
            return sign * sum(share * task.value(metrics) for share, metrics in plays), total

        return evaluate

    def _flow(self, number: int, size: int) -> Flow:
        """Return one of the training episodes; they are drawn once, for that takes longer than playing them."""
        if (number, size) not in self._flows:
            self._flows[number, size] = Flow.of(
                self._factory.build(TRAINING_SEEDS + number, size), self._factory.observation_spec
            )
        return self._flows[number, size]

    def save(self, folder: RunFolder) -> Path:
        """Write the scorer."""
        path = folder.models / f"Linear_{folder.stem}.json"
        save_linear(self.policy, path)
        return path

    def state(self) -> dict[str, Any]:
        """Return the search distribution, the average and the generator."""
        return {
            "search": self._search.state(),
            "average": self._average.tolist(),
            "rng": json.dumps(self._rng.bit_generator.state),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._search.restore(state["search"])
        self._average = np.array(state["average"], dtype=np.float64)
        self.policy = self._policy(self._average)
        self._rng.bit_generator.state = json.loads(state["rng"])


def start_weights(teacher: str) -> FloatArray:
    """Return weights [terms, F] that choose as a heuristic does, zeros for one that this form cannot express."""
    weights = np.zeros((len(TERMS), len(FEATURES)))
    if teacher == "most-allocated":
        weights[TERM.one, [FEATURE.cpu, FEATURE.memory]] = 1.0
    elif teacher == "least-allocated":
        weights[TERM.one, [FEATURE.cpu, FEATURE.memory]] = -1.0
    elif teacher == "least-variance":  # use u grows by r: the variance by (2 u r - r^2) / N and what no node changes
        weights[TERM.pod_cpu, FEATURE.cpu] = weights[TERM.pod_memory, FEATURE.memory] = -1.0
    return weights
