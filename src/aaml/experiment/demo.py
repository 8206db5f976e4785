"""The demonstration: train the four agents briefly, judge them on unseen seeds, leave a report and what to do next."""

import multiprocessing
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from aaml.experiment.evaluate import Contestant, evaluate
from aaml.experiment.report import Page, Panel, curve_figure
from aaml.experiment.results import ResultFile, compare_all
from aaml.experiment.runfolder import read_curve
from aaml.experiment.train import TrainConfig, Trainer, open_run
from aaml.sim.tasks import find_task

if TYPE_CHECKING:
    from aaml.learning.config import AgentKind

AGENTS: tuple["AgentKind", ...] = ("gnn", "acgnn", "dqn", "acdqn")  # slowest first, so that two processes end together
BASELINES = ("kube-scheduler", "least-allocated", "least-variance", "random")
REFERENCE = "kube-scheduler"


@dataclass(frozen=True)
class DemoConfig:
    """How much to train and to judge. `seeds` are apart from all that training and validation use."""

    task: str = "balance"
    steps: int = 8_000
    teacher_steps: int = 4_000
    seeds: tuple[int, ...] = tuple(range(1000, 1020))
    nodes: int = 10
    workers: int = 2
    seed: int = 0


@dataclass(frozen=True)
class DemoResult:
    """Where everything is, and the tables as text."""

    folder: Path
    report: Path
    tables: tuple[str, ...]
    models: tuple[Path, ...]


def run_demo(
    config: DemoConfig,
    folder: Path,
    *,
    curves: Path = Path("tlogs"),
    models: Path = Path("models"),
    stopped: Callable[[], bool],
) -> DemoResult | None:
    """Run the whole demonstration in `folder`; None when it was stopped (what was trained so far is kept)."""
    trained = _train_all(config, folder, stopped)
    kept = []
    for agent in AGENTS:
        run = folder / agent
        if (run / "tensorboard").is_dir():
            shutil.copytree(run / "tensorboard", curves / f"{folder.name}_{agent}", dirs_exist_ok=True)
        for path in sorted((run / "model").glob("*.pth")):
            models.mkdir(parents=True, exist_ok=True)
            target = models / f"{path.stem}_demo{path.suffix}"  # beside the weights that ship, not over them
            shutil.copy2(path, target)
            kept.append(target)
    if not trained or stopped():
        return None
    contestants = [Contestant(name) for name in BASELINES]
    contestants += [Contestant(str(_model(folder / agent)), agent) for agent in AGENTS]
    frame = evaluate(
        contestants,
        config.task,
        config.seeds,
        (config.nodes,),
        workers=config.workers,
        on_row=ResultFile(folder).append,
    )
    page = Page("AAML: four learned schedulers, briefly trained")
    page.text(
        f"Each agent saw {config.teacher_steps:,} decisions of a heuristic and made {config.steps:,} of its own on "
        f"simulated clusters of {config.nodes} nodes; all are judged on {len(config.seeds)} episodes that none of them "
        "has seen. The intervals are 95% bootstrap intervals over these episodes, differences are paired."
    )
    tables = compare_all(frame, REFERENCE, page=page, figures=folder, learned=AGENTS)
    page.heading("Learning curves")
    page.text("The task's metric on the validation episodes, during training.")
    metric = find_task(config.task).metric
    drawn = {str(agent): [read_curve(folder / agent, f"Validation/{metric}")] for agent in AGENTS}
    page.figure(
        curve_figure(Panel(drawn, f"{config.task}: validation", metric)), "learning curves", folder / "curves.png"
    )
    page.heading("Next")
    page.code("\n".join(next_commands(kept[0])))
    return DemoResult(folder, page.write(folder / "report.html"), tuple(tables), tuple(kept))


def next_commands(model: Path) -> tuple[str, str, str]:
    """Return the three commands that a newcomer should try."""
    return (
        "source .venv/bin/activate && tensorboard --logdir tlogs",
        f"aaml evaluate --task balance --nodes 10 50 --models {model}",
        (
            "aaml cluster up && KUBECONFIG=$(aaml cluster kubeconfig --path) "
            f"python scripts/scheduler_gnn.py --model {model} --progress"
        ),
    )


def _model(run: Path) -> Path:
    return min((run / "model").glob("*.pth"))


def _train_all(config: DemoConfig, folder: Path, stopped: Callable[[], bool]) -> bool:
    """Train the agents side by side under one progress bar; False when it was stopped."""
    os.environ["OMP_NUM_THREADS"] = "1"  # a process an agent: threads of one would only slow the other
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(config.workers, mp_context=spawn) as pool:
        steps, end = manager.dict(dict.fromkeys(AGENTS, 0)), manager.Event()
        futures = {pool.submit(_train_one, config, agent, folder, steps, end): agent for agent in AGENTS}
        total = config.steps * len(AGENTS)
        with tqdm(total=total, desc="train 4 agents (they imitate a heuristic first)", unit="step") as bar:
            waiting = set(futures)
            while waiting:
                if stopped():
                    end.set()
                    for future in waiting:
                        future.cancel()
                for future in [each for each in waiting if each.done()]:
                    waiting.discard(future)
                    if not future.cancelled():
                        future.result()
                bar.update(min(sum(steps.values()), total) - bar.n)
                end.wait(0.3)
    return not stopped()


def _train_one(config: DemoConfig, agent: "AgentKind", folder: Path, steps: Any, end: Any) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop, and then the model is saved
    training = TrainConfig(
        agent=agent, task=config.task, steps=config.steps, seed=config.seed, nodes=(config.nodes,),
        teacher_steps=config.teacher_steps, validate_every=max(config.steps // 4, 1), validation_episodes=3,
    )  # fmt: skip
    training, run = open_run(training, folder / agent, resume=False)
    try:
        trainer = Trainer(training, run, progress=False)

        def tick() -> bool:
            steps[agent] = trainer.progress.step
            return bool(end.is_set())

        trainer.run(tick)
        steps[agent] = config.steps
    finally:
        run.close()
