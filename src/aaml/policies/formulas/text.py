"""Formulas as text: read from it, written as it, as LaTeX, and as Python that pastes into a file of one's own.

The text is an expression of Python: `-(pair.cpu_gap + 0.5 * square(pod.cpu)) if pair.cpu_after < 0.9 else -8.0`.
"""

import ast
import keyword
import math
import re
from collections.abc import Mapping

from aaml.errors import UserError, bad_value
from aaml.policies.formulas.expression import (
    FEATURES,
    FIRST_GPU,
    FIRST_PAIR,
    MOST_PARTS,
    NUMBERED,
    Call,
    Constant,
    Expression,
    Feature,
    features,
    is_of_gpus,
    kind,
    parts,
    walk,
)
from aaml.policies.formulas.operators import ATOM, LARGEST, OPERATORS, PRODUCT, SIGN, SUM

_FUNCTIONS = ("min", "max", "abs", "square", "sqrt", "log", "exp")
_BINARY = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_KINDS = {"n": "a number", "c": "a condition"}
_MOST_CHARACTERS = 20_000


def parse(text: str, named: Mapping[str, float] | None = None, field: str = "expression") -> Expression:
    """Read an expression whose value is a number; `named` are constants that it calls by a name.

    Raises `UserError`, one line that says what is wrong and what is accepted.
    """
    try:
        if len(text) > _MOST_CHARACTERS:
            raise bad_value(field, f"{text[:40]}...", f"at most {_MOST_CHARACTERS} characters")
        tree = ast.parse(" ".join(text.split()), mode="eval")
        expression: Expression | None = _read(tree.body, named or {}, field)
    except (SyntaxError, ValueError) as error:
        raise bad_value(field, text[:80], "an expression such as -(pair.cpu_gap + 0.5 * square(pod.cpu))") from error
    except (RecursionError, MemoryError):
        expression = None
    if expression is None or parts(expression) > MOST_PARTS:
        raise bad_value(field, f"{text[:40]}...", f"at most {MOST_PARTS} constants, features and operators")
    if len({NUMBERED[name] < FIRST_GPU for name in features(expression)}) > 1:
        raise bad_value(field, text[:80], "features of nodes and pods, or gpu.NAME and gpu_pod.NAME, not both")
    return _typed(expression, "n", text, field)


def _read(node: ast.expr, named: Mapping[str, float], field: str) -> Expression:  # noqa: C901, PLR0911, PLR0912
    def read(*nodes: ast.expr) -> tuple[Expression, ...]:
        return tuple(_read(each, named, field) for each in nodes)

    def call(operator: str, *operands: Expression) -> Call:
        for operand, wanted in zip(operands, OPERATORS[operator].takes, strict=True):
            if kind(operand) != wanted:
                _typed(operand, wanted, ast.unparse(node), field)
        return Call(operator, operands)

    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _constant(float(value), field)
        case ast.Name(id=name) if name in named:
            return _constant(named[name], field)
        case ast.Attribute(value=ast.Name(id=of), attr=attr) if f"{of}.{attr}" in NUMBERED:
            return Feature(f"{of}.{attr}")
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return _constant(-float(value), field)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return call("neg", *read(operand))
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _read(operand, named, field)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return call("not", *read(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=2)):
            return call("square", *read(left))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return call(_BINARY[type(op)], *read(left, right))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            operands = read(left, right)
            match op:
                case ast.Lt() | ast.LtE():
                    return call("<" if isinstance(op, ast.Lt) else "<=", *operands)
                case ast.Gt() | ast.GtE():
                    return call("<" if isinstance(op, ast.Gt) else "<=", *reversed(operands))
        case ast.BoolOp(op=op, values=values):
            first, *others = read(*values)
            for other in others:
                first = call("and" if isinstance(op, ast.And) else "or", first, other)
            return first
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return call("if", *read(test, body, orelse))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            if len(args) == len(OPERATORS[name].takes):
                return call(name, *read(*args))
            if name in ("min", "max") and len(args) > len(OPERATORS[name].takes):
                first, *others = read(*args)
                for other in others:
                    first = call(name, first, other)
                return first
        case ast.Attribute() | ast.Name():
            raise bad_value(
                field,
                ast.unparse(node),
                f"a feature such as {FEATURES[FIRST_PAIR + 1]} (docs/features.md), or a constant",
            )
    raise bad_value(
        field,
        ast.unparse(node),
        f"numbers, features, + - * /, {', '.join(_FUNCTIONS)}, < <= > >=, and, or, not, A if CONDITION else B",
    )


