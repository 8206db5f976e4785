"""A training from its settings to the trained policy: the same for an agent with a network and for one without."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.errors import UserError, bad_value, failure_of
from aaml.evaluation.identity import inputs, same_inputs
from aaml.evaluation.page import written
from aaml.evaluation.policies import load
from aaml.evaluation.program import program_made_of
from aaml.evaluation.zoo import model_file, with_critic
from aaml.learning.agents import first_agent
from aaml.learning.config import AGENTS, AgentConfig, NetworkAgent
from aaml.learning.group_rollouts import check_device
from aaml.scheduling.play import play
from aaml.scheduling.ports import Policy
from aaml.settings import changed, plain, take
from aaml.sim.render import picture
from aaml.sim.task import Task
from aaml.sim.tasks import find_task
from aaml.training.records import read_config
from aaml.training.report import write_training_report
from aaml.training.rollouts import TRAINING_SEEDS, EnvFactory
from aaml.training.runfolder import RunFolder
from aaml.training.settings import TrainConfig
from aaml.training.trainer import run_training
from aaml.training.validation import VALIDATION_SEEDS, Progress
from aaml.workload.traces import trace_files

RUNS = Path("runs")
_FREE = ("steps", "workers")  # what a run may be gone on with
_TRIED = 5  # pods
_MADE_OF = "made_of"  # the version of AAML in config.json
_log = logging.getLogger(__name__)


def train(
    agent: str | AgentConfig = "gnn",
    task: str | Task = "balance",
    *,
    steps: int | None = None,
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
        `aaml.Dqn(encoder="gnn", hidden_size=64)`.
    task
        What to learn, by name or as `aaml.task` makes it.
    steps
        Decisions to learn from, after the heuristic's: a million when not given, with `resume` those of the run.
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
        task = _name_of(task)
    if "workers" in settings:
        settings["workers"] = str(settings["workers"])
    start = TrainConfig(agent=take("agent", agent, AgentConfig))
    told = {} if steps is None else {"steps": steps}
    config = changed(start, {"task": task, **told, **settings})
    path = _unused(run_folder(config)) if out is None else Path(out)
    said = plain(config).keys() - ({"steps"} - told.keys())
    config, folder = open_run(config, path, resume=resume, said=said)
    with closing(folder):
        carry_out(config, folder, progress=progress)
        return load(folder.model_path())


def _name_of(task: Task) -> str:
    """Return the name of a task. Raises `UserError` for one that its name does not find again."""
    if replace(find_task(task.name), sizes=task.sizes, pods=task.pods) != task:
        raise UserError(
            f"task: {task.name!r} was changed in this program, and a run finds its task by name; "
            "put the task into a file and train on FILE.py:NAME"
        )
    return task.name


def carry_out(
    config: TrainConfig, folder: RunFolder, stop: Callable[[], bool] = lambda: False, *, progress: bool = True
) -> Progress:
    """Train in a folder until the steps are done, `stop()` is true or nothing improves, and leave a report there."""
    result = run_training(config, folder, stop, progress=progress)
    if result.best_step >= 0:
        folder.picture(_last_placement(config, folder), result.step)
    folder.flush()
    written(lambda: write_training_report(folder.path))
    return result


def run_folder(config: TrainConfig) -> Path:
    """Return the folder that a run has unless told otherwise."""
    return RUNS / f"{config.agent.name}-{config.label}-s{config.seed}"


def _unused(path: Path) -> Path:
    """Return the path, or with the next number where there is something already."""
    number = 2
    while path.exists():
        path, number = path.with_name(f"{path.name.removesuffix(f'-{number - 1}')}-{number}"), number + 1
    return path


def _last_placement(config: TrainConfig, folder: RunFolder) -> npt.NDArray[np.uint8]:
    """Return the best model's placement of one validation episode as a picture, uint8 [H, W, 3]."""
    cluster = EnvFactory(config.env_config).build(VALIDATION_SEEDS, config.sizes[0])
    play(cluster, load(folder.model_path()))
    return picture(cluster)


