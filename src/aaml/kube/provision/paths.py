"""The mode of private files, and the lock that keeps two builders apart."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from aaml.folders import private_dir

PRIVATE = 0o600  # the mode of files with keys and of what stands beside them


@contextmanager
def exclusive(path: Path, waiting_for: str) -> Iterator[None]:
    """Hold the file lock `path`; a killed process frees its lock.

    While another process holds it, this one says what that process does (`waiting_for`) and waits.
    """
    private_dir(path.parent)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print(f"another process {waiting_for}; waiting for it", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # who waits for this file sees that it is gone, and takes a new one
        lock.release()


def made_whole(program: Path, waiting_for: str, make: Callable[[Path], None]) -> Path:
    """Return a program, whose folder `make` fills where it is not there; it appears under its name when it is whole.

    One process makes it; others wait, and are told what for (`exclusive`).
    """
    folder = program.parent
    if program.is_file():
        return program
    with exclusive(folder.with_name(f"{folder.name}.lock"), waiting_for):
        if not program.is_file():
            partial = private_dir(folder.with_name(f"{folder.name}.partial"))
            try:
                make(partial)
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return program
