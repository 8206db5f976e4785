"""A formula as a policy: the feasible node with the highest score, and of equal ones the first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.policies.formulas.expression import (
    FIRST_COST,
    FIRST_PAIR,
    FIRST_POD,
    NUMBERED,
    Expression,
    features,
    parts,
    summands,
)
from aaml.policies.formulas.program import Program, assemble, registers_of
from aaml.policies.formulas.text import to_text
from aaml.scheduling.observation import PLAIN, Context, Observation, ObservationSpec
from aaml.scheduling.ports import Decision, shown

FloatArray = npt.NDArray[np.float64]
VERSIONS: Mapping[str, int] = dict.fromkeys(NUMBERED, 1)
"""The version of each feature: raised when what it measures changes, so that older formulas are refused."""


@dataclass(frozen=True)
class Formula:
    """An expression, what its features are measured with, and where it came from (`provenance`: plain values)."""

    expression: Expression
    observation_spec: ObservationSpec = PLAIN
    provenance: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return to_text(self.expression, 4)


class FormulaPolicy:
    """Scores nodes by a formula; `scores` and `terms` are for `aaml explain`."""

    __repr__ = shown

    def __init__(self, formula: Formula, name: str = "formula") -> None:
        self.name = name
        self.formula = formula
        self.observation_spec = formula.observation_spec
        self._program = assemble(formula.expression)

    def act(self, context: Context) -> Decision:
        """Choose a node."""
        return Decision(int(np.where(context.mask, self.scores(context), -np.inf).argmax()))

    def scores(self, context: Context) -> FloatArray:
        """Return [N] scores; nodes outside the mask hold anything."""
        return _run(self._program, context.observation_by(self.observation_spec))

    @property
    def terms_are(self) -> str:
        """What the terms are."""
        return terms_are(self.formula.expression)

    def terms(self, context: Context) -> dict[str, FloatArray]:
        """Return what each term of the sum adds to the scores, by its text, [N]."""
        observation = context.observation_by(self.observation_spec)
        return terms_of(self.formula.expression, lambda program: _run(program, observation))


def terms_are(expression: Expression) -> str:
    """Return what the terms of a formula are, in half a sentence."""
    return f"the terms of {to_text(expression, 4)} (size {parts(expression)})"


def terms_of(expression: Expression, run: Callable[[Program], FloatArray]) -> dict[str, FloatArray]:
    """Return what each term of a sum adds to the scores, by its text; `run` gives the values of a program."""
    found = dict[str, FloatArray]()
    for sign, term in summands(expression):
        text = to_text(term, 4)
        found[text] = found.get(text, 0.0) + sign * run(assemble(term))
    return found


def columns_of(program_features: npt.NDArray[np.int64], observation: Observation) -> npt.NDArray[np.float32]:
    """Return float32 [L, N], the features of these numbers; those of the pod are the same for all nodes."""
    columns = np.empty((len(program_features), len(observation.mask)), dtype=np.float32)
    for row, number in enumerate(program_features):
        if number < FIRST_PAIR:
            columns[row] = observation.nodes[:, number]
        elif number < FIRST_POD:
            columns[row] = observation.pairs[:, number - FIRST_PAIR]
        elif number < FIRST_COST:
            columns[row] = observation.pod[number - FIRST_POD]
        else:  # 0 where costs are not shown
            place = FIRST_PAIR + number - FIRST_COST
            columns[row] = observation.nodes[:, place] if place < observation.nodes.shape[1] else 0.0
    return columns


def _run(program: Program, observation: Observation) -> FloatArray:
    scores: FloatArray = registers_of(program, columns_of(program.features, observation))[-1]
    return scores


def versions_of(expression: Expression) -> dict[str, int]:
    """Return the features that an expression reads, with their versions."""
    return {name: VERSIONS[name] for name in features(expression)}
