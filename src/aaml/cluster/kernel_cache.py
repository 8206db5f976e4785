"""A cache of compiled kernels that knows what a kernel was made of.

numba keeps what it compiled beside the source and takes it again as long as that file is the same. But a kernel holds
the code of those that it calls and the values of the constants that it reads, whichever file they are from: after a
change of one of these the old code would go on to run, without a word (numba issue 1833). Here what is kept is good as
long as every file whose kernels the kernel's own file knows is the same, and every constant.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
from numba.core import caching
from numba.core.dispatcher import Dispatcher

K = TypeVar("K")
_PLAIN = (bool, int, float, str, slice, type(None))


class _Index(caching.IndexDataCacheFile):
    """numba's list of what is kept of a function, which names the types that it was compiled for."""

    def _load_index(self) -> dict[Any, str]:
        try:
            return dict(super()._load_index())  # type: ignore[no-untyped-call]
        except (AttributeError, ImportError):  # such a type is gone: its file was changed, and nothing here is good
            return {}


class KernelCache(caching.FunctionCache):
    """numba's cache of a function, for as long as all is the same that the function is made of."""

    def __init__(self, function: FunctionType) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        stamp = self._impl.locator.get_source_stamp(), made_of(function)
        self._cache_file = _Index(  # type: ignore[no-untyped-call]
            cache_path=self._cache_path, filename_base=self._impl.filename_base, source_stamp=stamp
        )


def keep(kernel: K) -> K:
    """Let a kernel, which numba made of a function, be kept. Where numba is told to compile nothing it made none."""
    if isinstance(kernel, Dispatcher):
        # What numba does for `cache=True`, with a cache of its own.
        kernel._cache = KernelCache(kernel.py_func)  # type: ignore[attr-defined]  # noqa: SLF001
    return kernel


def made_of(function: FunctionType) -> str:
    """Return a hash of the files of all kernels that a function's file knows, and of their constants."""
    digest = hashlib.sha256()
    files: dict[str, Mapping[str, Any]] = {}
    _follow(function, files)
    for file in sorted(files):
        digest.update(_content(file))
        for name, value in sorted(_constants(files[file])):
            digest.update(f"{name}={value}\n".encode())
    return digest.hexdigest()


def _follow(function: FunctionType, files: dict[str, Mapping[str, Any]]) -> None:
    """Add the function's file, and those of the kernels that it knows, with the names in each."""
    files[function.__code__.co_filename] = function.__globals__
    for value in function.__globals__.values():
        if isinstance(value, Dispatcher) and value.py_func.__code__.co_filename not in files:
            _follow(value.py_func, files)


@cache
def _content(file: str) -> bytes:
    try:
        return hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return b""  # there is no file: a kernel of a notebook


def _constants(known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in known.items():
        if name.startswith("__"):
            continue
        if isinstance(value, np.ndarray):
            yield name, f"{value.dtype}{value.shape}{value.tobytes()!r}"
        elif _is_plain(value):
            yield name, repr(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))
