"""A training from its settings to the trained policy: the same for an agent with a network and for one without."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from aaml.errors import UserError
from aaml.evaluation.page import written
from aaml.evaluation.policies import load
from aaml.learning.config import AgentConfig, NetworkAgent
from aaml.scheduling.ports import Policy
from aaml.settings import changed, take
from aaml.sim.tasks import Task, find_task
from aaml.training.report import write_training_report
from aaml.training.rounds import train_in_rounds
from aaml.training.runfolder import RunFolder
from aaml.training.settings import TrainConfig
from aaml.training.train import Trainer, open_run
from aaml.training.validation import Progress

RUNS = Path("runs")


def train(
    agent: str | AgentConfig = "gnn",
    task: str | Task = "balance",
    *,
    steps: int = TrainConfig.steps,
    out: Path | str | None = None,
    resume: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Policy:
    """Train an agent in the simulator and return the best policy by validation, which no longer learns.

    It imitates a heuristic first and then learns from rewards, in many simulated clusters at once. The run folder has
    the settings, curves (also for TensorBoard), the model file, and what an interrupted run goes on from.

    Parameters
    ----------
    agent
        "gnn", "dqn", "acgnn", "acdqn", "qtable" or "linear", or an agent with settings of its own, such as
        `aaml.Dqn(encoder="gnn", hidden_layers=64)`.
    task
        What to learn, by name or as `aaml.task` makes it.
    steps
        Decisions to learn from, after the heuristic's.
    out
        Run folder; a new one below runs/ when not given.
    resume
        Go on, up to `steps`, with the run in the folder that the same call began.
    progress
        Show a progress bar.
    **settings
        Any other setting of a training or its agent, such as `seed`, `workers`, `reward` or `learning_rate`: those of
        `aaml train --help`.

    Returns
    -------
    Policy
        The trained policy; `aaml.load` reads it again from the run's model file.

    Raises
    ------
    UserError
        For settings that are not known or do not work, before anything runs, and for a folder that holds a run, or with
        `resume` another one than this.

    """
    if isinstance(task, Task):
        settings = {"nodes": task.sizes, "pods": task.pods, **settings}
        if replace(find_task(task.name), sizes=task.sizes, pods=task.pods) != task:
            raise UserError(
                f"task: {task.name!r} was changed in this program, and a run finds its task by name; "
                "put the task into a file and train on FILE.py:NAME"
            )
        task = task.name
    if "workers" in settings:
        settings["workers"] = str(settings["workers"])
    start = TrainConfig(agent=take("agent", agent, AgentConfig))
    config = changed(start, {"task": task, "steps": steps, **settings})
    path = _unused(run_folder(config)) if out is None else Path(out)
    config, folder = open_run(config, path, resume=resume, whole=True)
    with closing(folder):
        carry_out(config, folder, progress=progress)
        return load(folder.model_path())


def carry_out(
    config: TrainConfig, folder: RunFolder, stop: Callable[[], bool] = lambda: False, *, progress: bool = True
) -> Progress:
    """Train in a folder until the steps are done, `stop()` is true or nothing improves, and leave a report there."""
    result = learn(config, folder, stop, progress=progress)
    folder.flush()
    written(lambda: write_training_report(folder.path))
    return result


def learn(
    config: TrainConfig,
    folder: RunFolder,
    stop: Callable[[], bool] = lambda: False,
    *,
    until: int | None = None,
    progress: bool = True,
) -> Progress:
    """Train by the method of the training until the steps are done, or `until` so many, or as `carry_out` says."""
    if not isinstance(config.agent, NetworkAgent) or config.way == "copies":
        return train_in_rounds(config, folder, stop, until=until, progress=progress)
    return Trainer(config, folder, progress=progress).run(stop, until=until)


def run_folder(config: TrainConfig) -> Path:
    """Return the folder that a run has unless told otherwise."""
    return RUNS / f"{config.agent.name}-{config.label}-s{config.seed}"


def _unused(path: Path) -> Path:
    """Return the path, or with the next number where there is something already."""
    number = 2
    while path.exists():
        path, number = path.with_name(f"{path.name.removesuffix(f'-{number - 1}')}-{number}"), number + 1
    return path
