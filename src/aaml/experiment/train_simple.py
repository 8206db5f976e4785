"""Training without networks: the Q-table of a few nodes, and the linear scorer tuned by the cross-entropy method."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from aaml.experiment.rollouts import TRAINING_SEEDS, Arena
from aaml.experiment.runfolder import RunFolder
from aaml.experiment.train import VALIDATION_SEEDS, TrainConfig
from aaml.learning.linear import FEATURES, CrossEntropyStep, LinearPolicy, cross_entropy, save_linear
from aaml.learning.qtable import QTableAgent, QTableConfig, Seen
from aaml.scheduling.ports import Policy

_POPULATION = 24
_CURVE_EVERY = 200


def _judge(arena: Arena, policy: Policy, config: TrainConfig) -> float:
    """Return the task's metric over the validation episodes."""
    values = [
        arena.play(policy, VALIDATION_SEEDS + index, size)[arena.task.metric]
        for size in config.sizes
        for index in range(config.validation_episodes)
    ]
    return float(np.mean(values))


def train_qtable(
    config: TrainConfig, folder: RunFolder, stop: Callable[[], bool] = lambda: False, *, progress: bool = True
) -> tuple[Path, float]:
    """Learn a table by playing episode after episode; returns (model file, validation metric)."""
    arena = Arena(config.setting)
    decay = 0.05 ** (1.0 / max(config.steps, 1))
    table = QTableConfig(lookahead=config.setting.lookahead, epsi_decay=decay)
    agent = QTableAgent(table, seed=config.seed)
    rng = np.random.default_rng(config.seed)
    step = 0
    with tqdm(total=config.steps, desc=f"train qtable on {config.task}", disable=not progress) as bar:
        while step < config.steps and not stop():
            cluster = arena.build(TRAINING_SEEDS + int(rng.integers(1 << 30)), config.sizes[step % len(config.sizes)])
            cycle = arena.cycle(cluster)
            previous: tuple[Seen, int, float] | None = None
            while (pod := cluster.next_pod(0.0)) is not None and step < config.steps:
                context = cycle.begin(pod)
                if context is None:
                    continue
                seen = agent.see(context)
                if previous is not None:
                    error = agent.update(*previous, seen)
                    step += 1
                    if step % _CURVE_EVERY == 0:
                        bar.update(_CURVE_EVERY)
                        folder.recorder.scalar("1. CSR", agent.reward_sum, step)
                        folder.recorder.scalar("2. Loss/Train", error, step)
                        folder.recorder.scalar("States", len(agent.table), step)
                decision = agent.act(context)
                outcome = cycle.finish(context, decision)
                previous = seen, int(decision.info["place"]), outcome.reward
            # The cluster would go on: the last step, whose continuation nobody saw, is left out.
    agent.learning = False
    value = _judge(arena, agent, config)
    folder.recorder.scalar(f"Validation/{arena.task.metric}", value, step)
    return Path(agent.save(str(folder.models), folder.stem)[0]), value


def train_linear(
    config: TrainConfig, folder: RunFolder, stop: Callable[[], bool] = lambda: False, *, progress: bool = True
) -> tuple[Path, float]:
    """Tune a linear scorer on the task's metric; `steps` counts decisions. Returns (model file, validation metric)."""
    arena = Arena(config.setting)
    rng = np.random.default_rng(config.seed)
    sign = -1.0 if arena.task.higher_is_better else 1.0
    pods = config.pods or max(1, round(arena.task.pods_per_node * float(np.mean(config.sizes))))
    generations = max(2, config.steps // (_POPULATION * pods))

    def evaluate(population: Sequence[npt.NDArray[np.float64]]) -> list[float]:
        seed = TRAINING_SEEDS + int(rng.integers(1 << 30))
        size = int(config.sizes[rng.integers(len(config.sizes))])
        if stop():
            return [0.0] * len(population)
        return [sign * arena.play(LinearPolicy(weights), seed, size)[arena.task.metric] for weights in population]

    with tqdm(total=generations, desc=f"train linear on {config.task}", disable=not progress) as bar:

        def on_step(step: CrossEntropyStep) -> None:
            bar.update()
            folder.recorder.scalar("Deviation", float(step.deviation.mean()), step.generation * _POPULATION * pods)

        found = cross_entropy(
            evaluate, np.zeros(len(FEATURES)), generations=generations, population=_POPULATION, elite=6, rng=rng,
            on_step=on_step,
        )  # fmt: skip
    policy = LinearPolicy(found.mean)
    value = _judge(arena, policy, config)
    folder.recorder.scalar(f"Validation/{arena.task.metric}", value, config.steps)
    path = folder.models / f"Linear_{folder.stem}.json"
    save_linear(policy, path)
    return path, value
