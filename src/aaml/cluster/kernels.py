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
                  with a `reference` to what it works on, of which it takes the `referent`
"""

import multiprocessing
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Generic, Protocol, TypeVar, cast

import numba
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils, event
from numba.core.dispatcher import Dispatcher
from numba.core.errors import TypingError
from numba.core.types import unliteral
from numba.extending import intrinsic, models, overload, register_model

from aaml.cluster.kernel_cache import ALTERNATIVES, WAITS, keep
from aaml.cluster.kernel_compiler import KernelCompiler

_POINTER = ir.IntType(8).as_pointer()
_WRITTEN: Any = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # of lines written into others
F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K")
T = TypeVar("T")


def compiled(function: F) -> "Dispatcher[F]":
    """Make a kernel of a function."""
    njit: Any = numba.njit
    return _kept(njit(nogil=True, pipeline_class=KernelCompiler)(function))


def _counting(references: bool, **options: bool) -> "Callable[[F], Dispatcher[F]]":
    njit: Any = numba.njit  # its types leave `_nrt` out
    return lambda function: _kept(njit(nogil=True, _nrt=references, pipeline_class=KernelCompiler, **options)(function))


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


def by_class(place: int, functions: Mapping[type | None, F]) -> F:
    """Return a function that is one of these by the class of its argument at `place`, a named tuple or None.

    In kernels only that one is compiled, and its lines are written into the kernel that calls it. Of `if x is None`
    numba compiles both arms, and what only one of them returns is then tested wherever it is used.
    """

    @wraps(next(iter(functions.values())))
    def chosen(*arguments: Any) -> Any:
        argument = arguments[place]
        return functions[None if argument is None else type(argument)](*arguments)

    @overload(chosen, jit_options=_WRITTEN, inline="always", strict=False)
    def choose(*kinds: Any) -> Any:
        return functions[getattr(kinds[place], "instance_class", None)]

    del choose
    setattr(chosen, ALTERNATIVES, tuple(functions.values()))
    return cast("F", chosen)


class Reference(Generic[T]):
    """A tuple in memory, as compiled code hands it on: one word for all the addresses and sizes of its arrays."""


class _ReferenceType(types.Type):
    def __init__(self, of: types.Type) -> None:
        self.of = of
        super().__init__(name=f"Reference({of})")

    @property
    def key(self) -> types.Type:
        """The type of the tuple."""
        return self.of


@register_model(_ReferenceType)
class _ReferenceModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: _ReferenceType) -> None:
        super().__init__(manager, kind, _POINTER)


def _reference(_context: Any, taken: Any) -> Any:
    """Write a tuple into memory that lasts as long as the call of the function that does so."""

    def keep_it(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(cgutils.alloca_once_value(builder, arguments[0]), _POINTER)

    return _ReferenceType(taken)(taken), keep_it


def _referent(_context: Any, reference: Any) -> Any:
    """Return the tuple of a reference. What of it is not used is not read."""

    def read(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.bitcast(arguments[0], context.get_value_type(reference.of).as_pointer()))

    return reference.of(reference), read


_RETURNED: dict[types.Type, Any] = {}  # by the types of references for which there are addresses: what is returned


def _kind_of(examples: Sequence[object]) -> _ReferenceType:
    return _ReferenceType(types.BaseTuple.from_types([numba.typeof(each) for each in examples]))


def returns(kind: types.Type, *examples: object) -> None:
    """Say what `call_at` returns for a reference to such values, where callers are compiled before what they call."""
    _RETURNED[_kind_of(examples)] = kind


def address_of(kernel: Any, *examples: object) -> int:
    """Return where a kernel's code for a reference to such values is, for `call_at`: it is compiled once."""
    kind = _kind_of(examples)
    if (kind,) not in kernel.overloads:
        kernel.compile((kind,))
    made = kernel.overloads[(kind,)]
    _RETURNED[kind] = made.signature.return_type
    return int(made.library.get_pointer_to_function(made.fndesc.llvm_func_name))


def _call_at(_context: Any, address: Any, reference: Any) -> Any:
    """Call the kernel at an address with a reference.

    What is called by its name is compiled into each kernel that calls it, again and again.
    """
    if reference not in _RETURNED:
        raise TypingError("no kernel has an address for such a reference")
    result_type = _RETURNED[reference]

    def call(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        convention = context.call_conv
        pointer = convention.get_function_type(result_type, (reference,)).as_pointer()
        function = builder.inttoptr(arguments[0], pointer)
        status, result = convention.call_function(builder, function, result_type, (reference,), arguments[1:])
        with builder.if_then(status.is_error, likely=False):
            convention.return_status_propagate(builder, status)
        return result

    return result_type(address, reference), call


def _call_packer(_context: Any, _address: Any, _room: Any, _ready: Any, _pods: Any, _moving: Any) -> Any:
    """Call a Python function at an address (`ctypes.CFUNCTYPE`) with four int64; it returns one."""

    def call(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number = ir.IntType(64)
        pointer = ir.FunctionType(number, [number] * 4).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], pointer), arguments[1:])

    return numba.int64(*[numba.int64] * 5), call


reference = cast("Callable[[T], Reference[T]]", intrinsic(_reference))
referent = cast("Callable[[Reference[T]], T]", intrinsic(_referent))
call_at = cast("Callable[[int, Reference[Any]], Any]", intrinsic(_call_at))
call_packer: Any = intrinsic(_call_packer)


_ADDRESSES: dict[tuple[Any, ...], int] = {}


def called(kernel: Any, *memory: Sequence[npt.NDArray[Any]]) -> Any:
    """Call a kernel that takes a reference to tuples of arrays, and return what it returns."""
    arrays = [(each.dtype.num, each.ndim, each.flags.num) for part in memory for each in part]
    key = (kernel, *arrays)
    if key not in _ADDRESSES:
        _ADDRESSES[key] = address_of(kernel, *memory)
    return _called(_ADDRESSES[key], memory)


def _call_by_reference(address: int, memory: Any) -> Any:
    return call_at(address, reference(memory))


_called: Any = without_refcount(_call_by_reference)


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
        """See a kernel begin to compile, those that it calls inside it, or this process wait for one that compiles."""
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


_announcer = _Announcer()
for _kind in ("numba:compile", WAITS):
    event.register(_kind, _announcer)
