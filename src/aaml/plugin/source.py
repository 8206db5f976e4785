"""The Go module of the plugin: its files, as they are kept in this package.

It is written for the newest Kubernetes that can be had. For each older release that its sources fit, `releases` has the
files that are others there: go.mod, go.sum, and what of the API had another name.
"""

from pathlib import Path

MODULE = Path(__file__).parent / "go"
RELEASES = Path(__file__).parent / "releases"
EMBEDDED = Path("internal/aaml/embedded/weights.json")
"""Where in the module weights lie that are to be compiled in."""


def source_files(minor: str = "") -> dict[Path, bytes]:
    """Return the module's files by their paths in it, without the weights: what `go build .` needs, and its tests.

    `minor` is one of `older_releases`, and the newest release where it is empty.
    """
    files = sorted(each for each in MODULE.rglob("*") if each.is_file() and each != MODULE / EMBEDDED)
    found = {each.relative_to(MODULE): each.read_bytes() for each in files}
    others = sorted(each for each in (RELEASES / minor).rglob("*") if each.is_file()) if minor else []
    return found | {each.relative_to(RELEASES / minor): each.read_bytes() for each in others}


def older_releases() -> list[str]:
    """Return the releases of Kubernetes before the newest that the plugin can be for: ["1.35", "1.36"]."""
    return sorted(each.name for each in RELEASES.iterdir())
