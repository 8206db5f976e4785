"""Formulas in compiled code: a register machine whose registers hold a number for each node.

An expression becomes a list of instructions, so a new formula costs no compilation. Each instruction works on all nodes
at once, and what is the same for all nodes is computed once. Parts that are written twice are computed once.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import columns, without_refcount
from aaml.policies.formulas.expression import (
    FIRST_COST,
    FIRST_POD,
    NUMBERED,
    Call,
    Constant,
    Expression,
    Feature,
    features,
)
from aaml.policies.formulas.operators import OPERATORS

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
_CODE = {name: number for number, name in enumerate(OPERATORS)}
_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE, _MIN, _MAX = (_CODE[name] for name in ("+", "-", "*", "/", "min", "max"))
_NEG, _ABS, _SQUARE, _SQRT, _LOG, _EXP = (_CODE[name] for name in ("neg", "abs", "square", "sqrt", "log", "exp"))
_LESS, _AT_MOST, _AND, _OR, _NOT = (_CODE[name] for name in ("<", "<=", "and", "or", "not"))
plus, minus, times, over, smaller, larger, negative, absolute, square, root, logarithm, exponential = (
    without_refcount(OPERATORS[name].function)
    for name in ("+", "-", "*", "/", "min", "max", "neg", "abs", "square", "sqrt", "log", "exp")
)
less, at_most, inverse, choose = (without_refcount(OPERATORS[name].function) for name in ("<", "<=", "not", "if"))
_COLUMNS = ("operator", "first", "second", "third", "uniform")
INSTRUCTION = columns(_COLUMNS)
"""The columns of `Program.code`: an operator, the registers of its operands, and whether all nodes have the same."""


class Program(NamedTuple):
    """A formula for the machine.

    Its registers hold first the `features` int64 [L] by their numbers, then the `constants` float64 [C], then what each
    instruction gives. `code` int64 [I, 5] has an instruction a row, its columns are `INSTRUCTION`. The last register is
    the score.
    """

    features: IntArray
    constants: FloatArray
    code: IntArray

    @property
    def registers(self) -> int:
        """How many registers it needs."""
        return len(self.features) + len(self.constants) + len(self.code)


def assemble(expression: Expression) -> Program:
    """Return the program of an expression."""
    read = features(expression)
    register: dict[Expression, int] = {Feature(name): number for number, name in enumerate(read)}
    same: set[Expression] = {Feature(name) for name in read if FIRST_POD <= NUMBERED[name] < FIRST_COST}
    numbers: list[float] = []
    calls: list[Call] = []

    def collect(each: Expression) -> None:
        if isinstance(each, Constant):
            if each not in same:
                same.add(each)
                numbers.append(each.value)
        elif isinstance(each, Call) and each not in seen:
            seen.add(each)
            for operand in each.operands:
                collect(operand)
            calls.append(each)

    seen: set[Expression] = set()
    collect(expression)
    for number, value in enumerate(numbers):
        register[Constant(value)] = len(read) + number
    code = np.zeros((len(calls), len(_COLUMNS)), dtype=np.int64)
    for number, call in enumerate(calls):
        uniform = all(operand in same for operand in call.operands)
        if uniform:
            same.add(call)
        operands = [register[operand] for operand in call.operands]
        code[number] = [_CODE[call.operator], *operands, *[0] * (3 - len(operands)), uniform]
        register[call] = len(read) + len(numbers) + number
    return Program(
        np.array([NUMBERED[name] for name in read], dtype=np.int64), np.array(numbers, dtype=np.float64), code
    )


@without_refcount
def run_program(constants: FloatArray, code: IntArray, loaded: int, registers: FloatArray, n: int) -> None:  # noqa: C901, PLR0912
    """Compute all registers float64 [>= R, >= n] of n nodes, of which the first `loaded` hold the features."""
    first = loaded
    for k in range(len(constants)):
        row = registers[first + k]
        for i in range(n):
            row[i] = constants[k]
    first += len(constants)
    for k in range(len(code)):
        operator, out = code[k, INSTRUCTION.operator], registers[first + k]
        a, b, c = (
            registers[code[k, INSTRUCTION.first]],
            registers[code[k, INSTRUCTION.second]],
            registers[code[k, INSTRUCTION.third]],
        )
        m = 1 if code[k, INSTRUCTION.uniform] else n
        if operator == _ADD:
            for i in range(m):
                out[i] = plus(a[i], b[i])
        elif operator == _SUBTRACT:
            for i in range(m):
                out[i] = minus(a[i], b[i])
        elif operator == _MULTIPLY:
            for i in range(m):
                out[i] = times(a[i], b[i])
        elif operator == _DIVIDE:
            for i in range(m):
                out[i] = over(a[i], b[i])
        elif operator in (_MIN, _AND):
            for i in range(m):
                out[i] = smaller(a[i], b[i])
        elif operator in (_MAX, _OR):
            for i in range(m):
                out[i] = larger(a[i], b[i])
        elif operator == _NEG:
            for i in range(m):
                out[i] = negative(a[i])
        elif operator == _ABS:
            for i in range(m):
                out[i] = absolute(a[i])
        elif operator == _SQUARE:
            for i in range(m):
                out[i] = square(a[i])
        elif operator == _SQRT:
            for i in range(m):
                out[i] = root(a[i])
        elif operator == _LOG:
            for i in range(m):
                out[i] = logarithm(a[i])
        elif operator == _EXP:
            for i in range(m):
                out[i] = exponential(a[i])
        elif operator == _LESS:
            for i in range(m):
                out[i] = less(a[i], b[i])
        elif operator == _AT_MOST:
            for i in range(m):
                out[i] = at_most(a[i], b[i])
        elif operator == _NOT:
            for i in range(m):
                out[i] = inverse(a[i])
        else:
            for i in range(m):
                out[i] = choose(a[i], b[i], c[i])
        if m == 1:
            for i in range(1, n):
                out[i] = out[0]


@without_refcount
def best_of(scores: FloatArray, mask: BoolArray, n: int) -> int:
    """Return the first of the feasible nodes with the highest score, -1 where none is feasible."""
    row = -1
    for i in range(n):
        if mask[i] and (row < 0 or scores[i] > scores[row]):
            row = i
    return row


def registers_of(program: Program, columns: npt.NDArray[np.floating]) -> FloatArray:
    """Return all registers float64 [R, N] for the features [L, N] that the program reads."""
    registers = np.zeros((program.registers, columns.shape[1]))
    registers[: len(columns)] = columns
    run_program(program.constants, program.code, len(program.features), registers, columns.shape[1])
    return registers
