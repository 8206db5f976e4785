"""Training without networks: the Q-table of a few nodes, and the linear scorer tuned by the cross-entropy method.

Both go from round to round (an episode, a generation). After `validate_every` decisions the round is ended, the policy
judged, the best kept and everything saved: a run that was killed goes on from there to the same result.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from aaml.errors import UserError
from aaml.learning.config import Linear, NetworkAgent, QTable
from aaml.learning.linear import CrossEntropy, save_linear
from aaml.learning.qtable import QTableAgent
from aaml.policies.heuristics.linear import FEATURES, GPU, LIFE, PLAIN, TERMS, LinearPolicy
from aaml.progress import progress_bar
from aaml.scheduling.curves import SEARCH_DEVIATION
from aaml.scheduling.ports import Policy, RunWriter, Step
from aaml.scheduling.queue_sort import QueueSort
from aaml.scheduling.walk import Walk, whole_run
from aaml.sim.compiled.flow import BY_ARRIVAL, Flow
from aaml.training.rollouts import TRAINING_SEEDS, Arena
from aaml.training.runfolder import RunFolder
from aaml.training.settings import TrainConfig
from aaml.training.validation import Glimpse, Progress, Validation, by_playing, write_summary

if TYPE_CHECKING:
    from aaml.learning.agent import LearnedAgent

_SORTS, _SORT_SCALE_S = 3, 1000.0  # numbers of a queue sort, and what brings them to unit size
_EPISODES = 256  # of each size, that generations are judged on
_CURVE_EVERY = 200
Stop = Callable[[], bool]
FloatArray = npt.NDArray[np.float64]
Judge = Callable[[LinearPolicy], tuple[float, int]]
"""Scorer -> (value, lower is better; decisions that it took)."""


class StoppedError(Exception):
    """A round was stopped before its end and is to be forgotten."""


class Learner(Protocol):
    """What learns in rounds."""

    @property
    def policy(self) -> Policy:
        """What was learned so far."""
        ...

    def begin(self) -> None:
        """Do what comes before the first round."""
        ...

    def round(self, step: int, stop: Stop) -> int:
        """Learn for a while from decision number `step` on; returns the decisions. Raises `StoppedError`."""
        ...

    def judge(self, seeds: Sequence[int], nodes: int, glimpse: Glimpse | None) -> Sequence[Mapping[str, float]]:
        """Return the metrics of episodes that the policy plays, in the order of their seeds."""
        ...

    def save(self, folder: RunFolder) -> Path:
        """Write the model and return its path."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what learning goes on from, as plain values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        ...


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
        cluster = arena.build(*_draw_episode(self._rng, self._sizes))
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
        return {"agent": self.policy.state(), "rng": _rng_state(self._rng)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.policy.restore(state["agent"])
        self._rng.bit_generator.state = json.loads(state["rng"])


class LinearLearner:
    """Judges a generation of scorers a round on the same episodes, by the task's metric.

    Episodes of plain pods run in compiled code (`aaml.sim.compiled.flow`), a generation on `envs` of the largest size
    and on more of smaller ones; others one by one in the simulator. Where waiting is what counts, the order of waiting
    pods is searched too. What the search distribution's mean wanders by is averaged out: the scorer is the
    exponentially weighted average of the means (Polyak and Juditsky 1992).
    """

    def __init__(self, config: TrainConfig, arena: Arena, writer: RunWriter) -> None:
        linear = config.learner
        if not isinstance(linear, Linear):
            raise TypeError(f"{linear.name} is no linear scorer")
        self._sizes, self._arena, self._writer = config.sizes, arena, writer
        self._rng = np.random.default_rng(config.seed)
        self._keep = linear.averaging
        self._envs = config.envs
        self._flows: dict[tuple[int, int], Flow] = {}
        self._compiled = not any(pod.gpu.count for pod in arena.task.expected(config.trace))
        expects = arena.sees.expects is not None
        features = (PLAIN if self._compiled else (*PLAIN, *GPU)) + (LIFE if expects else ())
        self._columns = [FEATURES.index(name) for name in features]
        self._terms = [TERMS.index(name) for name in TERMS if expects or name != "pod_rest"]
        self._sorts = "waiting" in arena.task.metric
        start = start_weights(config.teacher_name)[np.ix_(self._terms, self._columns)].ravel()
        self._search = CrossEntropy(
            np.append(start, np.zeros(_SORTS * self._sorts)),
            population=linear.population, elite=linear.elite, deviation=linear.deviation, rng=self._rng,
        )  # fmt: skip
        self._average = self._search.mean.copy()

    @property
    def policy(self) -> LinearPolicy:
        """The average of the search distribution's means."""
        return self._policy(self._average)

    def begin(self) -> None:
        """Begin from nothing."""

    def judge(self, seeds: Sequence[int], nodes: int, glimpse: Glimpse | None) -> Sequence[Mapping[str, float]]:
        """Play episodes one after the other."""
        return by_playing(self._arena, self.policy, seeds, nodes, glimpse)

    def round(self, step: int, stop: Stop) -> int:
        """Judge one generation."""
        before, decisions = self._rng.bit_generator.state, 0
        judge = self._judge_compiled() if self._compiled else self._judge_one()

        def evaluate(population: Sequence[FloatArray]) -> list[float]:
            nonlocal decisions
            values = []
            for vector in population:
                if stop():
                    raise StoppedError
                value, made = judge(self._policy(vector))
                values.append(value)
                decisions += made
            return values

        try:
            self._search.step(evaluate)
        except StoppedError:
            self._rng.bit_generator.state = before
            raise
        self._average += (1.0 - self._keep) * (self._search.mean - self._average)
        self._writer.scalar(SEARCH_DEVIATION, float(self._search.deviation.mean()), step + decisions)
        return decisions

    def _policy(self, vector: FloatArray) -> LinearPolicy:
        count = len(self._terms) * len(self._columns)
        weights = np.zeros((len(TERMS), len(FEATURES)))
        weights[np.ix_(self._terms, self._columns)] = vector[:count].reshape(len(self._terms), -1)
        sort = QueueSort(*(_SORT_SCALE_S * vector[count:]).tolist()) if self._sorts else None
        return LinearPolicy(weights, queue_sort=sort, sees=self._arena.sees)

    def _judge_one(self) -> Judge:
        sign = -1.0 if self._arena.task.higher_is_better else 1.0
        seed, size = _draw_episode(self._rng, self._sizes)

        def judge(policy: LinearPolicy) -> tuple[float, int]:
            metrics = self._arena.play(policy, seed, size)
            return sign * self._arena.task.value(metrics), int(metrics["bound"])

        return judge

    def _judge_compiled(self) -> Judge:
        task = self._arena.task
        sign = -1.0 if task.higher_is_better else 1.0
        drawn: list[tuple[float, Flow]] = []  # the episodes of a size together weigh as much as those of another
        for size in self._sizes:
            count = round(self._envs * max(self._sizes) / size)
            drawn += [(1.0 / count, self._flow(int(pick), size)) for pick in self._rng.integers(_EPISODES, size=count)]
        total = sum(len(flow.arrival_s) for _, flow in drawn)

        def judge(policy: LinearPolicy) -> tuple[float, int]:
            plays = ((share, flow.play(policy.weights, policy.queue_sort or BY_ARRIVAL)) for share, flow in drawn)
            return sign * sum(share * task.value(metrics) for share, metrics in plays), total

        return judge

    def _flow(self, number: int, size: int) -> Flow:
        """Return one of the training episodes; they are drawn once, for that takes longer than playing them."""
        if (number, size) not in self._flows:
            self._flows[number, size] = Flow.of(
                self._arena.build(TRAINING_SEEDS + number, size), self._arena.sees.expects
            )
        return self._flows[number, size]

    def save(self, folder: RunFolder) -> Path:
        """Write the scorer."""
        path = folder.models / f"Linear_{folder.stem}.json"
        save_linear(self.policy, path)
        return path

    def state(self) -> dict[str, Any]:
        """Return the search distribution, the average and the generator."""
        return {"search": self._search.state(), "average": self._average.tolist(), "rng": _rng_state(self._rng)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._search.restore(state["search"])
        self._average = np.array(state["average"], dtype=np.float64)
        self._rng.bit_generator.state = json.loads(state["rng"])


def start_weights(teacher: str) -> FloatArray:
    """Return weights [terms, F] that choose as a heuristic does, zeros for one that this form cannot express."""
    weights = np.zeros((len(TERMS), len(FEATURES)))
    if teacher == "most-allocated":
        weights[0, :2] = 1.0
    elif teacher == "least-allocated":
        weights[0, :2] = -1.0
    elif teacher == "least-variance":  # use u grows by r: the variance by (2 u r - r^2) / N and what no node changes
        weights[1, 0] = weights[2, 1] = -1.0
    return weights


def make_learner(config: TrainConfig, arena: Arena, writer: RunWriter) -> Learner:
    """Return what learns in rounds."""
    if config.agent.name == "qtable":
        return QTableLearner(config, arena, writer)
    if config.agent.name == "linear":
        return LinearLearner(config, arena, writer)
    from aaml.training.copies import CopiesLearner

    return CopiesLearner(config, arena, writer)


def train_simple(
    config: TrainConfig, folder: RunFolder, stop: Stop = lambda: False, *, progress: bool = True
) -> Progress:
    """Train a Q-table or a linear scorer until the steps are done, `stop()` is true or nothing improves."""
    arena, started = Arena(config.setting), time.monotonic()
    now, name = Progress(), f"{config.agent.name} on {config.task}"

    def validate() -> None:
        result = validation(learner.policy, learner.judge)
        if now.step and now.judged(result):  # what has learned nothing yet is on the curve, but no model
            learner.save(folder)
        for name, value in result.items():
            folder.writer.scalar(name, value, now.step)
        folder.show(validation.glimpse.rows, validation.glimpse.lapse, now.step)
        bar.set_postfix(now.facts(result))
        folder.write_resume({"progress": asdict(now), "learner": learner.state()})

    with progress_bar(f"{name}: judge {config.reference}", config.steps, "decision", enabled=progress) as bar:
        validation = Validation(arena, config.sizes, config.validation_episodes, config.reference)
        learner = make_learner(config, arena, folder.writer)
        saved = folder.read_resume()
        if saved is None:
            if isinstance(config.agent, NetworkAgent):
                from aaml.learning.graph import network_graph

                folder.graph(network_graph(cast("LearnedAgent", learner.policy).scorer))
            if config.imitates:
                bar.set_description(f"{name}: begin as {config.teacher_name}")
            learner.begin()
            validate()
        else:
            try:
                now = Progress(**saved["progress"])
                learner.restore(saved["learner"])
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"{folder.path}: cannot go on from resume.pt ({error}); train anew") from error
        validated = now.step
        bar.set_description(f"{name}: train")
        bar.update(now.step)
        while now.step < config.steps and not 0 < config.patience <= now.since_best and not stop():
            try:
                made = learner.round(now.step, stop)
            except StoppedError:
                break
            now.step += made
            bar.total = max(config.steps, now.step)  # a round is played to its end
            bar.update(made)
            if now.step // config.validate_every > validated // config.validate_every:
                validate()
                validated = now.step
        if now.step > validated:
            bar.set_description(f"{name}: judge and save")
            validate()
    write_summary(folder.path, now, config.task, config.reference, time.monotonic() - started)
    return now


def _draw_episode(rng: np.random.Generator, sizes: Sequence[int]) -> tuple[int, int]:
    """Return (seed, number of nodes)."""
    return TRAINING_SEEDS + int(rng.integers(1 << 30)), sizes[int(rng.integers(len(sizes)))]


def _rng_state(rng: np.random.Generator) -> str:
    return json.dumps(rng.bit_generator.state)
