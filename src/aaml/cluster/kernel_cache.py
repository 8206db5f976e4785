"""A cache of compiled kernels that knows what a kernel was made of.

numba keeps what it compiled beside the source and takes it again as long as that file is the same. But a kernel holds
the code of those that it calls and the values of the constants that it reads, whichever file they are from: after a
change of one of these the old code would go on to run, without a word (numba issue 1833). Here what is kept is good as
long as every file is the same whose kernels the kernel's own file knows, by their names or by that of their module, and
every constant.

It is kept in the user's cache under the hash of all that, so that every checkout and environment with the same sources
finds it, and processes with different sources keep theirs apart. Where `NUMBA_CACHE_DIR` is set, or the user's cache
cannot be written, it is kept where numba keeps it.

Of processes that need the same kernel at once one compiles it, and the others wait and take what it has kept.
"""

import errno
import fcntl
import hashlib
import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import caching, event
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from aaml.cluster.kernel_compiler import KernelResults
from aaml.errors import UserError
from aaml.folders import cache_dir, private_dir

K = TypeVar("K")
ALTERNATIVES = "aaml_alternatives"
"""The attribute of a function that has the functions of which kernels call one or the other."""
_PLAIN = (bool, int, float, complex, str, bytes, slice, np.generic, type(None))


_HOW = ("kernels.py", "kernel_compiler.py")  # files that say how kernels are compiled
_VERSIONS = 8  # of a kernel stay in the user's cache
_LOCKS = "compiling"  # a file, each byte of which stands for a kernel and the types that it is compiled for
_LOOK_S = 0.05
WAITS = "aaml:waits"
"""The event of this process waiting for another one that compiles."""
_PATIENCE_S = 300.0  # with a process that compiles; then it may be one that was stopped


class _Index(caching.IndexDataCacheFile):
    """numba's list of what is kept of a function, which names the types that it was compiled for."""

    def save(self, key: Any, data: Any) -> None:
        """Keep what was compiled for the types of `key`, in a file that is named by a hash of it.

        numba numbers the files by the list that it has just read: of two processes that save at once, one would write
        its code into the file that the other has listed for other types.
        """
        content = self._dump(data)
        name = self._named(content)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(content)
        self._save_index({**self._load_index(), key: name})

    def load(self, key: Any) -> Any:
        """Return what was compiled for the types of `key`, None where it is not kept, or what is kept is damaged."""
        try:
            return super().load(key)
        except Exception:  # noqa: BLE001  (a part of a file, as a machine leaves it that stops, may raise anything)
            return None

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        if name != self._named(content):
            raise ValueError(f"{name} is damaged")  # its code might end the process
        return pickle.loads(content)  # noqa: S301  (the user's own cache, as numba keeps it)

    def _named(self, content: bytes) -> str:
        return str(self._data_name(int.from_bytes(hashlib.sha256(content).digest()[:8])))

    def _load_index(self) -> dict[Any, str]:
        try:
            return dict(super()._load_index())
        except Exception:  # noqa: BLE001  (or such a type is gone: its file was changed, and nothing here is good)
            return {}


class _SharedIndex(_Index):
    """The same in the user's cache, where a kernel has one list for each version of what it is made of."""

    def __init__(self, folder: Path, function: FunctionType, made: str) -> None:
        self._folder = folder
        self._name = f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")
        base = f"{self._name}-{made[:24]}-{function.__code__.co_firstlineno}"
        super().__init__(cache_path=str(folder), filename_base=base, source_stamp=made)

    def save(self, key: Any, data: Any) -> None:
        """Keep what was compiled, and the versions before it that were kept last."""
        if not Path(self._index_path).exists():
            self._forget()
        super().save(key, data)

    def _forget(self) -> None:
        lists = sorted(self._folder.glob(f"{self._name}-*.nbi"), key=_changed)
        for old in lists[: max(len(lists) + 1 - _VERSIONS, 0)]:
            for file in (old, *self._folder.glob(f"{old.stem}.*.nbc")):
                file.unlink(missing_ok=True)


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0  # another process has removed it


@cache
def _shared_folder() -> Path | None:
    """Return the folder of kernels in the user's cache, or nothing where numba's own folders are to be used."""
    if numba.config.CACHE_DIR:  # type: ignore[attr-defined]
        return None
    try:
        folder = private_dir(cache_dir() / "kernels" / f"numba-{numba.__version__}-{sys.implementation.cache_tag}")
    except (UserError, RuntimeError):  # RuntimeError: this user has no home
        return None
    return folder if os.access(folder, os.W_OK) else None