def open_run(
    config: TrainConfig, path: Path, *, resume: bool, said: Collection[str] | None = None
) -> tuple[TrainConfig, RunFolder]:
    """Open a run folder: a new one, or with `resume` one that is there, whose settings count.

    `said` are the settings of `config` that a person named, None for all: `steps` and `workers` among them count in
    place of the run's. Raises `UserError` when the folder holds a run already and `resume` is not set, or holds one
    for which another of them has another value.
    """
    if path == Path():
        raise bad_value("out", "", "a folder of the run's own")
    known = read_config(path)
    if known is None:
        if config.steps == 0 and not isinstance(config.agent, NetworkAgent):
            raise bad_value("steps", 0, f"at least 1: {config.agent.name} begins with nothing")
        if isinstance(config.agent, NetworkAgent):
            config.check_method()
            check_device(config.device)
        if resume:
            _log.warning("%s holds no run to go on with: a new one begins", path)
        factory = EnvFactory(config.env_config)  # what cannot be made is told before there is a folder
        _try(config, factory)
        if config.start is not None:
            # a model file that the agent cannot go on from is refused
            first_agent(config.network, config.begins_with, observation_spec=factory.observation_spec, seed=config.seed)
        for spec in {config.reference, config.rollout} - {"", "agent"}:
            factory.policy(spec)
        stem = f"{config.agent.name}_{config.label}_s{config.seed}"
        if config.reward and config.method == "auto" and config.why_no_group and isinstance(config.agent, NetworkAgent):
            _log.warning("%s: a cluster at a time, some hundred times slower", config.why_no_group)
        config = config.resolved  # what it is made of stays, whatever other defaults come later
        facts = {"training": plain(config), "inputs": inputs_of(config), _MADE_OF: program_made_of()}
        return config, RunFolder.create(path, stem, facts, _hyperparameters(config))
    if not resume:
        raise UserError(f"out: {path} holds a run already; go on with --resume, or choose another folder")
    return _same_run(config, known, path, said), RunFolder.open(path)


def _try(config: TrainConfig, factory: EnvFactory) -> None:
    """Try the sizes, and a person's own reward on a few pods. Raises `UserError` for what cannot be."""
    for size in config.sizes:
        factory.task.size(size, config.pods)
    reward = factory.reward()
    files = [Path(part.rpartition(".py:")[0] + ".py").resolve() for part in config.reward.split(",") if ".py:" in part]
    if not files:
        return
    accepted = "a number from (state), which is a potential, or from (context, node)"
    try:
        cluster = factory.build(TRAINING_SEEDS, config.sizes[0])
        rewards = play(cluster, factory.policy(config.reference), reward, max_decisions=_TRIED).reward
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"reward {config.reward}: {failure_of(error, *files)}; expected {accepted}") from error
    if not isfinite(rewards):
        raise UserError(f"reward {config.reward}: {rewards} is not accepted; expected {accepted}, and a finite one")


def _same_run(config: TrainConfig, known: Mapping[str, Any], path: Path, said: Collection[str] | None) -> TrainConfig:
    """Return the settings by which a run goes on that is `known` by its config.json; see `open_run`."""
    stored = changed(TrainConfig(), known["training"])
    _check_same(config, stored, path, said)
    same_inputs(inputs_of(stored), known.get("inputs"), path)
    if known.get(_MADE_OF, program_made_of()) != program_made_of():
        _log.warning("the run in %s was begun with another version of AAML; it goes on with what there is now", path)
    told = {name: getattr(config, name) for name in _FREE if said is None or name in said}
    steps = told.get("steps", stored.steps)
    if steps < stored.steps:
        raise bad_value("steps", steps, f"at least {stored.steps}, for which {path} was begun, or more to go on")
    if stored.resolved_method == "group" and (workers := told.get("workers", "1")) != "1":
        raise bad_value("workers", workers, "1: one process plays the episodes in lockstep that the run learns from")
    return replace(stored, **told, method=stored.resolved_method)  # which hangs on the number of workers


def inputs_of(config: TrainConfig) -> dict[str, str]:
    """Return what a training learns from besides its settings, by contents."""
    specs = {"teacher": config.teacher, "rollout": config.rollout}
    start = () if config.start is None else with_critic(model_file(config.start))
    lists = () if config.trace is None else trace_files(config.trace)
    return inputs([find_task(config.task)], specs, {"start": start, "trace": lists}, config.reward)


def _check_same(config: TrainConfig, stored: TrainConfig, path: Path, said: Collection[str] | None) -> None:
    """Raise `UserError` for a setting that is not that of the run; see `open_run`."""
    told, known = plain(config.resolved), plain(stored.resolved)
    for name, value in told.items():
        if name not in _FREE and (said is None or name in said) and known.get(name) != value:
            raise UserError(
                f"{name}: {value!r} is not what the run in {path} was begun with, {known.get(name)!r}; "
                "choose another folder"
            )


_ALWAYS_SHOWN = {
    "agent", "task", "nodes", "seed", "steps", "agent.learning_rate", "agent.hidden_size",
}  # fmt: skip


def _hyperparameters(config: TrainConfig) -> dict[str, bool | int | float | str]:
    """Return what tells runs apart: the settings that matter most, and those that were changed."""
    usual = _flat(TrainConfig(agent=AGENTS[config.agent.name], steps=config.steps, method=config.method))
    told = {name: value for name, value in _flat(config).items() if name in _ALWAYS_SHOWN or usual.get(name) != value}
    return {name: value for name, value in told.items() if isinstance(value, bool | int | float | str)}


def _flat(config: TrainConfig) -> dict[str, Any]:
    agent = plain(config.learner)
    training = {name: value for name, value in plain(config).items() if name not in agent}
    given = {**training, **{f"agent.{name}": value for name, value in agent.items()}}
    lists = {name: ", ".join(map(str, value)) for name, value in given.items() if isinstance(value, list)}
    return {**given, **lists, "nodes": ", ".join(map(str, config.sizes))}
