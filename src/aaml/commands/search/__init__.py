"""Searches: settings of a training, what a cluster is set to, and formulas that schedule well."""

from collections.abc import Sequence


def next_line(task: str, nodes: Sequence[int], policies: str) -> str:
    """Return the line with the command that compares what was found, at the same sizes."""
    sizes = f" --nodes {' '.join(map(str, nodes))}" if nodes else ""
    return f"next: aaml evaluate --task {task}{sizes} --policies {policies}"
