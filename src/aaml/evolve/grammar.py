"""Formulas by chance: drawn anew, changed, and crossed, always of the right types."""

from collections.abc import Callable, Sequence

import numpy as np

from aaml.policies.formulas.expression import (
    NUMBERED,
    Call,
    Constant,
    Expression,
    Feature,
    constants,
    kind,
    parts,
    simplify,
    walk,
    with_constants,
)
from aaml.policies.formulas.operators import LARGEST, OPERATORS

Rng = np.random.Generator
_NUMBERS = ("+", "-", "*", "/", "min", "max", "neg", "abs", "square", "sqrt", "log", "exp", "if")
_OFTEN = np.array([6, 6, 6, 3, 2, 2, 1, 1, 2, 1, 1, 1, 1.5])
_CONDITIONS = ("<", "<=", "and", "or", "not")
_RARELY = np.array([5, 2, 1, 1, 0.5])
_TRIES = 20


def twin(expression: Expression) -> Expression:
    """Return the same of memory where it is about CPU, and the other way round."""
    if isinstance(expression, Feature):
        swapped = expression.name.replace("cpu", "\0").replace("memory", "cpu").replace("\0", "memory")
        return Feature(swapped) if swapped in NUMBERED else expression
    if isinstance(expression, Constant):
        return expression
    return Call(expression.operator, tuple(twin(each) for each in expression.operands))


def rounded(value: float) -> float:
    """Return a constant as people write it: to three digits, and within the bounds of constants."""
    return float(f"{min(max(value, -LARGEST), LARGEST):.3g}")


class Grammar:
    """Draws and changes formulas of at most `size` parts over some features."""

    def __init__(self, features: Sequence[str], size: int) -> None:
        self._features, self._size = tuple(features), size

    def draw(self, rng: Rng, depth: int, wanted: str = "n") -> Expression:
        """Return a random expression of a type, at most so deep."""
        if wanted == "n" and (depth <= 0 or rng.random() < 0.2):
            return self._leaf(rng)
        names: tuple[str, ...] = _NUMBERS if wanted == "n" else _CONDITIONS
        weights = _OFTEN if wanted == "n" else _RARELY
        if wanted == "c" and depth <= 1:
            names, weights = names[:2], weights[:2]
        name = names[rng.choice(len(names), p=weights / weights.sum())]
        return Call(name, tuple(self.draw(rng, depth - 1, each) for each in OPERATORS[name].takes))

    def first(self, rng: Rng) -> Expression:
        """Return a formula to begin with."""
        return self._fitting(lambda: self._made(self.draw(rng, int(rng.integers(1, 5))), rng), Constant(0.0))

    def child(self, mother: Expression, father: Expression, rng: Rng) -> Expression:
        """Return a child of two formulas, or a changed one of the first."""
        changes: tuple[tuple[float, Callable[[], Expression]], ...] = (
            (0.25, lambda: self._crossed(mother, father, rng)),
            (0.15, lambda: self._grafted(mother, rng)),
            (0.15, lambda: self._pointed(mother, rng)),
            (0.10, lambda: self._jittered(mother, rng)),
            (0.10, lambda: self._hoisted(mother, rng)),
            (0.08, lambda: Call("+" if rng.random() < 0.8 else "-", (mother, self.draw(rng, 2)))),
            (0.10, lambda: self._weighed(mother, rng)),
            (0.07, lambda: Call("+", (mother, twin(mother)))),
        )
        chances = np.array([chance for chance, _ in changes])

        def changed() -> Expression:
            return changes[rng.choice(len(changes), p=chances)][1]()

        return self._fitting(changed, mother)

    def _fitting(self, make: Callable[[], Expression], otherwise: Expression) -> Expression:
        for _ in range(_TRIES):
            made = simplify(make())
            if parts(made) <= self._size and not isinstance(made, Constant):
                return made
        return otherwise

    def _made(self, drawn: Expression, rng: Rng) -> Expression:
        """Return it, or the sum of it and its twin: what is good for CPU is often good for memory."""
        return Call("+", (drawn, twin(drawn))) if rng.random() < 0.4 else drawn

    def _weighed(self, mother: Expression, rng: Rng) -> Expression:
        """Add a small part of something, or take it away: good rules are a sum of one thing and a little of others."""
        weight = Constant(rounded(float(10 ** rng.uniform(-2.0, 0.0))))
        return Call(
            "-" if rng.random() < 0.5 else "+", (mother, Call("*", (weight, self._made(self.draw(rng, 2), rng))))
        )

    def _leaf(self, rng: Rng) -> Expression:
        if rng.random() < 0.25:
            return Constant(rounded(float(rng.choice([1.0, -1.0]) * 10 ** rng.uniform(-1.5, 1.0))))
        return Feature(self._features[rng.integers(len(self._features))])

    def _crossed(self, mother: Expression, father: Expression, rng: Rng) -> Expression:
        place = int(rng.integers(parts(mother)))
        wanted = kind(at(mother, place))
        found = [each for each in walk(father) if kind(each) == wanted]
        return put(mother, place, found[rng.integers(len(found))]) if found else mother

    def _grafted(self, mother: Expression, rng: Rng) -> Expression:
        place = int(rng.integers(parts(mother)))
        return put(mother, place, self.draw(rng, int(rng.integers(1, 4)), kind(at(mother, place))))

    def _pointed(self, mother: Expression, rng: Rng) -> Expression:
        """Change one operator, feature or constant into another of its kind."""
        place = int(rng.integers(parts(mother)))
        old = at(mother, place)
        if isinstance(old, Call):
            types = OPERATORS[old.operator].takes, OPERATORS[old.operator].gives
            alike = [name for name, each in OPERATORS.items() if (each.takes, each.gives) == types]
            return put(mother, place, Call(alike[rng.integers(len(alike))], old.operands))
        if isinstance(old, Feature) and rng.random() < 0.3:
            return put(mother, place, twin(old))
        return put(mother, place, self._leaf(rng))

    def _jittered(self, mother: Expression, rng: Rng) -> Expression:
        values = [rounded(value * float(np.exp(rng.normal(0.0, 0.5)))) for value in constants(mother)]
        return with_constants(mother, iter(values))

    def _hoisted(self, mother: Expression, rng: Rng) -> Expression:
        """Take a part for the whole, or for a part that holds it."""
        place = int(rng.integers(parts(mother)))
        old = at(mother, place)
        found = [each for each in walk(old) if kind(each) == kind(old)]
        return put(mother, place, found[rng.integers(len(found))])


def at(expression: Expression, place: int) -> Expression:
    """Return the part at a place, in the order of `walk`."""
    for number, each in enumerate(walk(expression)):
        if number == place:
            return each
    raise IndexError(place)


def put(expression: Expression, place: int, part: Expression) -> Expression:
    """Return the expression with another part at a place, in the order of `walk`."""
    if place == 0 or not isinstance(expression, Call):
        return part
    place -= 1
    operands = list(expression.operands)
    for number, each in enumerate(operands):
        if place < parts(each):
            operands[number] = put(each, place, part)
            break
        place -= parts(each)
    return Call(expression.operator, tuple(operands))
