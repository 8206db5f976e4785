"""Where a result comes from: the command, the revision and versions of the code, the contents of files."""

import hashlib
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("aaml", "torch", "torch-geometric", "numpy", "numba")


def command() -> str:
    """Return how this program was called, as a person would type it."""
    program, *arguments = sys.argv or [""]
    path = Path(program)
    name = path.parent.name if path.name == "__main__.py" else path.name
    return "a notebook" if "ipykernel" in program else shlex.join([name, *arguments]) if name else "python"


def provenance() -> dict[str, Any]:
    """Return the git revision (with "+" when files differ from it), versions and the platform."""
    revision = _git("rev-parse", "HEAD")
    changed = "+" if revision and _git("status", "--porcelain", "--untracked-files=no") else ""
    return {
        "git_revision": f"{revision}{changed}" or "unknown",
        "versions": {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()},
        "platform": platform.platform(),
    }


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal; of a folder, that of its files' names and digests."""
    sha = hashlib.sha256()
    if path.is_dir():
        for each in sorted(each for each in path.rglob("*") if each.is_file()):
            sha.update(f"{each.relative_to(path)} {digest(each)}\n".encode())
        return sha.hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603
            ["git", *arguments],  # noqa: S607
            cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
