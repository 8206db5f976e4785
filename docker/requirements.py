"""Works out what the image installs: the run-time dependencies at the locked versions, the base image's torch kept.

Run while the image is built, with nothing but Python's standard library:
`requirements.py pyproject.toml requirements.lock OUT` writes `OUT/packages.txt` and `OUT/constraints.txt`.
"""

import importlib.metadata
import re
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036  (this Python is the base image's, not the project's)
    sys.exit(f"BASE_IMAGE: its python3 is {sys.version.split()[0]}; expected 3.11 or newer")

import tomllib  # from Python 3.11 on

# torch and what its wheels bring along; a PyTorch base image has them already, gigabytes of them.
OWN_EXTRAS = re.compile(r"aaml\[([\w,]+)\]")
TORCH_FAMILY = re.compile(r"(torch|triton|(nvidia|cuda)-[a-z0-9-]+)==")


def packages(pyproject: str) -> list[str]:
    """Return the run-time dependencies, of core and container, and the build back end (sources need no download)."""
    project = tomllib.loads(pyproject)
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    return [*needed, *extra("container", project["project"].get("optional-dependencies", {}))]


def extra(name: str, extras: dict[str, list[str]]) -> list[str]:
    """Return what an extra installs, with what the extras that it names install: `aaml[lab,live]`."""
    found: list[str] = []
    for line in extras.get(name, []):
        others = OWN_EXTRAS.fullmatch(line)
        found += [each for other in others[1].split(",") for each in extra(other, extras)] if others else [line]
    return list(dict.fromkeys(found))


def constraints(lock: str, base_torch: str | None) -> list[str]:
    """Return the lock's lines, less torch and its CUDA parts where the base image has a torch of its own.

    Whether that torch is new enough is then decided by the dependency's own lower bound, not by the lock.
    """
    return [line for line in lock.splitlines() if base_torch is None or not TORCH_FAMILY.match(line)]


def installed_torch() -> str | None:
    """Return the version of the torch that the base image has."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def main(pyproject: str, lock: str, out: str) -> None:
    """Write both files and say what was decided."""
    base_torch = installed_torch()
    folder = Path(out)
    folder.mkdir(parents=True)
    (folder / "packages.txt").write_text("\n".join(packages(Path(pyproject).read_text())) + "\n")
    (folder / "constraints.txt").write_text("\n".join(constraints(Path(lock).read_text(), base_torch)) + "\n")
    print(f"torch {base_torch} of the base image is kept" if base_torch else "torch is installed from the lock")


if __name__ == "__main__":
    main(*sys.argv[1:])