def _constant(value: float, field: str) -> Constant:
    if not math.isfinite(value) or abs(value) > LARGEST:
        raise bad_value(field, value, f"constants between -{LARGEST:g} and {LARGEST:g}")
    return Constant(value)


def _typed(expression: Expression, wanted: str, text: str, field: str) -> Expression:
    if kind(expression) != wanted:
        raise UserError(f"{field}: {text!r} has {_KINDS[kind(expression)]} where {_KINDS[wanted]} is expected")
    return expression


# ---- writing ---------------------------------------------------------------------------------------------------------


def to_text(expression: Expression, digits: int | None = None) -> str:
    """Return the text that `parse` reads back to the same expression; with `digits`, to so many digits of constants."""
    return _write(expression, digits)[0]


def _write(expression: Expression, digits: int | None) -> tuple[str, int]:
    """Return the text, and how firmly it binds."""
    if isinstance(expression, Constant):
        text = repr(expression.value) if digits is None else f"{expression.value:.{digits}g}"
        return text, SIGN if text.startswith("-") else ATOM
    if isinstance(expression, Feature):
        return expression.name, ATOM
    form = OPERATORS[expression.operator].text
    operands = []
    for each, needs in zip(expression.operands, form.needs, strict=True):
        text, binds = _write(each, digits)
        operands.append(text if binds >= needs else f"({text})")
    return form.template.format(*operands), form.binds


def to_latex(expression: Expression, digits: int = 3) -> str:
    """Return the expression as LaTeX maths, constants to so many digits."""
    return _latex(expression, digits)[0]


def _latex(expression: Expression, digits: int) -> tuple[str, int]:
    if isinstance(expression, Constant):
        text = f"{expression.value:.{digits}g}"
        mantissa, e, exponent = text.partition("e")
        text = f"{mantissa} \\cdot 10^{{{int(exponent)}}}" if e else mantissa
        return text, SIGN if text.startswith("-") or e else ATOM
    if isinstance(expression, Feature):
        of, _, name = expression.name.partition(".")
        base, index = (each.replace("_", r"\_") for each in (name, of))
        return rf"\mathrm{{{base}}}_{{\mathrm{{{index}}}}}", ATOM
    form = OPERATORS[expression.operator].latex
    operands = []
    for number, (each, needs) in enumerate(zip(expression.operands, form.needs, strict=True)):
        text, binds = _latex(each, digits)
        signed = number > 0 and form.binds in (SUM, PRODUCT) and text.startswith("-")
        operands.append(text if binds >= needs and not signed else rf"\left({text}\right)")
    return form.template.format(*operands), form.binds


_ARRAYS = {"node": "seen.nodes[:, NODE.{}]", "pair": "seen.pairs[:, PAIR.{}]", "pod": "seen.pod[POD.{}]"}


def to_python(expression: Expression, name: str = "formula") -> str:
    """Return a file of Python with a score function of this name: a policy as `FILE.py:NAME`.

    Raises `UserError` for a formula of GPU devices, whose features are computed in compiled code only.
    """
    if is_of_gpus(expression):
        raise bad_value(
            "form", "python", "text or latex for a formula of GPU devices: a score function chooses no device"
        )
    name = re.sub(r"\W", "_", name) if name else "formula"
    imported = ("np", *(block.upper() for block in _ARRAYS))
    taken = name in imported or any(f"def {name}(" in each.helper for each in OPERATORS.values())
    if taken or keyword.iskeyword(name) or not name.isidentifier():  # 05, of a search's front
        name = f"formula_{name}"
    used = {each.operator for each in walk(expression) if isinstance(each, Call)}
    blocks = sorted({each.partition(".")[0].upper() for each in features(expression)})
    lines = ['"""A formula that aaml found, as a score of each node."""', "", "import numpy as np", ""]
    if blocks:
        lines += [f"from aaml.scheduling.observation import {', '.join(blocks)}", ""]
    for operator, each in OPERATORS.items():
        if operator in used and each.helper:
            lines += ["", each.helper]
    lines += ["", f"def {name}(context):", "    seen = context.observation"]
    for feature in features(expression):
        of, _, name = feature.partition(".")
        lines.append(f"    {of}_{name} = np.float64({_ARRAYS[of].format(name)})")
    lines.append(f"    return {_python(expression)} + np.zeros(len(context.mask))")
    return "\n".join(lines) + "\n"


def _python(expression: Expression) -> str:
    if isinstance(expression, Constant):
        return repr(expression.value)
    if isinstance(expression, Feature):
        return expression.name.replace(".", "_")
    return OPERATORS[expression.operator].python.format(*map(_python, expression.operands))
