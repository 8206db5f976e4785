"""Expressions for tests: what hypothesis draws, and values of features."""

import numpy as np
from hypothesis import strategies as st

from aaml.policies.formulas.expression import FEATURES, Call, Constant, Expression, Feature
from aaml.policies.formulas.operators import OPERATORS

_numbers = st.floats(-1e6, 1e6, allow_nan=False).map(Constant) | st.sampled_from(
    [Constant(value) for value in (0.0, 1.0, -1.0, 0.5, 2.0, 1e12)]
)
_leaves = _numbers | st.sampled_from([Feature(name) for name in FEATURES])


def _call(name: str, operands: tuple[Expression, ...]) -> Expression:
    if name == "neg" and isinstance(operands[0], Constant):  # a number with a sign: the text has one way to write it
        return Constant(-operands[0].value)
    return Call(name, operands)


@st.composite
def _drawn(draw: st.DrawFn, gives: str = "n", depth: int = 4) -> Expression:
    if gives == "n" and (depth == 0 or not draw(st.booleans())):
        return draw(_leaves)
    names = [name for name, each in OPERATORS.items() if each.gives == gives and (depth > 1 or "c" not in each.takes)]
    name = draw(st.sampled_from(names))
    return _call(name, tuple(draw(_drawn(each, depth - 1)) for each in OPERATORS[name].takes))


expressions = _drawn()


def values_of_features(seed: int) -> dict[str, float]:
    """Return a value for each feature: of unit size, and some that are 0, equal, or large."""
    rng = np.random.default_rng(seed)
    values = rng.choice([0.0, 1.0, -1.0, 0.5, 8.0], size=len(FEATURES))
    drawn = rng.normal(size=len(FEATURES)).astype(np.float32)
    return dict(zip(FEATURES, np.where(rng.random(len(FEATURES)) < 0.5, values, drawn).tolist(), strict=True))
