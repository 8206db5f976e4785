"""Where built programs, compiled kernels and running clusters live, outside the checkout."""

import os
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


def made_dir(path: Path) -> Path:
    """Create `path` and the folders above it that are missing; return `path`. Raises `UserError` where that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be created: {error.strerror}") from error
    return path


def private_dir(path: Path) -> Path:
    """Create `path`, and the folders above it that are missing, for their owner alone; return `path`."""
    try:
        for folder in (*reversed(path.parents), path):
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be created: {error.strerror}") from error
    return path
