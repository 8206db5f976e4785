"""Train an agent in the simulator: warm start from a heuristic, then reinforcement learning; the best model is kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Args:
    """`aaml train`."""

    agent: Literal["gnn", "dqn", "acdqn", "acgnn", "qtable", "linear"] = "gnn"
    """GNN or MLP by DQN, MLP or GNN by actor-critic, the binned Q-table, or a linear scorer by cross-entropy"""
    task: str = "balance"
    """balance, compress, fragmentation, waiting, seedc, seedc-compress or seed-a"""
    steps: int = 60_000
    """decisions to learn from, after the warm start"""
    seed: int = 0
    """of weights, exploration and episodes: same seed, same curve"""
    envs: int = 8
    """clusters at once"""
    workers: str = "1"
    """what the clusters are dealt out over, the result is the same: processes (a number), ray for a Ray cluster of this
    machine, or ray:HOST:PORT for one that it is a node of"""
    nodes: tuple[int, ...] = ()
    """cluster sizes that episodes are drawn from; the task's own when none is given"""
    pods: int | None = None
    """pods of an episode; the task's own number when not given"""
    trace: str | None = None
    """an openb pod list whose requests take the place of the synthetic ones"""
    reward: str = ""
    """a reward by name, FILE.py:NAME, or a weighted sum; the task's own when empty"""
    teacher: str = ""
    """policy of the warm start: a name, a model file (whose order of waiting pods is the agent's too), or "none"; the
    task's usual one when empty"""
    teacher_steps: int = 6_000
    """decisions of the teacher to learn from first"""
    teacher_passes: int = 20
    """passes over the teacher's decisions"""
    validate_every: int = 8_192
    """decisions between validations, at which the run is saved"""
    validation_episodes: int = 6
    """validation episodes for each cluster size"""
    patience: int = 0
    """end after so many validations without a better one; 0: never"""
    lifetimes: bool = False
    """show the agent how long a pod will run"""
    method: Literal["rewards", "expert"] = "rewards"
    """reinforcement learning from rewards, or expert iteration: a look-ahead search chooses, the agent imitates it"""
    candidates: int = 3
    """expert: nodes tried for each pod, the agent's best"""
    samples: int = 16
    """expert: imagined futures that each is tried in"""
    horizon: int = 48
    """expert: arrivals of an imagined future"""
    rollout: str = ""
    """expert: policy that decides in a future; "agent" for the agent itself, the teacher when empty"""
    set: tuple[str, ...] = ()
    """settings of the agent, as NAME=VALUE (aaml.learning.config.AgentConfig)"""
    config: Path | None = None
    """YAML file with any of these settings (and `overrides`); it counts before the flags"""
    out: Path | None = None
    """run folder; runs/AGENT-TASK-sSEED when not given"""
    resume: bool = False
    """go on with the run in the folder"""


def run(args: Args) -> int:
    """Train, and say where the model is and how it compares."""
    from contextlib import closing

    from aaml.commands.signals import ends_by
    from aaml.experiment.train import TrainConfig, Trainer, open_run
    from aaml.experiment.train_simple import LEARNERS, train_simple

    config = TrainConfig.from_dict(_settings(args))
    path = args.out or Path("runs") / f"{config.agent}-{config.task}-s{config.seed}"
    config, folder = open_run(config, path, resume=args.resume)
    stopped: list[bool] = []
    with closing(folder), ends_by(lambda: stopped.append(True)) as interruption:
        if config.agent in LEARNERS:
            progress = train_simple(config, folder, lambda: bool(stopped))
        else:
            progress = Trainer(config, folder).run(lambda: bool(stopped))
    print(
        f"best validation score {progress.best:.3f} of {config.reference}'s (below 1 is better), "
        f"after {progress.best_step} of {progress.step} decisions"
    )
    print(f"model: {folder.model_path()}")
    print(f"next: aaml evaluate --task {config.task} --models {folder.model_path()}")
    return interruption.status


def _settings(args: Args) -> Mapping[str, Any]:
    """Return the fields of a `TrainConfig`: the flags, over which the file counts."""
    import dataclasses

    from aaml.experiment.settings import parse_settings

    fields = dataclasses.asdict(args)
    for name in ("config", "out", "resume"):
        del fields[name]
    fields["overrides"] = parse_settings(fields.pop("set"))
    return fields if args.config is None else {**fields, **read_yaml(args.config)}


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the settings of a YAML file. Raises `UserError` when it holds none."""
    import yaml

    from aaml.errors import UserError, bad_value

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise bad_value("config", str(path), f"a readable file ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise UserError(f"config {path}: is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"config {path}: expected settings as NAME: VALUE")
    return content
