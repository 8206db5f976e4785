"""Training without networks: the Q-table of a few nodes, and the linear scorer tuned by the cross-entropy method.

Both go from round to round (an episode, a generation). After `validate_every` decisions the round is ended, the policy
judged, the best kept and everything saved: a run that was killed goes on from there to the same result.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from aaml.errors import UserError
from aaml.experiment.rollouts import TRAINING_SEEDS, Arena
from aaml.experiment.runfolder import RunFolder
from aaml.experiment.train import TrainConfig
from aaml.experiment.validation import SCORE, Progress, Validation, write_summary
from aaml.learning.linear import FEATURES, CrossEntropy, LinearPolicy, save_linear
from aaml.learning.qtable import QTableAgent, QTableConfig, Seen
from aaml.scheduling.ports import Policy, Recorder

_POPULATION, _ELITE = 24, 6
_CURVE_EVERY = 200
Stop = Callable[[], bool]


class StoppedError(Exception):
    """A round was stopped before its end and is to be forgotten."""


class Learner(Protocol):
    """What learns in rounds."""

    @property
    def policy(self) -> Policy:
        """What was learned so far."""
        ...

    def round(self, step: int, stop: Stop) -> int:
        """Learn for a while from decision number `step` on; returns the decisions. Raises `StoppedError`."""
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

    def __init__(self, config: TrainConfig, arena: Arena, recorder: Recorder) -> None:
        decay = 0.05 ** (1.0 / max(config.steps, 1))
        takes: Literal["emptiest", "fullest"] = (
            "fullest" if (config.reward or arena.task.reward) == "compress" else "emptiest"
        )
        table = QTableConfig(lookahead=config.setting.lookahead, takes=takes, epsi_decay=decay)
        self.policy = QTableAgent(replace(table, **config.overrides), seed=config.seed)
        self._sizes, self._arena, self._recorder = config.sizes, arena, recorder
        self._rng = np.random.default_rng(config.seed)

    def round(self, step: int, stop: Stop) -> int:  # noqa: ARG002  (an episode is over in a moment)
        """Play one episode."""
        agent, first = self.policy, step
        cluster = self._arena.build(*_draw_episode(self._rng, self._sizes))
        cycle = self._arena.cycle(cluster)
        previous: tuple[Seen, int, float] | None = None
        while (pod := cluster.next_pod(0.0)) is not None:
            context = cycle.begin(pod)
            if context is None:
                continue
            seen = agent.see(context)
            if previous is not None:
                error = agent.update(*previous, seen)
                step += 1
                if step % _CURVE_EVERY == 0:
                    curves = {"1. CSR": agent.reward_sum, "2. Loss/Train": error, "Epsilon": agent.epsilon}
                    for name, value in {**curves, "States": len(agent.table)}.items():
                        self._recorder.scalar(name, value, step)
            decision = agent.act(context)
            outcome = cycle.finish(context, decision)
            previous = seen, int(decision.info["place"]), outcome.reward
        return step - first  # the cluster would go on: the last step, whose continuation nobody saw, is left out

    def save(self, folder: RunFolder) -> Path:
        """Write the table."""
        return Path(self.policy.save(str(folder.models), folder.stem)[0])

    def state(self) -> dict[str, Any]:
        """Return the table and both generators."""
        return {"agent": self.policy.state(), "rng": _rng_state(self._rng)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on."""
        self.policy.restore(state["agent"])
        self._rng.bit_generator.state = json.loads(state["rng"])


