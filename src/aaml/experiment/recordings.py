"""Recordings as experience: read back, turned into observations, and put into a replay buffer in seconds."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.errors import UserError, bad_value
from aaml.scheduling.observation import Featurizer, Observation
from aaml.scheduling.ports import Transition
from aaml.telemetry.recording import COLUMNS, nodes_path
from aaml.workload.table import Parser, number, quantity, read_table, whole_number

if TYPE_CHECKING:
    import pandas as pd

    from aaml.learning.agent import LearnedAgent

_STANDARD = {CPU: 64_000, MEMORY: 256 * 1024**3, PODS: 110}  # what `aaml nodes` makes; for tables without sizes
_PREFIXES = ("cpu", "memory", "pods")


def read_recording(path: Path | str) -> "pd.DataFrame":
    """Read data/sched_*.csv as a table; `attrs["nodes"]` holds the nodes' sizes by name.

    Raises `UserError` naming file, line, column and value of the first mistake.
    """
    import pandas as pd

    path = Path(path)
    rows = list(_rows(path))
    if not rows:
        raise UserError(f"{path}: has no placements, only a header")
    table = pd.DataFrame(rows)
    sizes = _sizes(nodes_path(path))
    if sizes is not None:
        table.attrs["nodes"] = sizes
    return table


def transitions(table: "pd.DataFrame", featurizer: Featurizer) -> Iterator[Transition]:
    """Yield the steps of a recording in order; `table.attrs["nodes"]` gives sizes, standard nodes are assumed without.

    Raises `UserError` when the table is no recording.
    """
    names = _node_names(list(table.columns))
    sizes: Mapping[str, Mapping[str, int]] = table.attrs.get("nodes", {})
    state = ClusterState(Node(name, sizes.get(name, _STANDARD)) for name in names)
    previous: tuple[Observation, Mapping[str, Any]] | None = None
    records = cast("list[dict[str, Any]]", table.to_dict("records"))
    for number_, row in enumerate(records, 1):
        observation = _observe(state, names, row, featurizer, f"row {number_}")
        if previous is not None:
            yield _transition(*previous, observation)
        previous = (observation, row)
    if previous is not None:
        yield _transition(*previous, None)


def fill_replay(agent: "LearnedAgent", recording: "pd.DataFrame | Path | str") -> int:
    """Put a recording's steps into the replay buffer of a DQN agent; returns how many became experience.

    Raises `UserError` for an agent without such a buffer: an actor learns only from what it chose itself.
    """
    from aaml.learning.agent import ValueAgent
    from aaml.learning.replay import NStep

    if not isinstance(agent, ValueAgent):
        raise UserError(f"agent {agent.kind}: has no replay buffer to fill; dqn and gnn have one")
    table = read_recording(recording) if isinstance(recording, str | Path) else recording
    chain, added = NStep(agent.config.n_step, agent.config.gamma), 0
    for step in transitions(table, Featurizer(lookahead=agent.lookahead)):
        agent.scale.add(step.reward)
        for item in chain.push(step):
            agent.replay.add(item)
            added += 1
    return added


def _transition(observation: Observation, row: Mapping[str, Any], following: Observation | None) -> Transition:
    return Transition(
        observation, int(row["action"]), float(row["reward"]), following, truncated=bool(int(row["done"]))
    )


def _observe(
    state: ClusterState, names: Sequence[str], row: Mapping[str, Any], featurizer: Featurizer, where: str
) -> Observation:
    """Set the nodes' use to what the row says and look at the row's pod."""
    for prefix, resource in zip(_PREFIXES, (CPU, MEMORY, PODS), strict=True):
        column = state.resource_index[resource]
        used = np.array([float(row.get(f"{prefix}_{name}", 0.0)) for name in names])
        if resource == PODS:
            state.requested[:, column] = used.astype(np.int64)
        else:
            state.requested[:, column] = np.rint(used * state.allocatable[:, column]).astype(np.int64)
    requests = {
        CPU: _amount(quantity(CPU), row["cpu_request"], f"{where}, cpu_request"),
        MEMORY: _amount(quantity(MEMORY), row["memory_request"], f"{where}, memory_request"),
    }
    pod = Pod(str(row["pod_name"]), requests=requests)
    state.generation += 1  # the amounts were set past the state's own methods: caches must look at every row again
    state.node_generation[:] = state.generation
    mask = np.all(state.requested + state.request_vector(pod) <= state.allocatable, axis=1)
    action = int(row["action"])
    if not 0 <= action < len(names):
        raise bad_value(f"{where}, action", action, f"a node's place, 0 to {len(names) - 1}")
    mask[action] = True  # it was placed there
    return featurizer(state, pod, mask)


def _amount(parse: Parser, value: Any, field: str) -> int:
    return int(value) if isinstance(value, int | np.integer) else int(parse(field, str(value)))


def _node_names(columns: Sequence[str]) -> list[str]:
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise UserError(f"recording: column {missing[0]!r} is missing; expected {', '.join(COLUMNS)} and cpu_<node>")
    names = [name.removeprefix("cpu_") for name in columns if name.startswith("cpu_") and name != "cpu_request"]
    if not names:
        raise UserError("recording: has no cpu_<node> columns")
    return names


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    required: dict[str, Parser] = {
        "pod_name": lambda _field, text: text,
        "action": whole_number(0),
        "reward": number(float("-inf")),
        "done": _flag,
        "cpu_request": quantity(CPU),
        "memory_request": quantity(MEMORY),
    }
    try:
        with path.open(encoding="utf-8-sig") as file:
            header = [name.strip() for name in file.readline().split(",")]
    except (OSError, UnicodeDecodeError):
        header = []  # read_table says what is wrong
    wide = {name: number(0.0) for name in header if name.startswith(tuple(f"{p}_" for p in _PREFIXES))}
    names = [name.removeprefix("cpu_") for name in wide if name.startswith("cpu_") and name != "cpu_request"]
    for line, row in enumerate(read_table(path, required | {n: p for n, p in wide.items() if n not in required}), 2):
        if row["action"] >= len(names):
            raise bad_value(
                f"{path}, line {line}, column action", row["action"], f"0 to {len(names) - 1}, a node's place"
            )
        yield row


def _flag(field: str, text: str) -> int:
    words = {"0": 0, "1": 1, "false": 0, "true": 1}
    if text.lower() not in words:
        raise bad_value(field, text, "0 or 1")
    return words[text.lower()]


def _sizes(path: Path) -> dict[str, dict[str, int]] | None:
    if not path.is_file():
        return None
    required: dict[str, Parser] = {
        "name": lambda _field, text: text,
        "cpu": quantity(CPU),
        "memory": quantity(MEMORY),
        "pods": whole_number(0),
    }
    return {
        row["name"]: {CPU: row["cpu"], MEMORY: row["memory"], PODS: row["pods"]} for row in read_table(path, required)
    }
