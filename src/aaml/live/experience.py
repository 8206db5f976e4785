"""Recordings as experience: turned into observations, and put into a replay buffer in seconds."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from aaml.cluster import fleet
from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.errors import UserError, bad_value
from aaml.learning.dqn_agent import DqnAgent
from aaml.scheduling.observation import PLAIN, Observation, ObservationSpec
from aaml.scheduling.ports import Transition
from aaml.telemetry.recording import COLUMNS, PREFIXES, node_names, read_recording
from aaml.workload.table import Parser, quantity

if TYPE_CHECKING:
    import pandas as pd

    from aaml.learning.agent import NeuralAgent

_STANDARD = fleet.STANDARD.allocatable()  # for tables without sizes


def transitions(table: "pd.DataFrame", spec: ObservationSpec = PLAIN) -> Iterator[Transition]:
    """Yield the transitions of a recording in order.

    `table.attrs["nodes"]` gives the sizes of nodes, by default those of standard nodes. Raises `UserError` when the
    table is no recording.
    """
    columns = list(table.columns)
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise UserError(f"recording: column {missing[0]!r} is missing; expected {', '.join(COLUMNS)} and cpu_<node>")
    names = node_names(columns)
    if not names:
        raise UserError("recording: has no cpu_<node> columns")
    sizes: Mapping[str, Mapping[str, int]] = table.attrs.get("nodes", {})
    state = ClusterState(Node(name, sizes.get(name, _STANDARD)) for name in names)
    previous: tuple[Observation, Mapping[str, Any]] | None = None
    records = cast("list[dict[str, Any]]", table.to_dict("records"))
    for number_, row in enumerate(records, 1):
        observation = _observe(state, names, row, spec, f"row {number_}")
        if previous is not None:
            yield _transition(*previous, observation)
        previous = (observation, row)
    if previous is not None:
        yield _transition(*previous, None)


def fill_replay(agent: "NeuralAgent", recording: "pd.DataFrame | Path | str") -> int:
    """Put a recording's steps into the replay buffer of a DQN agent; returns how many became experience.

    Raises `UserError` for an agent without such a buffer: an actor learns only from what it chose itself.
    """
    if not isinstance(agent, DqnAgent):
        raise UserError(f"agent {agent.name}: has no replay buffer to fill; dqn and gnn have one")
    table = read_recording(recording) if isinstance(recording, str | Path) else recording
    chain, added = agent.chain(), 0
    for step in transitions(table, agent.observation_spec):
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
    state: ClusterState, names: Sequence[str], row: Mapping[str, Any], spec: ObservationSpec, where: str
) -> Observation:
    """Set the use of the nodes to that of the row, and observe the row's pod."""
    for prefix, resource in zip(PREFIXES, (CPU, MEMORY, PODS), strict=True):
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
    state.generation += 1  # the amounts were set past the state's own methods: caches must look at every node again
    state.node_generation[:] = state.generation
    mask = np.all(state.requested + state.request_vector(pod) <= state.allocatable, axis=1)
    action = int(row["action"])
    if not 0 <= action < len(names):
        raise bad_value(f"{where}, action", action, f"a node's place, 0 to {len(names) - 1}")
    mask[action] = True  # it was placed there
    return spec.observe(state, pod, mask)


def _amount(parse: Parser, value: Any, field: str) -> int:
    return int(value) if isinstance(value, int | np.integer) else int(parse(field, str(value)))
