"""Where built programs and running clusters live, outside the checkout, and the lock that keeps two builders apart."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aaml.errors import UserError


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
    """Create `path` for its owner alone and return it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be created: {error.strerror}") from error
    return path


def write_private(path: Path, text: str) -> None:
    """Write `text` to `path` with mode 0600, aside first, so that no reader sees half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    aside.replace(path)


@contextmanager
def exclusive(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the file lock `path`, calling `waiting` first when another process has it; a killed process frees it."""
    private_dir(path.parent)
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
