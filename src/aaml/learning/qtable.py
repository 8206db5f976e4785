"""The binned Q-table for a handful of nodes: free memory of each node and pending demand, only visited states kept.

States that differ in the order of the nodes alone are one: nodes are sorted by their bins, and an action is a place in
that order. Nodes in the same bin are the same action; the emptiest (or the fullest) of them takes the pod. All of it is
read off the observation that networks see, so that a table learns in compiled episodes what it acts by anywhere else.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from aaml.errors import UserError
from aaml.files import write_json
from aaml.learning.config import QTable
from aaml.scheduling.curves import CUMULATIVE_REWARD, EPSILON, TABLE_STATES, VALUE_LOSS
from aaml.scheduling.observation import (
    NODE,
    PLAIN,
    POD,
    POD_FEATURES,
    UPCOMING,
    UPCOMING_FEATURES,
    Context,
    ObservationSpec,
)
from aaml.scheduling.ports import Decision, Transition, shown
from aaml.scheduling.rewards import check_reward
from aaml.schema import convert, of_json, read_bytes
from aaml.settings import changed, plain

FORMAT, VERSION = "aaml-qtable", 2
State = tuple[int, ...]
FloatArray = npt.NDArray[np.float32]
_FINEST = 1e-5  # of a bin: less is how a float32 is rounded


@dataclass(frozen=True)
class BinnedState:
    """A binned state: its key, and what each node is in it.

    `places` has, by node, the first place in the sorted order with this node's bin, `choices` the places that may be
    chosen, each bin once; `free` is by node the free memory, in terms of the largest node's, and `may` whether the pod
    fits.
    """

    key: State
    places: tuple[int, ...]
    choices: tuple[int, ...]
    free: tuple[float, ...] = ()
    may: tuple[bool, ...] = ()


class QTableAgent:
    """Tabular Q-learning (Watkins and Dayan 1992) over sorted, binned states; an `Agent` like the others."""

    __repr__ = shown

    def __init__(
        self, config: QTable = QTable(), *, observation_spec: ObservationSpec = PLAIN, seed: int = 0, learn: bool = True
    ) -> None:
        self.name = "qtable"
        self.config = config
        self.learning = learn
        self.observation_spec = ObservationSpec(lookahead=observation_spec.lookahead)
        self.table: dict[State, dict[int, list[float]]] = {}  # key -> place -> [value, visits]
        self.rng = np.random.default_rng(seed)
        self.epsilon = config.init_epsi
        self._decay = config.decay()
        self.reward_sum = 0.0
        self.decisions = 0
        self._error = 0.0

    def observation_of(self, context: Context) -> BinnedState:
        """Bin a state: free memory of each node, sorted, whether it may be chosen, then the pods' demands."""
        seen = context.observation_by(self.observation_spec)
        (one,) = self.look(seen.nodes[None], seen.pod[None], seen.mask[None], [len(seen.mask)])
        return one

    def look(
        self, nodes: FloatArray, pod: FloatArray, mask: npt.NDArray[np.bool_], counts: Sequence[int]
    ) -> list[BinnedState]:
        """Bin what B rows see: float32 [B, N, F] and [B, P], bool [B, N], and how many nodes each has."""
        unused = np.maximum(1.0 - nodes[:, :, NODE.memory_used].astype(np.float64), 0.0)
        # A bin that may be chosen and one that may not are different nodes: twice the bin, plus one if it may.
        codes = 2 * (unused * self.config.bins + _FINEST).astype(np.int64) + mask
        free = unused * nodes[:, :, NODE.memory_size]
        shown = pod[:, len(POD_FEATURES) :].reshape(len(pod), -1, len(UPCOMING_FEATURES))
        asked = np.column_stack([pod[:, POD.memory], shown[:, :, UPCOMING.memory]]).astype(np.float64)
        most = self.config.demand_bins
        demand = np.minimum((4 * most * asked + _FINEST).astype(np.int64), most)
        demand[:, 1:][~shown.any(axis=2)] = -1  # no such pod
        rows = zip(codes.tolist(), mask.tolist(), free.tolist(), demand.tolist(), counts, strict=True)
        return [_seen(code[:n], may[:n], room[:n], pods) for code, may, room, pods, n in rows]

    def act(self, context: Context) -> Decision:
        """Choose a place by its value, or explore; a feasible node of that place takes the pod."""
        node_index, place = self.choose(self.observation_of(context), explore=self.learning)
        return Decision(node_index, info={"place": float(place)})

    def choose(self, seen: BinnedState, *, explore: bool) -> tuple[int, int]:
        """Return (node_index, place): the place with the highest value, now and then a random one to `explore`."""
        if explore and self.rng.random() < self.epsilon:
            place = int(self.rng.choice(seen.choices))
        else:
            values = self.table.get(seen.key, {})
            place = max(seen.choices, key=lambda each: values[each][0] if each in values else 0.0)
        node_indices = [
            node_index for node_index, own in enumerate(seen.places) if own == place and seen.may[node_index]
        ]
        best = min if self.config.takes == "fullest" else max
        return best(node_indices, key=lambda node_index: seen.free[node_index]), place

    def update(self, seen: BinnedState, place: int, reward: float, following: BinnedState | None) -> float:
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
            self.learn_from(transition.observation, place, transition.reward, transition.next_observation)

    def learn_from(self, seen: BinnedState, place: int, reward: float, following: BinnedState | None) -> None:
        """Learn from one step at once, as `update` does, and remember its error for the curves."""
        self._error = self.update(seen, place, reward, following)

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
        config = {**plain(self.config), "lookahead": self.observation_spec.lookahead}
        content = {"format": FORMAT, "version": VERSION, "config": config, "table": self._rows()}
        write_json(path, content, field="model")
        return [str(path)]

    def _rows(self) -> list[Any]:
        return [
            [list(key), {str(place): list(entry) for place, entry in values.items()}]
            for key, values in self.table.items()
        ]


def _seen(codes: list[int], may: list[bool], free: list[float], demand: list[int]) -> BinnedState:
    ordered = sorted(codes)
    places = tuple(ordered.index(code) for code in codes)
    choices = tuple(sorted({place for place, able in zip(places, may, strict=True) if able}))
    return BinnedState((*ordered, *demand), places, choices, tuple(free), tuple(may))


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["aaml-qtable"]
    version: Literal[2]
    config: dict[str, Any]
    table: list[tuple[list[int], dict[str, tuple[float, float]]]]


def _table(rows: Sequence[tuple[list[int], dict[str, tuple[float, float]]]]) -> dict[State, dict[int, list[float]]]:
    return {
        tuple(key): {int(place): [float(value), float(visits)] for place, (value, visits) in values.items()}
        for key, values in rows
    }


def load_qtable(path: Path | str, *, learn: bool = False, seed: int = 0) -> QTableAgent:
    """Read a table. Raises `UserError` for a file that is missing or no table."""
    where = f"model {path}"
    content = read_bytes(Path(path), "model")
    try:
        found = convert(of_json(content, where), _File, where)
        observation_spec = ObservationSpec(lookahead=int(found.config.pop("lookahead")))
        agent = QTableAgent(changed(QTable(), found.config), observation_spec=observation_spec, seed=seed, learn=learn)
        agent.table = _table(found.table)
    except (ValueError, KeyError, TypeError, UserError) as error:
        raise UserError(f"{where}: is not a Q-table ({error})") from error
    agent.epsilon = agent.config.min_epsi
    return agent
