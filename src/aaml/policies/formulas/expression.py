"""Expressions: what a formula is made of, what it is worth, how large it is, and a shorter one of the same worth.

An expression is a number or a condition. No expression has a value that is not finite, for its operators are protected
(`aaml.policies.formulas.operators`).
Features are finite, and constants too. Sums are not kept in bounds: an expression has at most 500 parts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from aaml.policies import gpu_names
from aaml.policies.formulas.operators import LARGEST, OPERATORS
from aaml.scheduling.costs import COST_FEATURES
from aaml.scheduling.observation import NODE_FEATURES, PAIR_FEATURES, POD_FEATURES

MOST_PARTS = 500
FEATURES = (
    *(f"node.{name}" for name in NODE_FEATURES),
    *(f"pair.{name}" for name in PAIR_FEATURES),
    *(f"pod.{name}" for name in POD_FEATURES),
    *(f"node.{name}" for name in COST_FEATURES),
)
"""Every feature of observations: of a node, of the pod on a node, of the pod (the same on all nodes)."""
GPU_FEATURES = (
    *(f"gpu.{name}" for name in gpu_names.FEATURES),
    *(f"gpu_pod.{name}" for name in gpu_names.POD_INPUTS),
)
"""What a formula of GPU devices may read instead: of the pod on a node and device, of the pod."""
NUMBERED = {name: number for number, name in enumerate((*FEATURES, *GPU_FEATURES))}
FIRST_PAIR, FIRST_POD = len(NODE_FEATURES), len(NODE_FEATURES) + len(PAIR_FEATURES)
FIRST_COST, FIRST_GPU = FIRST_POD + len(POD_FEATURES), len(FEATURES)


@dataclass(frozen=True, slots=True)
class Constant:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature by its name in `FEATURES` or `GPU_FEATURES`."""

    name: str


@dataclass(frozen=True)
class Call:
    """An operator of `OPERATORS` with its operands."""

    operator: str
    operands: tuple["Expression", ...]

    @cached_property
    def parts(self) -> int:
        """How many constants, features and operators it holds."""
        return 1 + sum(parts(each) for each in self.operands)


Expression = Constant | Feature | Call


def kind(expression: Expression) -> str:
    """Return "n" for a number, "c" for a condition."""
    return OPERATORS[expression.operator].gives if isinstance(expression, Call) else "n"


def parts(expression: Expression) -> int:
    """Return its size: how many constants, features and operators it is written with."""
    return expression.parts if isinstance(expression, Call) else 1


