"""The demonstration: train the four agents briefly, evaluate them on unseen seeds, write a report."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aaml.evaluation.charts import curve_chart, curve_frame
from aaml.evaluation.evaluate import evaluate
from aaml.evaluation.figures import Panel, curve_figure
from aaml.evaluation.page import Page
from aaml.evaluation.report import add_comparison, add_origin
from aaml.evaluation.results import ResultFile, Results
from aaml.evaluation.run_spec import write_run_specs
from aaml.learning.config import AGENTS, ActorCritic, AgentKind, GroupConfig
from aaml.parallel.pool import open_pool
from aaml.progress import progress_bar
from aaml.scheduling.curves import VALIDATION_DIFFERENCE, validation_metric
from aaml.settings import plain
from aaml.sim.metrics import find_metric
from aaml.sim.tasks import find_task
from aaml.training.records import read_curve
from aaml.training.settings import DemoConfig, TrainConfig
from aaml.training.sweep import train_to

NAMES: tuple[AgentKind, ...] = ("gnn", "acgnn", "dqn", "acdqn")  # slowest first, so that two processes end together
_VALIDATIONS = 20
_ABOUT_LEVEL = 0.1  # of a mean
BASELINES = ("kube-scheduler", "least-allocated", "least-variance", "random")


@dataclass(frozen=True)
class DemoResult:
    """Where everything is, and how the agents compare, as text."""

    folder: Path
    report: Path
    comparison: str
    models: tuple[Path, ...]


def run_demo(
    config: DemoConfig, folder: Path, *, curves: Path = Path("tlogs"), models: Path = Path("models")
) -> DemoResult:
    """Run the whole demonstration in `folder`, or what is missing there of one that a KeyboardInterrupt ended."""
    trainings = [_training(config, agent) for agent in NAMES]
    _train_all(config, trainings, folder)
    kept = []
    for agent in NAMES:
        run = folder / agent
        shutil.copytree(run / "tensorboard", curves / f"{folder.name}_{agent}", dirs_exist_ok=True)
        for path in sorted((run / "model").glob("*.pth")):
            models.mkdir(parents=True, exist_ok=True)
            target = models / f"{path.stem}_demo{path.suffix}"  # beside the weights that ship, not over them
            shutil.copy2(path, target)
            kept.append(target)
    policies = {name: name for name in BASELINES} | {agent: str(_model(folder / agent)) for agent in NAMES}
    file = ResultFile(folder)
    results = evaluate(
        policies, config.task, config.seeds, config.nodes, workers=config.workers, known=file.known(),
        on_row=file.append,
    )  # fmt: skip
    write_run_specs(folder, results.run_specs)
    page = Page("Four learned schedulers, briefly trained", folder)
    page.text(
        f"Each agent saw {config.teacher_steps:,} decisions of a heuristic and made {config.steps:,} of its own on "
        f"simulated clusters of {config.nodes} nodes; all are evaluated on {len(config.seeds)} episodes that none of "
        "them has seen. The intervals are 95% intervals over these episodes, differences are paired."
    )
    comparison, verdict = results.compare(), _verdict(results, trainings[0].teacher_name)
    page.text(verdict)
    add_comparison(page, comparison)
    page.heading("Learning curves")
    page.text(
        "The task's metric on ten validation episodes, during training. The dashed line is the heuristic that the "
        f"agents imitate first, {trainings[0].teacher_name}. Of each agent the best weights are kept. Those that ship "
        "learned longer, and on clusters of several sizes."
    )
    metric = find_metric(find_task(config.task).metric)
    curve = validation_metric(metric.name)
    drawn = {str(agent): read_curve(folder / agent, curve) for agent in NAMES}
    level = {trainings[0].teacher_name: _reference(folder / NAMES[0], curve)}
    axis = f"{metric.name}, {metric.better} is better"
    panel = Panel({name: [each] for name, each in drawn.items()}, f"{config.task}: validation", axis, level)
    chart = curve_chart(axis, drawn, levels=level, log=True)
    page.figure(chart, "curves", lambda: curve_figure(panel), curve_frame(drawn))
    page.heading("Next")
    page.code("\n".join(next_commands(kept[0], folder)))
    page.settings(plain(config), plain(DemoConfig()))
    add_origin(page, results.runs, results.run_specs, folder)
    return DemoResult(folder, page.write(), f"{comparison}\n\n{verdict}", tuple(kept))


def next_commands(model: Path, folder: Path) -> tuple[str, ...]:
    """Return the commands that a newcomer should try, each with what it does."""
    told = {
        "source .venv/bin/activate": "so that `aaml` is found",
        f"aaml lab {folder}": "look at decisions, one by one",
        f"aaml evaluate --task balance --nodes 10 50 --models {model}": "on more nodes than it has seen",
        "aaml cluster up": "a real API server on this machine",
        "export KUBECONFIG=$(aaml cluster kubeconfig --path)": "this cluster, for the next command",
        f"aaml schedule gnn --model {model} --progress": "the agent places its pods",
    }
    return tuple(f"{command}  # {why}" for command, why in told.items())


def _verdict(results: Results, heuristic: str) -> str:
    """Return in words how the agents compare with the heuristic that they imitated first."""
    (ranking,) = results.compare(heuristic)
    against = {line.policy: line.against for line in ranking.lines if line.against and line.policy in NAMES}
    rises = {name: each.ratio.mean - 1.0 for name, each in against.items() if each.ratio}
    said = [f"{name} {100 * rises.get(name, np.nan):+.0f}% ({each.verdict})" for name, each in against.items()]
    near = len(rises) == len(NAMES) and max(map(abs, rises.values())) < _ABOUT_LEVEL
    return (
        f"{heuristic} is the rule of one line that the agents imitate first. Their {ranking.metric.name} in terms of "
        f"its own, {ranking.metric.better} is better: {', '.join(said)}."
        + (" So that rule is about level with the agents: so short a training adds little to it." if near else "")
    )


def _reference(run: Path, curve: str) -> float:
    """Return the value of the policy that a run's validations compare with, on the same episodes."""
    return read_curve(run, curve)[1][0] - read_curve(run, VALIDATION_DIFFERENCE[0])[1][0]


