"""The binned Q-table for a handful of nodes: free memory of each node and pending demand, only visited states kept.

States that differ in the order of the nodes alone are one: nodes are sorted by their bins, and an action is a place in
that order. Nodes in the same bin are the same action; the emptiest (or the fullest) of them takes the pod.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from aaml.cluster.quantity import MEMORY
from aaml.errors import UserError
from aaml.files import write_json
from aaml.learning.config import QTable
from aaml.scheduling.curves import CUMULATIVE_REWARD, EPSILON, TABLE_STATES, VALUE_LOSS
from aaml.scheduling.observation import PLAIN, Context, ObservationSpec
from aaml.scheduling.ports import Decision, Transition
from aaml.scheduling.rewards import check_reward
from aaml.settings import changed, plain

FORMAT, VERSION = "aaml-qtable", 2
State = tuple[int, ...]


@dataclass(frozen=True)
class Seen:
    """A binned state: its key, the place in the sorted order of each row's bin, and which places may be chosen."""

    key: State
    places: tuple[int, ...]  # by row: the first place with this row's bin
    choices: tuple[int, ...]  # places, each bin once


class QTableAgent:
    """Tabular Q-learning (Watkins and Dayan 1992) over sorted, binned states; an `Agent` like the others."""

    def __init__(
        self, config: QTable = QTable(), *, sees: ObservationSpec = PLAIN, seed: int = 0, learn: bool = True
    ) -> None:
        self.name = "qtable"
        self.config = config
        self.learning = learn
        self.sees = ObservationSpec(lookahead=sees.lookahead)
        self.table: dict[State, dict[int, list[float]]] = {}  # key -> place -> [value, visits]
        self.rng = np.random.default_rng(seed)
        self.epsilon = config.init_epsi
        self._decay = config.decay()
        self.reward_sum = 0.0
        self.decisions = 0
        self._error = 0.0

    def perceive(self, context: Context) -> Seen:
        """Bin a state: free memory of each node, sorted, whether it may be chosen, then the pods' demands."""
        state = context.state
        column = state.resource_index[MEMORY]
        size = np.maximum(state.allocatable[:, column], 1)
        free = 1.0 - state.requested[:, column] / size
        bins = (free * self.config.bins).astype(int)
        mean = max(float(size[state.capacity].mean()) if state.capacity.any() else 1.0, 1.0)
        pods = [context.pod, *list(context.upcoming)[: self.sees.lookahead]]
        demand = [min(int(pod.request(MEMORY) / mean * 4 * self.config.demand_bins), self.config.demand_bins)
                  for pod in pods]  # fmt: skip
        demand += [-1] * (1 + self.sees.lookahead - len(demand))
        # A bin that may be chosen and one that may not are different nodes: twice the bin, plus one if it may.
        codes = 2 * bins + context.mask
        ordered = sorted(codes.tolist())
        places = tuple(ordered.index(code) for code in codes.tolist())
        choices = tuple(sorted({place for place, may in zip(places, context.mask, strict=True) if may}))
        return Seen((*ordered, *demand), places, choices)

    def act(self, context: Context) -> Decision:
        """Choose a place by its value, or explore; a feasible node of that place takes the pod."""
        seen = self.perceive(context)
        if self.learning and self.rng.random() < self.epsilon:
            place = int(self.rng.choice(seen.choices))
        else:
            values = self.table.get(seen.key, {})
            place = max(seen.choices, key=lambda each: values[each][0] if each in values else 0.0)
        column = context.state.resource_index[MEMORY]
        free = context.state.allocatable[:, column] - context.state.requested[:, column]
        rows = [row for row, own in enumerate(seen.places) if own == place and context.mask[row]]
        best = min if self.config.takes == "fullest" else max
        return Decision(best(rows, key=lambda row: int(free[row])), info={"place": float(place)})

    def update(self, seen: Seen, place: int, reward: float, following: Seen | None) -> float:
        """Learn from one step; returns the size of the error. `following` None: the episode is over.

        Raises `UserError` for a reward that is no finite number, and nothing is learned.
        """
        check_reward(reward)
        entry = self.table.setdefault(seen.key, {}).setdefault(place, [0.0, 0.0])
        best = 0.0
        if following is not None:
            values = self.table.get(following.key, {})
            best = max(values[each][0] if each in values else 0.0 for each in following.choices)
        entry[1] += 1.0
        error = reward + self.config.gamma * best - entry[0]
        entry[0] += self.config.step / sqrt(entry[1]) * error
        self.reward_sum += reward
        self.decisions += 1
        self.epsilon = max(self.config.min_epsi, self.epsilon * self._decay)
        return float(abs(error))

    def observe(self, transition: Transition) -> None:
        """Learn from one step at once; one that nothing followed, though the cluster goes on, is left out."""
        if self.learning and (transition.next_observation is not None or transition.terminated):
            place = int(transition.info["place"])
            self._error = self.update(transition.observation, place, transition.reward, transition.next_observation)

    def learn(self) -> Mapping[str, float]:
        """Return scalars to record: `observe` has learned already."""
        if not self.learning or not self.decisions:
            return {}
        curves = {CUMULATIVE_REWARD: self.reward_sum, VALUE_LOSS: self._error, EPSILON: self.epsilon}
        return {**curves, TABLE_STATES: float(len(self.table))}

    def state(self) -> dict[str, Any]:
        """Return plain values that `restore` goes on from, the same to the last bit."""
        return {
            "table": self._rows(),
            "rng": json.dumps(self.rng.bit_generator.state),
            **{name: getattr(self, name) for name in ("epsilon", "reward_sum", "decisions")},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; the agent must have been made with the same settings."""
        self.table = _table(state["table"])
        self.rng.bit_generator.state = json.loads(state["rng"])
        self.epsilon, self.reward_sum = float(state["epsilon"]), float(state["reward_sum"])
        self.decisions = int(state["decisions"])

    def save(self, directory: str, stem: str) -> Sequence[str]:
        """Write the table as JSON, whole or not at all."""
        path = Path(directory) / f"QTable_{stem}.json"
        config = {**plain(self.config), "lookahead": self.sees.lookahead}
        content = {"format": FORMAT, "version": VERSION, "config": config, "table": self._rows()}
        write_json(path, content, field="model")
        return [str(path)]

    def _rows(self) -> list[Any]:
        return [
            [list(key), {str(place): list(entry) for place, entry in values.items()}]
            for key, values in self.table.items()
        ]


def _table(rows: Sequence[Any]) -> dict[State, dict[int, list[float]]]:
    return {
        tuple(key): {int(place): [float(value), float(visits)] for place, (value, visits) in values.items()}
        for key, values in rows
    }


def load_qtable(path: Path | str, *, learn: bool = False, seed: int = 0) -> QTableAgent:
    """Read a table. Raises `UserError` for a file that is missing or no table."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"expected format {FORMAT}, version {VERSION}")  # noqa: TRY301
        config = dict(content["config"])
        sees = ObservationSpec(lookahead=int(config.pop("lookahead")))
        agent = QTableAgent(changed(QTable(), config), sees=sees, seed=seed, learn=learn)
        agent.table = _table(content["table"])
    except OSError as error:
        raise UserError(f"model {path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, UserError) as error:
        raise UserError(f"model {path}: is not a Q-table ({error})") from error
    agent.epsilon = agent.config.min_epsi
    return agent
