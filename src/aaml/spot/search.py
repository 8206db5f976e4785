"""Searching the numbers of our rule, on other series than those that judge it.

The zones of 2022, by which the leaderboard and Frontier-CS judge, are not played. Cases are cut from the nine zones of
2023: one zone at a time, at its own speed and twice as fast (those of 2022 change twice as often), each deadline with
each restart overhead; and the six scenarios of several zones, at times when no published run of these plays. `apart`
keeps the cases of one zone out of these times too: numbers that are to be evaluated on several zones.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.errors import StoppedError, bad_value
from aaml.evaluation.identity import VERSION, inputs
from aaml.evaluation.program import version_with
from aaml.files import write_json
from aaml.outputs import output_file, refuse_overwriting
from aaml.spot.cases import HOUR_S, SCENARIOS, Cases, cases
from aaml.spot.play import RESULT, play
from aaml.spot.policies import OURS, POLICIES, Rule
from aaml.spot.traces import ZONES, Window, archive, windows_2023
from aaml.study.page import write_page
from aaml.study.samplers import CmaEs
from aaml.study.study import Study, exists, folder_beside
from aaml.study.trial import Trial

FloatArray = npt.NDArray[np.float64]
_TICK_S, _PLAYED = 195, 960  # of the record of 2023, and ticks to a deadline of 52 hours: more are never played
_SPARE = 60  # ticks behind a deadline, by which the trace goes on
_OVERHEADS_H = (0.02, 0.05, 0.1, 0.2)  # each counts alike, at each speed
_PUBLISHED = range(8)  # windows of the published runs
_SCALE = Rule(0.05, 0.1, 0.03, 1.5, 1.0, 0.17, 0.2, 0.5, 0.5)  # how far numbers go at the beginning, in deviations of 1
_DEVIATION = 0.5
_START = Rule(0.1, 0.06, 0.03, 3.5, 2.4, 0.25, 0.3, 1.8, 0.6)


@dataclass(frozen=True)
class SpotSearch:
    """What to search."""

    out: Path
    apart: bool = False
    generations: int = 60
    population: int = 14
    seed: int = 0

    @property
    def folder(self) -> Path:
        """Where the study is kept."""
        return folder_beside(self.out)

    def to_dict(self) -> dict[str, Any]:
        """Return what makes a search another one, as JSON-able values."""
        return {"apart": self.apart, "population": self.population, "seed": self.seed}

    def inputs(self) -> dict[str, str]:
        """Return the traces, by contents, and what plays them."""
        return {VERSION: version_with("spot")} | inputs(files={"traces": (archive(ZONES),)})


def training(*, apart: bool) -> list[Cases]:
    """Return the sets of cases, each of which counts alike."""
    one = [one_zone(speed, overhead_h, apart=apart) for overhead_h in _OVERHEADS_H for speed in (1, 2)]
    return [*one, several_zones()]


def one_zone(speed: int, overhead_h: float, *, apart: bool) -> Cases:
    """Return cases of one zone each, whose ticks of ten minutes are `speed` times as long in the record."""
    places = np.round(np.arange(70 * HOUR_S // 600 + 2) * 600 * speed / _TICK_S).astype(int)
    starts = _starts(int(places[-1]) + 1, 100 if apart else 450, apart=apart)
    windows = [[Window(start, up[start + places])] for up, _ in _record().values() for start in starts]
    rows = [
        (place, hours * HOUR_S, round(overhead_h * HOUR_S)) for place, hours in product(range(len(windows)), (52, 70))
    ]
    return cases(windows, rows, [""] * len(rows), 600)


def several_zones() -> Cases:
    """Return cases of the six scenarios."""
    record, ticks = _record(), _PLAYED + _SPARE
    windows = [
        [Window(start, record[zone][0][start : start + ticks], record[zone][1][start]) for zone in zones]
        for zones, _ in SCENARIOS for start in _starts(_PLAYED, 160, apart=True)
    ]  # fmt: skip
    return cases(windows, [(place, 52 * HOUR_S, 720) for place in range(len(windows))], [""] * len(windows), _TICK_S)


def _record() -> dict[str, tuple[npt.NDArray[np.bool_], FloatArray]]:
    """Return of each zone whether it was up [T], and its dollars an hour [T], put together from its windows."""
    record = {}
    for zone, windows in windows_2023().items():
        length = max(each.start + len(each.up) for each in windows)
        up, price = np.zeros(length, dtype=np.bool_), np.zeros(length)
        for each in sorted(windows, key=lambda window: window.start):
            place = slice(each.start, each.start + len(each.up))
            up[place], price[place] = each.up, each.dollars_per_hour
        record[zone] = (up, price)
    return record


def _starts(ticks: int, step: int, *, apart: bool) -> list[int]:
    """Return where so many ticks of the record begin; `apart` from all that published runs of several zones play."""
    windows = windows_2023()[SCENARIOS[0][0][0]]
    published = [windows[number].start for number in _PUBLISHED] if apart else []
    last = max(each.start + len(each.up) for each in windows) - ticks - _SPARE
    return [start for start in range(0, last, step) if all(not at - ticks < start < at + _PLAYED for at in published)]


def search(
    settings: SpotSearch, *, resume: bool = False, stopped: Callable[[], bool] = lambda: False
) -> tuple[Rule, int]:
    """Search, and return the last mean with how many generations there were.

    The file holds the mean after every generation. The same settings give the same file, however often the search was
    cut off. Raises `UserError` for settings that nothing can be done with, and `StoppedError` where it was stopped in
    the first generation.
    """
    if settings.out.suffix != ".json":
        raise bad_value("out", str(settings.out), "a file that ends in .json")
    with output_file(settings.out):
        refuse_overwriting([settings.out], [], going_on=exists(settings.folder))
        sampler = CmaEs(
            np.zeros(len(astuple(_SCALE))), population=settings.population, deviation=_DEVIATION, seed=settings.seed
        )
        sets = training(apart=settings.apart)

        def evaluate(vectors: Sequence[FloatArray], _number: int, _known: object) -> list[Trial[FloatArray]]:
            return [Trial(each, (-mean_score(of_vector(each), sets),)) for each in vectors]

        def write() -> Rule:
            rule = of_vector(sampler.means[-1])
            write_json(settings.out, asdict(rule), field="out")
            return rule

        def after(_number: int) -> str:
            return f"score={mean_score(write(), sets):.3f}"

        with Study(
            settings.folder, settings.to_dict(), settings.inputs(), resume=resume, length=settings.generations
        ) as study:
            done = study.optimize(
                sampler, evaluate, settings.generations, name="search spot", stopped=stopped, after=after
            )
            if not done:
                raise StoppedError
            rule = write()  # also where no generation was new: the file may be gone, or a generation behind
            write_page(
                study, "A rule for spot capacity", (), settings.to_dict(), ("mean score, negative",), [settings.out]
            )
    return rule, done


def mean_score(rule: Rule, sets: Sequence[Cases]) -> float:
    """Return the mean of the scores on sets of cases, each tick of spot at its own zone's price."""
    policy = replace(POLICIES[OURS], numbers=rule)
    return float(np.mean([each.score(play(each, policy, strict=True)[:, RESULT.dollars]) for each in sets]))


def of_vector(vector: FloatArray) -> Rule:
    """Return the rule of a vector: how far each number is from where the search begins."""
    found = np.array(astuple(_START)) + vector * np.array(astuple(_SCALE))
    found[-2:] = np.maximum(found[-2:], 0.01)
    return Rule(*np.round(found, 4).tolist())