def _model(run: Path) -> Path:
    return min((run / "model").glob("*.pth"))


def _train_all(config: DemoConfig, trainings: Sequence[TrainConfig], folder: Path) -> None:
    """Let the agents imitate a heuristic, then train, side by side and a quarter of their steps at a time.

    One progress bar counts the decisions that they learn from, the heuristic's and their own.
    """
    quarter, names = max(config.steps // 4, 1), ", ".join(NAMES)
    total = (config.teacher_steps + config.steps) * len(NAMES)
    imitate = f"{names}: imitate {trainings[0].teacher_name}"
    with open_pool(config.workers) as pool, progress_bar(imitate, total, "decision") as bar:
        before = -config.teacher_steps
        for steps in dict.fromkeys((0, *range(quarter, config.steps, quarter), config.steps)):
            jobs = [(training, folder / training.agent.name, steps) for training in trainings]
            for _ in pool.run(train_to, jobs):
                bar.update(steps - before)
            bar.set_description(f"{names}: train")
            before = steps


def _training(config: DemoConfig, agent: AgentKind) -> TrainConfig:
    # On one size, and for so few decisions, an actor-critic learns more where more of its choices are drawn.
    group = GroupConfig(sampled=0.3) if isinstance(AGENTS[agent], ActorCritic) else GroupConfig()
    return TrainConfig(
        agent=AGENTS[agent], task=config.task, steps=config.steps, seed=config.seed, nodes=(config.nodes,),
        teacher_steps=config.teacher_steps, validate_every=max(config.steps // _VALIDATIONS, 1), validation_episodes=10,
        group=group,
    )  # fmt: skip
