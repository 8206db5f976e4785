"""Where built programs and running clusters live, outside the checkout, and the lock that keeps two builders apart."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from aaml.errors import UserError

PRIVATE = 0o600  # the mode of files with keys and of what stands beside them


def _base(own: str, xdg: str, fallback: str) -> Path:
    if chosen := os.environ.get(own):
        return Path(chosen).expanduser().absolute()
    if base := os.environ.get(xdg):
        return Path(base).expanduser().absolute() / "aaml"
    return Path.home() / fallback / "aaml"


def cache_dir() -> Path:
    """Return the folder of what can be rebuilt: `$AAML_CACHE`, `$XDG_CACHE_HOME/aaml` or `~/.cache/aaml`."""
    return _base("AAML_CACHE", "XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """Return the folder of running clusters: `$AAML_STATE`, `$XDG_STATE_HOME/aaml` or `~/.local/state/aaml`.

    It holds private keys, so that only its owner may enter it.
    """
    return _base("AAML_STATE", "XDG_STATE_HOME", ".local/state")


def private_dir(path: Path) -> Path:
    """Create `path`, and the folders above it that are missing, for their owner alone; return `path`."""
    try:
        for folder in (*reversed(path.parents), path):
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be created: {error.strerror}") from error
    return path


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