class LinearLearner:
    """Judges a generation of scorers on one episode a round, by the task's metric."""

    def __init__(self, config: TrainConfig, arena: Arena, recorder: Recorder) -> None:
        self._sizes, self._arena, self._recorder = config.sizes, arena, recorder
        self._rng = np.random.default_rng(config.seed)
        start = np.zeros(len(FEATURES))
        self._search = CrossEntropy(start, population=_POPULATION, elite=_ELITE, rng=self._rng)

    @property
    def policy(self) -> LinearPolicy:
        """The mean of the search distribution."""
        return LinearPolicy(self._search.mean)

    def round(self, step: int, stop: Stop) -> int:
        """Judge one generation."""
        sign = -1.0 if self._arena.task.higher_is_better else 1.0
        before, decisions = self._rng.bit_generator.state, 0
        seed, size = _draw_episode(self._rng, self._sizes)

        def value(weights: npt.NDArray[np.float64]) -> float:
            nonlocal decisions
            if stop():
                raise StoppedError
            metrics = self._arena.play(LinearPolicy(weights), seed, size)
            decisions += int(metrics["bound"])
            return sign * metrics[self._arena.task.metric]

        def evaluate(population: Sequence[npt.NDArray[np.float64]]) -> list[float]:
            return [value(weights) for weights in population]

        try:
            self._search.step(evaluate)
        except StoppedError:
            self._rng.bit_generator.state = before
            raise
        self._recorder.scalar("Deviation", float(self._search.deviation.mean()), step + decisions)
        return decisions

    def save(self, folder: RunFolder) -> Path:
        """Write the scorer."""
        path = folder.models / f"Linear_{folder.stem}.json"
        save_linear(self.policy, path)
        return path

    def state(self) -> dict[str, Any]:
        """Return the search distribution and the generator."""
        return {"search": self._search.state(), "rng": _rng_state(self._rng)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on."""
        self._search.restore(state["search"])
        self._rng.bit_generator.state = json.loads(state["rng"])


LEARNERS: Mapping[str, Callable[[TrainConfig, Arena, Recorder], Learner]] = {
    "qtable": QTableLearner,
    "linear": LinearLearner,
}


def train_simple(
    config: TrainConfig, folder: RunFolder, stop: Stop = lambda: False, *, progress: bool = True
) -> Progress:
    """Train a Q-table or a linear scorer until the steps are done, `stop()` is true or nothing improves."""
    arena, started = Arena(config.setting), time.monotonic()
    validation = Validation(arena, config.sizes, config.validation_episodes, config.reference)
    learner = LEARNERS[config.agent](config, arena, folder.recorder)
    now = Progress()

    def validate() -> None:
        result = validation(learner.policy)
        if now.step and now.judged(result):  # what has learned nothing yet is on the curve, but no model
            learner.save(folder)
        for name, value in result.items():
            folder.recorder.scalar(name, value, now.step)
        bar.set_postfix(score=f"{result[SCORE]:.3f}", best=f"{now.best:.3f}")
        folder.write_resume({"progress": asdict(now), "learner": learner.state()})

    with tqdm(total=config.steps, desc=f"train {config.agent} on {config.task}", disable=not progress) as bar:
        saved = folder.read_resume()
        if saved is None:
            validate()
        else:
            try:
                now = Progress(**saved["progress"])
                learner.restore(saved["learner"])
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"{folder.path}: cannot go on from resume.pt ({error}); train anew") from error
        validated = now.step
        bar.update(now.step)
        while now.step < config.steps and not 0 < config.patience <= now.since_best and not stop():
            try:
                made = learner.round(now.step, stop)
            except StoppedError:
                break
            now.step += made
            bar.update(made)
            if now.step // config.validate_every > validated // config.validate_every:
                validate()
                validated = now.step
        if now.step > validated:
            validate()
    write_summary(folder.path, now, config.task, config.reference, time.monotonic() - started)
    return now


def _draw_episode(rng: np.random.Generator, sizes: Sequence[int]) -> tuple[int, int]:
    """Return (seed, number of nodes)."""
    return TRAINING_SEEDS + int(rng.integers(1 << 30)), sizes[int(rng.integers(len(sizes)))]


def _rng_state(rng: np.random.Generator) -> str:
    return json.dumps(rng.bit_generator.state)
