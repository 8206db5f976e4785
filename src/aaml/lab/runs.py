"""What a person points at when asking about runs: folders of `aaml evaluate` and `aaml train`, and logs."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from aaml.errors import UserError, bad_value
from aaml.evaluation.evaluate import SEEDS
from aaml.evaluation.identity import with_identity
from aaml.evaluation.results import REFERENCE, RESULTS, Results
from aaml.evaluation.run_spec import RunSpec, find_attempt
from aaml.evaluation.zoo import model_file
from aaml.insight.explanation import Explanation
from aaml.policies.registry import POLICIES
from aaml.settings import changed
from aaml.sim.tasks import find_task
from aaml.training.records import CONFIG, read_config
from aaml.training.settings import TrainConfig

_log = logging.getLogger(__name__)
_ACCEPTED = "a folder of `aaml evaluate` or `aaml train`"


@dataclass(frozen=True)
class Playable:
    """Episodes that can be played again: a task at some sizes, on some seeds, by some policies; `run` is the folder.

    Rows that no policy plays are left out: a solver's placement and its bound, what was recorded, what ran live.
    """

    spec: RunSpec
    nodes: tuple[int, ...]
    seeds: tuple[int, ...]
    policies: tuple[str, ...]
    run: str = ""


def playable(path: Path) -> list[Playable]:
    """Return the episodes that a folder tells of. Raises `UserError` when it is no folder of runs."""
    if (path / RESULTS).is_file():
        return [replace(each, run=path.resolve().name) for each in _evaluated(Results.read(path))]
    if (path / CONFIG).is_file():
        return [replace(_trained(path), run=path.resolve().name)]
    raise bad_value("run", str(path), _ACCEPTED)


def played(
    path: Path, which: int | str, policy: str = "", task: str = "", seed: int | None = None, nodes: int | None = None
) -> Explanation:
    """Explain a decision of a run, by its number or the name of its pod. Raises `UserError` when there is none.

    A training's run is one of its model, on the first seed of those that policies are evaluated on.
    """
    if (path / RESULTS).is_file():
        return Results.read(path).explain(which, policy=policy, seed=seed, nodes=nodes, task=task)
    (found,) = playable(path)
    if task not in ("", found.spec.task.name):
        raise bad_value("task", task, f"{found.spec.task.name}, the one of this training")
    player, drawn = policy or found.policies[0], found.seeds[0] if seed is None else seed
    replay = found.spec.replay(player, drawn, nodes or found.nodes[0])
    return found.spec.explain(replay, find_attempt(replay, which), seed=drawn)


def _evaluated(results: Results) -> list[Playable]:
    found = []
    for task, runs in results.runs.groupby("task", sort=True):
        spec = results.run_specs.get(str(task)) or RunSpec(find_task(str(task)))
        labels = _unique(runs["policy"].tolist())
        named = [label for label in labels if label in spec.policies or label in POLICIES.names()]
        # What was learned is what people ask about: it is on the left, and what others are compared with on the right.
        ours = next((label for label in named if label in results.learned), None)
        order = {name: (name != ours, name != REFERENCE, name not in results.learned) for name in named}
        policies = tuple(sorted(named, key=order.__getitem__))
        nodes, seeds = (tuple(map(int, _unique(runs[name].tolist()))) for name in ("nodes", "seed"))
        _compare(spec, runs[runs["policy"].isin(policies)])
        if policies:
            found.append(Playable(spec, nodes, seeds, policies))
    return found


def _compare(spec: RunSpec, runs: pd.DataFrame) -> None:
    """Say in the log which policies are not what they were."""
    for _, row in with_identity(runs.drop_duplicates("policy")).iterrows():
        with suppress(UserError):  # its file is gone: who asks for its replay is told
            if other := spec.changed({str(name): value for name, value in row.items()}):
                _log.warning("%s; what is played is not what was evaluated: bring it back, or evaluate it again", other)


def _trained(path: Path) -> Playable:
    config = changed(TrainConfig(), (read_config(path) or {})["training"])
    model = model_file(path)
    players = {config.agent.name: str(model)} if model.is_file() else {}
    others = dict.fromkeys((config.reference, "kube-scheduler"))
    spec = RunSpec(find_task(config.task), {**players, **{name: name for name in others}}, config.pods)
    return Playable(spec, config.sizes, tuple(SEEDS), (*players, *others))


def _unique(values: Sequence) -> list:  # type: ignore[type-arg]
    return list(dict.fromkeys(values))
