"""The Go module of the plugin: its files, as they are kept in this package."""

from pathlib import Path

MODULE = Path(__file__).parent / "go"
EMBEDDED = Path("internal/aaml/embedded/weights.json")
"""Where in the module weights lie that are to be compiled in."""


def source_files() -> dict[Path, bytes]:
    """Return the module's files by their paths in it, without the weights: what `go build .` needs, and its tests."""
    files = sorted(each for each in MODULE.rglob("*") if each.is_file() and each != MODULE / EMBEDDED)
    return {each.relative_to(MODULE): each.read_bytes() for each in files}
