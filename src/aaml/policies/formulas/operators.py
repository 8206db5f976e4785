"""The operators of formulas: what each takes and gives, what it means, and how it is written.

Every meaning stands here once: the register machine compiles these functions, and constants are folded by them.
No operator gives a value that is not finite, since it is protected:

==========================  ======================================================================================
``a / b``                   the divisor is kept at least 1e-6 away from zero, on its own side (zero counts as positive)
``log(a)``                  log(max(|a|, 1e-6))
``sqrt(a)``                 sqrt(|a|)
``exp(a)``                  exp(min(a, 27))
``*``, ``/``, ``square``    the result is kept between -1e12 and 1e12
==========================  ======================================================================================

A condition is 1.0 or 0.0. The plugin's Go has the same functions (`plugin/go/internal/aaml/formula.go`), with these
bounds; a test runs both on the same numbers.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LEAST_DIVISOR, LEAST_LOG, MOST_EXPONENT, LARGEST = 1e-6, 1e-6, 27.0, 1e12
IF, OR, AND, NOT, COMPARE, SUM, PRODUCT, SIGN, ATOM = range(9)
"""How firmly operators bind, the loosest first."""


def plus(a: float, b: float) -> float:
    """Return a + b."""
    return a + b


def minus(a: float, b: float) -> float:
    """Return a - b."""
    return a - b


def times(a: float, b: float) -> float:
    """Return a * b within the bounds."""
    return min(max(a * b, -LARGEST), LARGEST)


def over(a: float, b: float) -> float:
    """Return a / b within the bounds, b kept away from zero."""
    divisor = min(b, -LEAST_DIVISOR) if b < 0.0 else max(b, LEAST_DIVISOR)
    return min(max(a / divisor, -LARGEST), LARGEST)


def smaller(a: float, b: float) -> float:
    """Return the smaller one, b where they are equal; of conditions: whether both hold."""
    return min(b, a)


def larger(a: float, b: float) -> float:
    """Return the larger one, b where they are equal; of conditions: whether one holds."""
    return max(b, a)


def negative(a: float) -> float:
    """Return -a."""
    return -a


def absolute(a: float) -> float:
    """Return |a|."""
    return abs(a)


def square(a: float) -> float:
    """Return a * a within the bounds."""
    return min(a * a, LARGEST)


def root(a: float) -> float:
    """Return the square root of |a|."""
    return math.sqrt(abs(a))


def logarithm(a: float) -> float:
    """Return the logarithm of |a|, kept away from zero."""
    return math.log(max(abs(a), LEAST_LOG))


def exponential(a: float) -> float:
    """Return e to the power of a, kept from overflowing."""
    return math.exp(min(a, MOST_EXPONENT))


def less(a: float, b: float) -> float:
    """Return whether a < b."""
    return 1.0 if a < b else 0.0


def at_most(a: float, b: float) -> float:
    """Return whether a <= b."""
    return 1.0 if a <= b else 0.0


def inverse(a: float) -> float:
    """Return whether a does not hold."""
    return 1.0 - a


def choose(a: float, b: float, c: float) -> float:
    """Return b where a holds, else c."""
    return b if a > 0.0 else c


@dataclass(frozen=True, slots=True)
class Form:
    """How an operator is written: `{0}`, `{1}` and `{2}` are its operands.

    An operand that binds less firmly than `needs` is put in parentheses; the whole binds as firmly as `binds`.
    """

    template: str
    needs: tuple[int, ...]
    binds: int = ATOM


@dataclass(frozen=True, slots=True)
class Operator:
    """What an operator takes and gives, "n" for a number and "c" for a condition, what it means, and how it is written.

    `python` is its NumPy form, and `helper` a function that this form calls.
    """

    takes: str
    gives: str
    function: Callable[..., float]
    text: Form
    latex: Form
    python: str
    helper: str = ""


def _infix(sign: str, binds: int, latex: str) -> tuple[Form, Form]:
    least = (SUM, SUM) if binds == COMPARE else (binds, binds + 1)
    return Form(f"{{0}} {sign} {{1}}", least, binds), Form(latex, (least[0], binds + 1), binds)


def _call(name: str, count: int, latex: Form | None = None) -> tuple[Form, Form]:
    operands = ", ".join(f"{{{number}}}" for number in range(count))
    return (
        Form(f"{name}({operands})", (IF,) * count),
        latex or Form(rf"\{name}\left({operands}\right)", (IF,) * count),
    )


OPERATORS: Mapping[str, Operator] = {
    "+": Operator("nn", "n", plus, *_infix("+", SUM, "{0} + {1}"), "({0} + {1})"),
    "-": Operator("nn", "n", minus, *_infix("-", SUM, "{0} - {1}"), "({0} - {1})"),
    "*": Operator(
        "nn", "n", times, *_infix("*", PRODUCT, r"{0} \, {1}"), "times({0}, {1})",
        f"def times(a, b):\n    return np.clip(a * b, -{LARGEST:g}, {LARGEST:g})\n",
    ),
    "/": Operator(
        "nn", "n", over, Form("{0} / {1}", (PRODUCT, SIGN), PRODUCT), Form(r"\frac{{{0}}}{{{1}}}", (IF, IF)),
        "over({0}, {1})",
        f"def over(a, b):\n    least, most = np.minimum(b, -{LEAST_DIVISOR:g}), np.maximum(b, {LEAST_DIVISOR:g})\n"
        f"    divisor = np.where(b < 0, least, most)\n    return np.clip(a / divisor, -{LARGEST:g}, {LARGEST:g})\n",
    ),
    "min": Operator("nn", "n", smaller, *_call("min", 2), "np.minimum({0}, {1})"),
    "max": Operator("nn", "n", larger, *_call("max", 2), "np.maximum({0}, {1})"),
    "neg": Operator("n", "n", negative, Form("-{0}", (ATOM,), SIGN), Form("-{0}", (PRODUCT,), SUM), "(-{0})"),
    "abs": Operator("n", "n", absolute, *_call("abs", 1, Form(r"\left|{0}\right|", (IF,))), "np.abs({0})"),
    "square": Operator(
        "n", "n", square, *_call("square", 1, Form("{0}^2", (ATOM,), SIGN)), "square({0})",
        f"def square(a):\n    return np.clip(a * a, -{LARGEST:g}, {LARGEST:g})\n",
    ),
    "sqrt": Operator(
        "n", "n", root, *_call("sqrt", 1, Form(r"\sqrt{{{0}}}", (IF,))), "sqrt({0})",
        "def sqrt(a):\n    return np.sqrt(np.abs(a))\n",
    ),
    "log": Operator(
        "n", "n", logarithm, *_call("log", 1), "log({0})",
        f"def log(a):\n    return np.log(np.maximum(np.abs(a), {LEAST_LOG:g}))\n",
    ),
    "exp": Operator(
        "n", "n", exponential, *_call("exp", 1), "exp({0})",
        f"def exp(a):\n    return np.exp(np.minimum(a, {MOST_EXPONENT:g}))\n",
    ),
    "<": Operator("nn", "c", less, *_infix("<", COMPARE, "{0} < {1}"), "({0} < {1})"),
    "<=": Operator("nn", "c", at_most, *_infix("<=", COMPARE, r"{0} \le {1}"), "({0} <= {1})"),
    "and": Operator("cc", "c", smaller, *_infix("and", AND, r"{0} \land {1}"), "np.logical_and({0}, {1})"),
    "or": Operator("cc", "c", larger, *_infix("or", OR, r"{0} \lor {1}"), "np.logical_or({0}, {1})"),
    "not": Operator(
        "c", "c", inverse, Form("not {0}", (NOT,), NOT), Form(r"\lnot {0}", (ATOM,), NOT),
        "np.logical_not({0})",
    ),
    "if": Operator(
        "cnn", "n", choose, Form("{1} if {0} else {2}", (OR, OR, IF), IF),
        Form(r"\begin{{cases}} {1} & \text{{if }} {0} \\ {2} & \text{{otherwise}} \end{{cases}}", (OR, OR, IF)),
        "np.where({0}, {1}, {2})",
    ),
}  # fmt: skip
"""All operators. `if` takes the condition, then what holds, then what holds otherwise."""