def terms(expression: Expression) -> int:
    """Return how many constants and features it is written with, each as often as it is written."""
    return sum(not isinstance(each, Call) for each in walk(expression))


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield the expression and all that it is made of, an operator before its operands."""
    yield expression
    if isinstance(expression, Call):
        for each in expression.operands:
            yield from walk(each)


def features(expression: Expression) -> tuple[str, ...]:
    """Return the names of the features that it reads, in the order of `NUMBERED`."""
    names = {each.name for each in walk(expression) if isinstance(each, Feature)}
    return tuple(sorted(names, key=NUMBERED.__getitem__))


def is_of_gpus(expression: Expression) -> bool:
    """Whether it scores GPU devices: it then reads `GPU_FEATURES` alone."""
    return any(NUMBERED[name] >= FIRST_GPU for name in features(expression))


def constants(expression: Expression) -> tuple[float, ...]:
    """Return its constants in the order in which they are written."""
    return tuple(each.value for each in walk(expression) if isinstance(each, Constant))


def with_constants(expression: Expression, values: Iterator[float]) -> Expression:
    """Return it with the next of these values in the place of each constant, in the order of `constants`."""
    if isinstance(expression, Constant):
        return Constant(next(values))
    if isinstance(expression, Feature):
        return expression
    return Call(expression.operator, tuple(with_constants(each, values) for each in expression.operands))


def evaluate(expression: Expression, values: Mapping[str, float]) -> float:
    """Return its value, by the values of its features. The reference: slow, one node at a time."""
    if isinstance(expression, Constant):
        return expression.value
    if isinstance(expression, Feature):
        return values[expression.name]
    return OPERATORS[expression.operator].function(*(evaluate(each, values) for each in expression.operands))


def summands(expression: Expression, sign: float = 1.0) -> tuple[tuple[float, Expression], ...]:
    """Return what a sum adds up, each with its sign; anything else is one summand."""
    if isinstance(expression, Call) and expression.operator in "+-":
        first, second = expression.operands
        return summands(first, sign) + summands(second, -sign if expression.operator == "-" else sign)
    if isinstance(expression, Call) and expression.operator == "neg":
        return summands(expression.operands[0], -sign)
    return ((sign, expression),)


ZERO, ONE = Constant(0.0), Constant(1.0)


def simplify(expression: Expression) -> Expression:
    """Return a shorter expression that has the same value for every node and pod."""
    if not isinstance(expression, Call):
        return expression
    operands = tuple(simplify(each) for each in expression.operands)
    numbers = [each.value for each in operands if isinstance(each, Constant)]
    if len(numbers) == len(operands) and kind(expression) == "n":
        value = OPERATORS[expression.operator].function(*numbers)
        if abs(value) <= LARGEST:  # a sum of constants may be larger than a constant may be
            return Constant(value)
    return _shorter(expression.operator, operands) or Call(expression.operator, operands)


def shortened(expression: Expression) -> Iterator[Expression]:
    """Yield what it becomes, simplified, where one operator gives way to one of its operands: the shortest first."""
    found = {simplify(each) for each in _with_one_operand(expression)}
    yield from sorted(
        (each for each in found if parts(each) < parts(expression)), key=lambda each: (parts(each), repr(each))
    )


def _with_one_operand(expression: Expression) -> Iterator[Expression]:
    if not isinstance(expression, Call):
        return
    for place, operand in enumerate(expression.operands):
        if kind(operand) == kind(expression):
            yield operand
        if expression.operator == "-" and place == 1:
            yield Call("neg", (operand,))
        for each in _with_one_operand(operand):
            yield Call(expression.operator, (*expression.operands[:place], each, *expression.operands[place + 1 :]))


def _shorter(operator: str, operands: tuple[Expression, ...]) -> Expression | None:  # noqa: C901, PLR0912
    """Return what an operator with simple operands is by a rule, if there is one."""
    first, last = operands[0], operands[-1]
    inner = first.operator if isinstance(first, Call) else ""
    found: Expression | None = None
    match operator:
        case "+" if ZERO in operands:
            found = last if first == ZERO else first
        case "+" if isinstance(last, Call) and last.operator == "neg":
            found = simplify(Call("-", (first, last.operands[0])))
        case "+" if isinstance(last, Constant) and last.value < 0.0:
            found = Call("-", (first, Constant(-last.value)))
        case "-" if isinstance(last, Constant) and last.value < 0.0:
            found = Call("+", (first, Constant(-last.value)))
        case "-" if first == last:
            found = ZERO
        case "-" if last == ZERO:
            found = first
        case "-" if first == ZERO:
            found = simplify(Call("neg", (last,)))
        case "-" if isinstance(last, Call) and last.operator == "neg":
            found = simplify(Call("+", (first, last.operands[0])))
        case "*" if ZERO in operands:
            found = ZERO
        case "*" if ONE in operands and _is_bounded(last if first == ONE else first):
            found = last if first == ONE else first
        case "*" if first == last:
            found = Call("square", (first,))
        case "/" if first == ZERO:
            found = ZERO
        case "/" if last == ONE and _is_bounded(first):
            found = first
        case "min" | "max" | "and" | "or" if first == last:
            found = first
        case "neg" | "not" if inner == operator and isinstance(first, Call):
            found = first.operands[0]
        case "neg" if inner == "-" and isinstance(first, Call):
            found = Call("-", (first.operands[1], first.operands[0]))
        case "abs" if inner in ("abs", "square", "sqrt", "exp"):
            found = first
        case "abs" | "square" | "sqrt" | "log" if inner in ("neg", "abs") and isinstance(first, Call):
            found = simplify(Call(operator, first.operands))
        case "if" if operands[1] == operands[2]:
            found = last
        case "if" if inner == "not" and isinstance(first, Call):
            found = simplify(Call("if", (first.operands[0], operands[2], operands[1])))
        case "if" if (known := _known(first)) is not None:
            found = operands[1] if known else last
    return found


def _is_bounded(expression: Expression) -> bool:
    """Whether its value lies between the bounds of products, so that to multiply it by one changes nothing."""
    if isinstance(expression, Constant):
        return abs(expression.value) <= LARGEST
    if isinstance(expression, Feature):
        return True
    if expression.operator in ("+", "-"):
        return False
    numbers = [each for each in expression.operands if kind(each) == "n"]
    return expression.operator in ("*", "/", "square", "exp", "log", "sqrt") or all(map(_is_bounded, numbers))


def _known(condition: Expression) -> bool | None:
    """Return whether a condition holds, where that depends on nothing."""
    if not isinstance(condition, Call):
        return None
    first, last = condition.operands[0], condition.operands[-1]
    if isinstance(first, Constant) and isinstance(last, Constant):
        return bool(OPERATORS[condition.operator].function(first.value, last.value))
    if first == last and condition.operator in ("<", "<="):
        return condition.operator == "<="
    return None
