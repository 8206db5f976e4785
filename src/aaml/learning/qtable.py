"""The binned Q-table for a handful of nodes: free memory of each node and pending demand, only visited states kept.

States that differ in the order of the nodes alone are one: nodes are sorted by their bins, and an action is a place in
that order. Nodes in the same bin are the same action; the emptiest (or the fullest) of them takes the pod.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aaml.cluster.quantity import MEMORY
from aaml.errors import UserError, bad_value
from aaml.learning.files import write_json
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision, Transition

FORMAT, VERSION = "aaml-qtable", 2
State = tuple[int, ...]


@dataclass(frozen=True)
class QTableConfig:
    """`bins` of a node's free memory (fractions of its size), `demand_bins` of a pod's request (of the mean node).

    A node whose memory is all free has a bin of its own. `takes`: which node of the chosen bin takes the pod.
    `lookahead`: how many following pods the state shows. `step`: the learning rate, decaying with 1 / sqrt(visits).
    """

    bins: int = 12
    demand_bins: int = 6
    lookahead: int = 1
    takes: Literal["emptiest", "fullest"] = "emptiest"
    gamma: float = 0.3
    step: float = 0.5
    init_epsi: float = 1.0
    min_epsi: float = 0.02
    epsi_decay: float = 0.9995

    def __post_init__(self) -> None:
        for name in ("bins", "demand_bins"):
            if getattr(self, name) < 1:
                raise bad_value(name, getattr(self, name), "a whole number of at least 1")
        if self.takes not in {"emptiest", "fullest"}:
            raise bad_value("takes", self.takes, "emptiest or fullest")
        for name in ("gamma", "step", "init_epsi", "min_epsi", "epsi_decay"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise bad_value(name, getattr(self, name), "a number between 0 and 1")


@dataclass(frozen=True)
class Seen:
    """A binned state: its key, the place in the sorted order of each row's bin, and which places may be chosen."""

    key: State
    places: tuple[int, ...]  # by row: the first place with this row's bin
    choices: tuple[int, ...]  # places, each bin once


class QTableAgent:
    """Tabular Q-learning (Watkins and Dayan 1992) over sorted, binned states; an `Agent` like the others."""

    def __init__(self, config: QTableConfig = QTableConfig(), *, seed: int = 0, learn: bool = True) -> None:
        self.name = "qtable"
        self.config = config
        self.learning = learn
        self.lookahead = config.lookahead
        self.table: dict[State, dict[int, list[float]]] = {}  # key -> place -> [value, visits]
        self.rng = np.random.default_rng(seed)
        self.epsilon = config.init_epsi
        self.reward_sum = 0.0
        self.decisions = 0

    def see(self, context: Context) -> Seen:
        """Bin a state: free memory of each node, sorted, whether it may be chosen, then the pods' demands."""
        state = context.state
        column = state.resource_index[MEMORY]
        size = np.maximum(state.allocatable[:, column], 1)
        free = 1.0 - state.requested[:, column] / size
        bins = (free * self.config.bins).astype(int)
        mean = max(float(size[state.capacity].mean()) if state.capacity.any() else 1.0, 1.0)
        pods = [context.pod, *list(context.upcoming)[: self.config.lookahead]]
        demand = [min(int(pod.request(MEMORY) / mean * 4 * self.config.demand_bins), self.config.demand_bins)
                  for pod in pods]  # fmt: skip
        demand += [-1] * (1 + self.config.lookahead - len(demand))
        # A bin that may be chosen and one that may not are different nodes: twice the bin, plus one if it may.
        codes = 2 * bins + context.mask
        ordered = sorted(codes.tolist())
        places = tuple(ordered.index(code) for code in codes.tolist())
        choices = tuple(sorted({place for place, may in zip(places, context.mask, strict=True) if may}))
        return Seen((*ordered, *demand), places, choices)

    def act(self, context: Context) -> Decision:
        """Choose a place by its value, or explore; a feasible node of that place takes the pod."""
        seen = self.see(context)
        if self.learning and self.rng.random() < self.epsilon:
            place = int(self.rng.choice(seen.choices))
        else:
            values = self.table.get(seen.key, {})
            place = max(seen.choices, key=lambda each: values[each][0] if each in values else 0.0)
        column = context.state.resource_index[MEMORY]
        free = context.state.allocatable[:, column] - context.state.requested[:, column]
        rows = [row for row, own in enumerate(seen.places) if own == place and context.mask[row]]
        best = max if self.config.takes == "emptiest" else min
        return Decision(best(rows, key=lambda row: int(free[row])), info={"place": float(place)})

    def update(self, seen: Seen, place: int, reward: float, following: Seen | None) -> float:
        """Learn from one step; returns the size of the error. `following` None: the episode is over."""
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
        self.epsilon = max(self.config.min_epsi, self.epsilon * self.config.epsi_decay)
        return float(abs(error))

    def observe(self, transition: Transition) -> None:
        """Take no experience: a table reads states, not features; `train_qtable` feeds `update`."""

    def learn(self) -> Mapping[str, float]:
        """Return nothing: `update` learns at each step."""
        return {}

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
        content = {"format": FORMAT, "version": VERSION, "config": asdict(self.config), "table": self._rows()}
        write_json(path, content)
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
            raise UserError(f"model {path}: is not a Q-table of this version")
        agent = QTableAgent(QTableConfig(**content["config"]), seed=seed, learn=learn)
        agent.table = _table(content["table"])
    except OSError as error:
        raise UserError(f"model {path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"model {path}: is not a Q-table ({error})") from error
    agent.epsilon = agent.config.min_epsi
    return agent


__all__ = ["QTableAgent", "QTableConfig", "Seen", "load_qtable"]
