"""The mode of private files, and the lock that keeps two builders apart."""

import sys
from collections.abc import Iterator
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
