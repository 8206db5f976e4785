"""How one of several nodes with the same score is chosen: one list of words for every policy and command."""

from typing import Literal

TieBreak = Literal["fixed", "name", "random"]
"""The first node in a fixed order (by index, or the order that a benchmark's seed gives), the smallest name, or any."""
