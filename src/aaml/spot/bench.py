"""`aaml bench cant-be-late`: policies on the published cases, as published and so that nothing is late."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from io import StringIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from aaml.errors import UserError, bad_value
from aaml.files import refuse_other_table, write_text
from aaml.spot.cases import NAMES, NINE_ZONES, Cases, published
from aaml.spot.optimum import optimum
from aaml.spot.play import RESULT, play
from aaml.spot.policies import BEST_ONE_ZONE, BEST_ZONES, OURS, POLICIES, Policy, Rule
from aaml.telemetry.tables import show, table

OPTIMUM = "optimum"
RESULTS = "results.csv"
_NUMBERS = ("score", "late", "never late", "of what can be won", "ahead on")
_LEVEL = 1e-9  # dollars: no difference
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """What a policy comes to on a set of cases.

    `dollars` and `score` are the published evaluator's, `late` how many cases are done after their deadline by then,
    `latest_s` by how much at most. `strict_dollars` and `strict_score` are those where none is late, each tick at its
    own zone's price. Of `groups` (zones and devices, or scenarios) it is cheaper than the best published policy, held
    to the deadline alike, on `groups_won`. The optimum knows the future; it has no figures of the first kind.
    """

    cases: str
    policy: str
    count: int
    dollars: float
    score: float
    late: int
    latest_s: float
    strict_dollars: float
    strict_score: float
    strict_late: int
    groups_won: int
    groups: int


def parse_cases(names: Sequence[str]) -> list[str]:
    """Return names of cases, all where there is none. Raises `UserError` with those that there are."""
    return _known("cases", names, NAMES)


def parse_policies(names: Sequence[str], rule: Rule | None = None) -> list[Policy]:
    """Return policies by name, all where there is none, ours with the numbers of `rule`.

    Raises `UserError` for one that is not known, and for a rule that none of them follows.
    """
    chosen = [POLICIES[name] for name in _known("policy", names, POLICIES)]
    if rule and POLICIES[OURS] not in chosen:
        raise UserError(f"rule: {', '.join(names)} cannot follow it; expected {OURS} among --policy")
    return [replace(each, numbers=rule) if rule and each.name == OURS else each for each in chosen]


def _known(field: str, names: Sequence[str], known: Mapping[str, object]) -> list[str]:
    for name in names:
        if name not in known:
            raise bad_value(field, name, f"one of {', '.join(known)}")
    return list(dict.fromkeys(names or known))


def carry_out(names: Sequence[str], policies: Sequence[Policy]) -> Iterator[list[Figures]]:
    """Yield the figures of one set of cases after the other, those of the best published policy and the optimum too."""
    for name in names:
        cases, best = published(name), POLICIES[best_published(name)]
        players = _players(name, policies)
        yield [*(figures(name, each, cases, best) for each in players), optimum_figures(name, cases, best)]


def _players(cases: str, policies: Sequence[Policy]) -> list[Policy]:
    """Return these policies, with the best published one on the cases."""
    best = POLICIES[best_published(cases)]
    return [*policies] if best in policies else [*policies, best]


def best_published(cases: str) -> str:
    """Return the name of the best published policy on cases."""
    return BEST_ZONES if cases == NINE_ZONES else BEST_ONE_ZONE


def figures(name: str, policy: Policy, cases: Cases, best: Policy) -> Figures:
    """Return what a policy comes to on cases, `best` being the best published one."""
    loose, strict = (play(cases, policy, strict=strict) for strict in (False, True))
    late, dollars = loose[:, RESULT.late_s], strict[:, RESULT.dollars]
    published_dollars = loose[:, RESULT.published_dollars]
    return Figures(
        name, policy.name, len(late), cases.mean(published_dollars), cases.score(published_dollars),
        int((late > 0).sum()), float(late.max()), cases.mean(dollars), cases.score(dollars),
        int((strict[:, RESULT.late_s] > 0).sum()), *_groups(cases, dollars, best),
    )  # fmt: skip


def optimum_figures(name: str, cases: Cases, best: Policy) -> Figures:
    """Return what somebody comes to who knows the future, `best` being the best published policy."""
    dollars = optimum(cases)
    nothing = float("nan")
    return Figures(
        name, OPTIMUM, len(dollars), nothing, nothing, 0, 0.0, cases.mean(dollars), cases.score(dollars), 0,
        *_groups(cases, dollars, best),
    )  # fmt: skip


def _groups(cases: Cases, dollars: FloatArray, best: Policy) -> tuple[int, int]:
    """Return on how many groups of cases these dollars are below those of a policy, and how many there are."""
    saved, group = play(cases, best, strict=True)[:, RESULT.dollars] - dollars, np.array(cases.group)
    means = [saved[group == each].mean() for each in np.unique(group)]
    return sum(int(each > _LEVEL) for each in means), len(means)


def check_folder(folder: Path, names: Sequence[str], policies: Sequence[Policy]) -> None:
    """Raise `UserError` where the folder's results.csv is of another command, or has rows that no run of these makes.

    `names`: of the cases that are to be played.
    """
    refuse_other_table(folder / RESULTS, [each.name for each in fields(Figures)])
    own = {(name, each) for name in names for each in (*(each.name for each in _players(name, policies)), OPTIMUM)}
    rows = _kept(folder)
    if other := sorted(set(zip(rows["cases"], rows["policy"], strict=True)) - own):
        raise bad_value("out", str(folder), f"another folder: this one has a row of {other[0][1]} on {other[0][0]}")


def keep(found: Sequence[Figures], folder: Path) -> Path:
    """Write a row for each policy on a set of cases to results.csv in a folder, in place of those on the same cases.

    Returns the file's path.
    """
    rows = _kept(folder)
    new = _read(StringIO(pd.DataFrame(map(asdict, found)).to_csv(index=False)))
    rows = pd.concat([rows[rows["cases"] != found[0].cases], new])
    write_text(folder / RESULTS, rows.to_csv(index=False), field="out")
    return folder / RESULTS


def _kept(folder: Path) -> pd.DataFrame:
    """Return the rows of a folder, as text."""
    if not (folder / RESULTS).is_file():
        return pd.DataFrame(columns=[each.name for each in fields(Figures)])
    try:
        return _read(folder / RESULTS)
    except ValueError as error:
        raise UserError(f"{folder / RESULTS}: not readable as results: {' '.join(str(error).split())}") from error


def _read(file: Path | StringIO) -> pd.DataFrame:
    return pd.read_csv(file, dtype=str, keep_default_na=False)


def won(each: Figures, found: Sequence[Figures]) -> float:
    """Return how far a policy is on the way from the best published one, never late, to the optimum."""
    score = {other.policy: other.strict_score for other in found}
    best = score[best_published(each.cases)]
    return (each.strict_score - best) / (score[OPTIMUM] - best)


def tell(found: Sequence[Figures]) -> None:
    """Print the figures of one set of cases."""
    rows = [
        (
            each.policy, "" if np.isnan(each.score) else f"{each.score:.2f}",
            f"{each.late} (by {each.latest_s:.0f} s)" if each.late else "0", f"{each.strict_score:.2f}",
            f"{won(each, found):.0%}", f"{each.groups_won} of {each.groups}",
        )
        for each in found
    ]  # fmt: skip
    show("", f"{found[0].cases}: {NAMES[found[0].cases]}", table(["policy", *_NUMBERS], rows, right=_NUMBERS))
