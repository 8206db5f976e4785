"""Expressions for tests: what hypothesis draws, and values of features."""

import numpy as np
from hypothesis import strategies as st

from aaml.policies.formulas.expression import FEATURES, OPERATORS, Call, Constant, Expression, Feature

_numbers = st.floats(-1e6, 1e6, allow_nan=False).map(Constant) | st.sampled_from(
    [Constant(value) for value in (0.0, 1.0, -1.0, 0.5, 2.0, 1e12)]
)
_leaves = _numbers | st.sampled_from([Feature(name) for name in FEATURES])


def _calls(gives: str, numbers: st.SearchStrategy, conditions: st.SearchStrategy) -> st.SearchStrategy:
    of = {"n": numbers, "c": conditions}
    made = [
        st.tuples(*(of[kind] for kind in operator.takes)).map(lambda operands, name=name: _call(name, operands))
        for name, operator in OPERATORS.items()
        if operator.gives == gives
    ]
    return st.one_of(made)


def _call(name: str, operands: tuple[Expression, ...]) -> Expression:
    if name == "neg" and isinstance(operands[0], Constant):  # a number with a sign: the text has one way to write it
        return Constant(-operands[0].value)
    return Call(name, operands)


def _deeper(numbers: st.SearchStrategy) -> st.SearchStrategy:
    simple = st.tuples(st.sampled_from(["<", "<="]), numbers, numbers).map(lambda each: Call(each[0], each[1:]))
    conditions = simple | _calls("c", numbers, simple)
    return _calls("n", numbers, conditions)


expressions = st.recursive(_leaves, _deeper, max_leaves=20)


def values_of_features(seed: int) -> dict[str, float]:
    """Return a value for each feature: of unit size, and some that are 0, equal, or large."""
    rng = np.random.default_rng(seed)
    values = rng.choice([0.0, 1.0, -1.0, 0.5, 8.0], size=len(FEATURES))
    drawn = rng.normal(size=len(FEATURES)).astype(np.float32)
    return dict(zip(FEATURES, np.where(rng.random(len(FEATURES)) < 0.5, values, drawn).tolist(), strict=True))
