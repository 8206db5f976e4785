"""A person's own reward in compiled episodes: what numba makes of the function that otherwise Python calls.

The function is compiled as it stands. It sees a `CompiledContext`, whose state has the arrays of
`ClusterState`. A kernel cannot be made anew for each function: that takes half a minute. So the function becomes a
pointer, which the kernel calls with the addresses of its arrays; a call costs some 60 ns.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import carray, cfunc, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.core.errors import NumbaError
from numba.extending import intrinsic, overload

from aaml.cluster.kernels import inlined
from aaml.episodes.rewards import REWARDS
from aaml.episodes.rows import BoolArray, Env, waiting
from aaml.errors import UserError
from aaml.policies.registry import make_reward
from aaml.scheduling.cycle import Reward
from aaml.scheduling.rewards import Potential, Value, WeightedSum

BEFORE, AFTER = 0, 1
OwnReward = Any
"""A compiled reward: numba's pointer to a function with the signature `_SIGNATURE`."""
Function = Callable[..., float]
_SIGNATURE = types.float64(*[types.intp] * 6, *[types.uintp] * 7, types.float64)


class CompiledState(NamedTuple):
    """What a compiled reward sees of `ClusterState`: its arrays, a row a node."""

    allocatable: Any
    requested: Any
    gpu_free: Any
    gpu_count: Any
    unschedulable: Any
    capacity: Any


class CompiledContext(NamedTuple):
    """What a compiled reward sees of a `Context`."""

    state: CompiledState
    mask: Any
    queue_length: int
    now_s: float


class NotCompiledError(UserError):
    """A reward that cannot be compiled; the message says why."""


@overload(float)
def _float_of_bool(value: Any) -> Any:
    """Let compiled code take `float(condition)`, as Python does: numba knows it of numbers alone."""

    def made(value: Any) -> Any:  # numba compares the signatures
        return 1.0 if value else 0.0

    return made if isinstance(value, types.Boolean) else None


def _address(_context: Any, number: Any) -> Any:
    """Return an address as a pointer."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(number), generate


_pointer: Any = intrinsic(_address)


def compiled_reward(spec: str) -> OwnReward | None:
    """Return what `compile_reward` makes of a reward as a person writes it; None for a built-in one and for ""."""
    return None if not spec or spec in REWARDS else compile_reward(make_reward(spec))


def compile_reward(reward: Reward) -> OwnReward:
    """Return a person's reward compiled: a potential, a value, or a weighted sum of such.

    Raises `NotCompiledError` for anything else, and for a function that numba does not take.
    """
    parts = reward.parts if isinstance(reward, WeightedSum) else [(1.0, reward)]
    return _compile(tuple((weight, *_function(each)) for weight, each in parts))


def _function(reward: Reward) -> tuple[Function, bool]:
    """Return a person's function, and whether it is a potential."""
    if isinstance(reward, Value):
        return reward.value, False
    if isinstance(reward, Potential):
        return reward.potential, True
    raise NotCompiledError(f"{type(reward).__name__} is neither a function of (state) nor of (context, row)")


@cache
def _compile(functions: tuple[tuple[float, Function, bool], ...]) -> OwnReward:
    part = _joined([_part(*each) for each in functions])

    # fmt: off
    def call(
        phase: int, row: int, n: int, resources: int, devices: int, queue: int, allocatable: int, requested: int,
        gpu_free: int, gpu_count: int, cordoned: int, capacity: int, mask: int, now_s: float,
    ) -> float:
        # fmt: on
        state = CompiledState(
            carray(_pointer(allocatable), (n, resources), np.int64),
            carray(_pointer(requested), (n, resources), np.int64),
            carray(_pointer(gpu_free), (n, devices), np.int64),
            carray(_pointer(gpu_count), (n,), np.int64),
            carray(_pointer(cordoned), (n,), np.bool_),
            carray(_pointer(capacity), (n,), np.bool_),
        )
        try:
            return part(phase, CompiledContext(state, carray(_pointer(mask), (n,), np.bool_), queue, now_s), row)
        except Exception:  # noqa: BLE001  (an index beyond the arrays, for one: a pointer has no other way to tell)
            return np.nan  # which the batch refuses

    try:
        return cfunc(_SIGNATURE, error_model="numpy")(call)
    except NumbaError as error:
        raise NotCompiledError(_why(error)) from error


def _part(weight: float, function: Function, is_potential: bool) -> Any:
    """Return a compiled (phase, context, row) -> float."""
    own: Any = njit(error_model="numpy", boundscheck=True)(function)

    @njit
    def value(phase: int, context: CompiledContext, row: int) -> float:
        return weight * float(own(context, row)) if phase == AFTER else 0.0

    @njit
    def rise(phase: int, context: CompiledContext, row: int) -> float:  # noqa: ARG001
        level = weight * float(own(context.state))
        return level if phase == AFTER else -level

    return rise if is_potential else value


def _joined(parts: Sequence[Any]) -> Any:
    first, *others = parts
    if not others:
        return first
    rest = _joined(others)

    @njit
    def both(phase: int, context: CompiledContext, row: int) -> float:
        return first(phase, context, row) + rest(phase, context, row)

    return both


def _why(error: NumbaError) -> str:
    """Return what numba says that a person can use: the place in their file and the last of its reasons."""
    lines = [re.sub(r"\x1b\[\d*m", "", line).strip() for line in str(error).splitlines()]
    shown = [line for line in lines if line]
    reasons = (">>> ", "Unknown attribute", "Untyped global", "Cannot determine", "NotImplementedError", "Unsupported")
    return next((line for reason in reasons for line in shown if reason in line), shown[0]).removeprefix(">>> ")


@inlined
def own_reward(own: OwnReward, phase: int, env: Env, mask: BoolArray, row: int) -> float:
    """Return what a person's reward says of an environment before a pod is placed, or after."""
    at, nodes = env.at, env.nodes
    return own(
        phase, row, at.nodes, nodes.allocatable.shape[1], nodes.gpu_free.shape[1],
        waiting(at) - (1 if phase == BEFORE else 0), nodes.allocatable.ctypes.data,
        nodes.requested.ctypes.data, nodes.gpu_free.ctypes.data, nodes.gpu_count.ctypes.data,
        nodes.cordoned.ctypes.data, nodes.capacity.ctypes.data, mask.ctypes.data, at.now_s,
    )  # fmt: skip
