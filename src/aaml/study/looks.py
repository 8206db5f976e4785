"""Looks at held-out episodes: a search that goes on and looks again has another chance to gain something by chance.

A study keeps each look before it is taken, by what is looked at. Look k has 1 / (k (k + 1)) of the error, which all
together come to the whole: of searches that gain nothing one in twenty is told to gain something, however often
somebody goes on, and also where it ends with the first gain (Bonferroni, with the error spent as in `Bets` of
`aaml.evaluation.statistics`).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from aaml.schema import convert

if TYPE_CHECKING:
    import optuna


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    """A look as a study keeps it: a digest of what was looked at, and how many candidates that were."""

    sha256: str
    candidates: int


@dataclass(frozen=True)
class Look:
    """The `number`-th of all looks, from 1; there were `looks` so far, at so many `candidates`."""

    number: int = 1
    looks: int = 1
    candidates: int = 1

    def comparisons(self, count: int) -> int:
        """Return of how many comparisons (`aaml.evaluation.statistics.together`) one of `count` of this look is."""
        return count * self.number * (self.number + 1)

    def at(self, episodes: str) -> str:
        """Return in words how often these episodes were looked at."""
        times = "once" if self.looks == 1 else f"{self.looks} times (this is look {self.number})"
        found = "1 candidate" if self.candidates == 1 else f"{self.candidates} candidates"
        return f"the {episodes} episodes were looked at {times}, at {found}; intervals hold together over all looks"

    def __str__(self) -> str:
        return self.at("held-out")


FIRST_LOOK = Look()
LOOKS = "looks"


def kept_looks(study: "optuna.Study", where: object) -> list[Kept]:
    """Return the looks so far. Raises `UserError` where they are damaged."""
    return convert(study.user_attrs.get(LOOKS, []), list[Kept], f"out: {where}: looks")


def take_look(study: "optuna.Study", candidates: Sequence[object], where: object) -> Look:
    """Note that JSON-able candidates are about to be looked at. What was looked at before tells nothing new.

    Raises `UserError` for a study whose notes are damaged.
    """
    kept = kept_looks(study, where)
    name = hashlib.sha256(json.dumps(candidates, sort_keys=True).encode()).hexdigest()
    names = [each.sha256 for each in kept]
    if name not in names:
        kept.append(Kept(name, len(candidates)))
        names.append(name)
        study.set_user_attr(LOOKS, msgspec.to_builtins(kept))
    return Look(names.index(name) + 1, len(kept), sum(each.candidates for each in kept))
