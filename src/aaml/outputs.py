"""Where a command writes: its folder or file is looked at before the work begins, and has one writer meanwhile.

The writer holds a lock file, `.writing` in a folder or `.NAME.writing` beside a file, with its process and command.
The system frees the lock when the process ends, however it ends.
"""

import errno
import fcntl
import functools
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from aaml.errors import UserError, bad_value

LOCK = ".writing"
Args = TypeVar("Args")
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)  # a file system without locks
_COMMAND = 120  # characters of a command that are told
_log = logging.getLogger(__name__)


@contextmanager
def output_folder(path: Path, *, field: str = "out") -> Iterator[Path]:
    """Have a folder for this process alone while the block lasts; it is made, and goes again if nothing is in it.

    Raises `UserError` where it cannot be written, and where another process writes, naming that.
    """
    if path.exists() and not path.is_dir():
        raise bad_value(field, str(path), "a folder, not a file")
    with _held(path, path / LOCK, field):
        yield path


@contextmanager
def output_file(path: Path, *, field: str = "out") -> Iterator[Path]:
    """Have a file for this process alone while the block lasts; the folders above it are made.

    Raises `UserError` where it cannot be written, and where another process writes it, naming that.
    """
    if path.is_dir():
        raise bad_value(field, str(path), "a file, not a folder")
    if path.exists() and not path.is_file():
        yield path  # a terminal or a pipe
        return
    with _held(path, path.with_name(f".{path.name}{LOCK}"), field):
        yield path


def refuse_unwritable(path: Path, *, field: str) -> None:
    """Raise `UserError` where no file can be written into a folder, which others may write to meanwhile."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"\n")
    except OSError as error:
        raise UserError(f"{field} {path}: cannot be written: {error.strerror or error}") from error
    finally:
        _remove(missing)


def writes(*, folder: str = "", file: str = "") -> Callable[[Callable[[Args], int]], Callable[[Args], int]]:
    """Let a command have the folder or file that one of its settings names while it runs; None there is no output."""

    def decorate(run: Callable[[Args], int]) -> Callable[[Args], int]:
        @functools.wraps(run)
        def alone(args: Args) -> int:
            with ExitStack() as stack:
                for name, output in ((folder, output_folder), (file, output_file)):
                    if name and (path := getattr(args, name)) is not None:
                        stack.enter_context(output(path, field=name))
                return run(args)

        return alone

    return decorate


def refuse_overwriting(outputs: Iterable[Path], inputs: Iterable[Path], *, going_on: bool) -> None:
    """Raise `UserError` for a file that is there where a search is to write, unless it goes on and wrote that itself.

    What the search is told by (`inputs`) is never one that it wrote.
    """
    told = {path.resolve() for path in inputs}
    for path in outputs:
        if path.exists() and (not going_on or path.resolve() in told):
            raise UserError(f"out: {path} is there already; choose another --out")


@contextmanager
def _held(path: Path, lock: Path, field: str) -> Iterator[None]:
    missing = [each for each in (lock.parent, *lock.parent.parents) if not each.exists()]  # the innermost first
    try:
        if lock.parent.exists() and not lock.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _locked(path, lock, field)
    except OSError as error:
        _remove(missing)
        raise UserError(f"{field} {path}: cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)  # before it is free: whoever locks a file that is gone looks again
        os.close(descriptor)
        _remove(missing)


def _locked(path: Path, lock: Path, field: str) -> int:
    """Return the descriptor by which this process has a lock file."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_there(lock, descriptor):
                os.close(descriptor)
                continue  # its last holder has just removed it
            _sign(lock, descriptor)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace") or "another process"
            os.close(descriptor)
            raise UserError(
                f"{field}: {path}: {holder} writes there; wait until it has ended, or choose another {field}"
            ) from None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                _log.warning("%s: its file system has no locks: nothing keeps a second writer out", path)
                return descriptor
            os.close(descriptor)
            raise
        return descriptor


def _sign(lock: Path, descriptor: int) -> None:
    """Write who has a lock into its file; that goes again where there is no room for it."""
    said = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} ({said[:_COMMAND]})".encode(), 0)
    except OSError:
        lock.unlink(missing_ok=True)  # before it is free, as in `_held`
        raise


def _is_there(lock: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return lock.stat().st_ino == os.fstat(descriptor).st_ino
    return False


def _remove(folders: list[Path]) -> None:
    """Remove those that were made for nothing."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()