class KernelCache(caching.FunctionCache):
    """numba's cache of a function, for as long as all is the same that the function is made of."""

    _impl_class = KernelResults

    def __init__(self, function: FunctionType) -> None:
        super().__init__(function)
        made, folder = made_of(function), _shared_folder()
        self._key = f"{function.__module__}.{function.__qualname__} {made}"
        if folder is not None and _content(function.__code__.co_filename):
            self._cache_path, self._cache_file = str(folder), _SharedIndex(folder, function, made)
            return
        stamp = self._impl.locator.get_source_stamp(), made
        self._cache_file = _Index(
            cache_path=self._cache_path, filename_base=self._impl.filename_base, source_stamp=stamp
        )

    @contextmanager
    def alone(self, types: Any) -> Iterator[None]:
        """Keep other processes from compiling the kernel for these types, and wait for one that does."""
        key = hashlib.sha256(f"{self._key} {types}".encode()).digest()
        place, folder = int.from_bytes(key[:7], "big"), _shared_folder()
        descriptor = None if folder is None else _locks(folder)
        if descriptor is None or not _lock(descriptor, place):
            yield
            return
        try:
            yield
        finally:
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, place)


@cache
def _locks(folder: Path) -> int | None:
    """Open the file of locks, once: to close it anywhere in the process would let go of all."""
    try:
        return os.open(folder / _LOCKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def _lock(descriptor: int, place: int) -> bool:
    """Lock a byte of the file for this process; returns False where that cannot be had in time."""
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EAGAIN} or time.monotonic() > until_s:
                return False
            event.start_event(WAITS)
            time.sleep(_LOOK_S)
        else:
            return True


def keep(kernel: K) -> K:
    """Let a kernel, which numba made of a function, be kept. Where numba is told to compile nothing it made none."""
    if isinstance(kernel, Dispatcher):
        # What numba does for `cache=True`, with a cache of its own.
        kernel._cache = kept = KernelCache(kernel.py_func)  # type: ignore[attr-defined]  # noqa: SLF001
        compile_now = kernel.compile

        def compile_once(types: Any) -> Any:
            with global_compiler_lock, kept.alone(types):  # numba's own lock first: other threads may hold it
                return compile_now(types)

        kernel.compile = compile_once  # type: ignore[assignment, method-assign]
    return kernel


def made_of(function: FunctionType) -> str:
    """Return a hash of the files of all kernels and modules that a function's file knows, and of their constants."""
    here = Path(__file__)
    digest = hashlib.sha256(b"".join(_content(str(here.with_name(name))) for name in _HOW))
    files: dict[str, Mapping[str, Any]] = {}
    _follow(function, files)
    for file in sorted(files):
        digest.update(_content(file))
        for name, value in sorted(_constants(files[file])):
            digest.update(f"{name}={value}\n".encode())
    return digest.hexdigest()


def _follow(function: FunctionType, files: dict[str, Mapping[str, Any]]) -> None:
    """Add the function's file, and those of the kernels and modules that it knows, with the names in each."""
    _follow_names(function.__code__.co_filename, function.__globals__, files)


def _follow_names(file: str, known: Mapping[str, Any], files: dict[str, Mapping[str, Any]]) -> None:
    files[file] = known
    for value in known.values():
        if isinstance(value, ModuleType):  # of which kernels and constants are taken by their names
            if _may_change(value, known) and value.__file__ and value.__file__ not in files:
                _follow_names(value.__file__, vars(value), files)
            continue
        made_of = (value.py_func,) if isinstance(value, Dispatcher) else getattr(value, ALTERNATIVES, ())
        for each in made_of:
            if each.__code__.co_filename not in files:
                _follow(each, files)


def _may_change(module: ModuleType, known: Mapping[str, Any]) -> bool:
    """Whether a module is of the package that knows it, or at least none that Python or its environment has."""
    if module.__name__.partition(".")[0] == str(known.get("__name__")).partition(".")[0]:
        return True
    file = getattr(module, "__file__", None)
    return file is not None and not any(Path(file).is_relative_to(place) for place in (sys.prefix, sys.base_prefix))


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
