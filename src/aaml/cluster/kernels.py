"""How kernels are compiled: once, kept for later runs (`kernel_cache`), and called without the interpreter's lock.

Where many threads call a kernel at once, it matters whether references to arrays are counted. numba counts references
to every array that compiled code hands on or cuts a view from, atomically, so that threads that share an array wait for
one another. In the kernels of lockstep episodes that took three quarters of the time.

without_refcount  for kernels that work on arrays which their caller holds: they, and what they call, allocate nothing
with_refcount     for kernels that allocate and are called from such
compiled          for all others
inlined           `without_refcount`, for what only kernels call: LLVM merges it into its caller, for a call costs by
                  the array
outlined          the same for what is large or rarely called: it is called; but it is compiled with each of its callers
inlined_source    for functions that return views with names, which a kernel without reference counts cannot return; and
                  for what calls much and is called once: what is inlined or outlined is optimised with all that it
                  calls, and so is its caller; here numba writes its lines into the caller beforehand
call_at           for what is large and has several callers: it is compiled once (`address_of`), called by its address
"""

import multiprocessing
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, event
from numba.core.dispatcher import Dispatcher
from numba.core.errors import TypingError
from numba.core.types import Optional, unliteral
from numba.extending import intrinsic

from aaml.cluster.kernel_cache import keep

F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K")


def compiled(function: F) -> "Dispatcher[F]":
    """Make a kernel of a function."""
    return _kept(numba.njit(nogil=True)(function))


def _counting(references: bool, **options: bool) -> "Callable[[F], Dispatcher[F]]":
    njit: Any = numba.njit  # its types leave `_nrt` out
    return lambda function: _kept(njit(nogil=True, _nrt=references, **options)(function))


def _kept(kernel: K) -> K:
    """Keep a kernel for later runs, and compile it once for all constants that other kernels hand it.

    numba would compile it for each of them: `rank(values, 6)` and `rank(values, 7)` were two kernels.
    """
    if isinstance(kernel, Dispatcher):
        template: Callable[..., Any] = kernel.get_call_template
        plain: Callable[[Any], Any] = unliteral

        def template_of_types(args: Any, kws: Any) -> Any:
            return template([plain(kind) for kind in args], {name: plain(kind) for name, kind in kws.items()})

        kernel.get_call_template = template_of_types  # type: ignore[method-assign]
    return keep(kernel)


without_refcount, with_refcount = _counting(False), _counting(True)
inlined = _counting(False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
outlined = _counting(False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inlined_source(function: F) -> "Dispatcher[F]":
    """Write a function's lines into every kernel that calls it."""
    return keep(numba.njit(nogil=True, inline="always")(function))


def interpreted(kernel: Any) -> Callable[..., Any]:
    """Return the function that a kernel was made of: the same rule on Python's own objects."""
    return cast("Callable[..., Any]", getattr(kernel, "py_func", kernel))


_RETURNED: dict[tuple[Any, ...], Any] = {}  # by the types of arguments for which there are addresses: what is returned


def address_of(kernel: Any, *examples: object) -> int:
    """Return where a kernel's code for such arguments is, for `call_at`: it is compiled once, whoever calls it."""
    types = tuple(map(numba.typeof, examples))
    if types not in kernel.overloads:
        kernel.compile(types)
    made = kernel.overloads[types]
    _RETURNED[types] = made.signature.return_type
    return int(made.library.get_pointer_to_function(made.fndesc.llvm_func_name))


def _call_at(_context: Any, address: Any, taken: Any) -> Any:
    """Call the kernel at an address with a tuple of arguments.

    What is called by its name is compiled into each kernel that calls it, again and again.
    """
    types = tuple(each.type if isinstance(each, Optional) else each for each in taken.types)
    if types not in _RETURNED:
        raise TypingError("no kernel has an address for such arguments")
    returns = _RETURNED[types]

    def call(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        convention = context.call_conv
        pointer = convention.get_function_type(returns, types).as_pointer()
        function, values = builder.inttoptr(arguments[0], pointer), cgutils.unpack_tuple(builder, arguments[1])  # type: ignore[no-untyped-call]
        casts = zip(values, taken.types, types, strict=True)
        values = [context.cast(builder, value, given, kind) for value, given, kind in casts]
        status, result = convention.call_function(builder, function, returns, types, values)
        with builder.if_then(status.is_error, likely=False):
            convention.return_status_propagate(builder, status)
        return result

    return returns(address, taken), call


def _call_packer(_context: Any, _address: Any, _room: Any, _ready: Any, _pods: Any, _moving: Any) -> Any:
    """Call a Python function at an address (`ctypes.CFUNCTYPE`) with four int64; it returns one."""

    def call(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number = ir.IntType(64)
        pointer = ir.FunctionType(number, [number] * 4).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], pointer), arguments[1:])

    return numba.int64(*[numba.int64] * 5), call


call_at: Any = intrinsic(_call_at)
call_packer: Any = intrinsic(_call_packer)


class Columns(Protocol):
    """The columns of an array by name."""

    def __getattr__(self, name: str) -> int:
        """Return the column of this name."""
        ...

    def __len__(self) -> int:
        """Return how many there are."""
        ...


def columns(names: Sequence[str]) -> Columns:
    """Return the columns of an array by the names of what they hold: `pairs[i, PAIR.cpu_after]`.

    Made once for a module, it is a constant to kernels: they read the number, not the name.
    """
    make: Any = namedtuple  # noqa: PYI024  (names that are not spelled out)
    result: Columns = make("Columns", names)(*range(len(names)))
    return result


_SOON_S = 1.0  # what compiles in less is not worth a word
_FIRST_WORKER = "SpawnProcess-1"  # which a command with workers waits for


class _Announcer(event.Listener):
    """Tells whoever waits at a terminal, once, that the first use of a command compiles what it needs."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._told = multiprocessing.current_process().name not in {"MainProcess", _FIRST_WORKER}

    def on_start(self, event: Any) -> None:  # noqa: ARG002  # numba calls it by this name
        """See a kernel begin to compile; those that it calls begin inside it."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if not self._told and now - self._since > _SOON_S:
            self._told = True
            if sys.stderr.isatty():
                note = "\raaml: the first run compiles what it needs, once: this can take a minute or two"
                print(f"{note:<79}", file=sys.stderr)

    def on_end(self, event: Any) -> None:
        """See it done."""


event.register("numba:compile", _Announcer())  # type: ignore[no-untyped-call]
