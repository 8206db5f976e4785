"""Studies: the same bits however they are cut off, what is refused, what damage comes to. Nothing is played here."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution

from aaml.errors import StoppedError, UserError
from aaml.study.page import front, write_page
from aaml.study.pruner import climb
from aaml.study.samplers import CmaEs, Genetic, Tpe
from aaml.study.study import JOURNAL, Study
from aaml.study.trial import Trial

GENERATIONS = 5


class Numbers:
    """Whole numbers, each a step from its parent."""

    def beginnings(self) -> list[int]:
        return [0, 50, 50]

    def child(self, parents: Any, rng: np.random.Generator) -> int:
        return int(parents[rng.integers(len(parents))] + rng.integers(-9, 10))

    def to_dict(self, config: int) -> dict[str, object]:
        return {"number": config}


def genetic() -> Genetic[int]:
    return Genetic(Numbers(), population=6, elite=3, seed=1)


def cma() -> CmaEs:
    return CmaEs(np.zeros(3), population=6, deviation=0.5, seed=1)


def tpe() -> Tpe:
    space = {"x": FloatDistribution(-1.0, 1.0)}
    return Tpe(space, trials=14, batch=3, seed=1, present={"x": 0.5})


def loss(params: Any) -> tuple[float, float]:
    """How far it is from 20, or from 0.3; and a limit that is broken above 25."""
    number = params["x"] if isinstance(params, dict) else float(np.sum(params))
    return abs(number - (20 if isinstance(params, int) else 0.3)), max(0.0, number - 25.0)


class Evaluate:
    """Evaluates, and is stopped before a generation of this number."""

    def __init__(self, until: int | None = None) -> None:
        self.until, self.asked = until, 0

    def __call__(self, params: Any, number: int, _known: Any) -> list[Trial[Any]]:
        if number == self.until:
            raise StoppedError
        self.asked += len(params)
        found = [loss(each) for each in params]
        return [
            Trial(each, (value,), over, pruned=value > 40, intermediate={1: value})
            for each, (value, over) in zip(params, found, strict=True)
        ]


def search(folder: Path, make: Any, evaluate: Evaluate, **more: Any) -> tuple[Any, Any]:
    sampler = make()
    with Study(folder, {"seed": 1, "sizes": (4, 5)}, {"task": "a"}, **more) as study:
        study.optimize(sampler, evaluate, GENERATIONS, name="test", progress=False)
        return [
            (each.number, each.state, each.values, each.params, each.user_attrs) for each in study.trials
        ], study.trials


@pytest.mark.parametrize("make", [genetic, cma, tpe])
@pytest.mark.parametrize("until", [0, 1, 3])
def test_a_study_that_was_cut_off_goes_on_to_the_same_trials(make: Any, until: int, tmp_path: Path) -> None:
    whole, all_trials = search(tmp_path / "whole", make, once := Evaluate())
    begun, _ = search(tmp_path / "cut", make, first := Evaluate(until))
    assert begun == whole[: len(begun)]
    again, _ = search(tmp_path / "cut", make, rest := Evaluate(), resume=True)
    assert again == whole
    assert first.asked + rest.asked == once.asked == len(all_trials), "nothing is evaluated twice"


def test_half_a_generation_and_half_a_line_are_made_whole(tmp_path: Path) -> None:
    whole, _ = search(tmp_path / "whole", genetic, Evaluate())
    lines = (tmp_path / "whole" / JOURNAL).read_bytes().splitlines(keepends=True)
    for kept in (0, 1, *range(2, len(lines), 5)):
        folder = tmp_path / f"cut-{kept}"
        folder.mkdir()
        (folder / JOURNAL).write_bytes(b"".join(lines[:kept]) + lines[kept][: len(lines[kept]) // 2])
        assert search(folder, genetic, Evaluate(), resume=True)[0] == whole
        assert (folder / JOURNAL).read_bytes().count(b"\n") >= len(lines)


def test_the_elite_keeps_limits_and_comes_near(tmp_path: Path) -> None:
    sampler = genetic()
    with Study(tmp_path, {}, {}) as study:
        study.optimize(sampler, Evaluate(), 12, name="test", progress=False)
        assert loss(sampler.best[0].params)[0] <= 2
        assert [each.violation for each in sampler.best] == [0.0] * 3
        best = front(study.trials)[0]
        assert best.user_attrs["params"]["number"] == sampler.best[0].params
        write_page(study, "Numbers", ("a limit is broken",), {"seed": 1}, ("distance",))
    page = (tmp_path / "report.html").read_text()
    assert "a limit is broken" in page
    assert "Numbers" in page


def test_optunas_own_reader_takes_the_journal(tmp_path: Path) -> None:
    whole, _ = search(tmp_path, tpe, Evaluate())
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / JOURNAL))
    found = optuna.load_study(study_name="study", storage=optuna.storages.JournalStorage(backend))
    assert len(found.trials) == len(whole) == 14
    assert found.trials[0].params == {"x": 0.5}


def test_a_study_is_begun_once_and_goes_on_with_what_it_was_begun_with(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a study that was begun with this --out"):
        Study(tmp_path, {"seed": 1, "sizes": (4, 5)}, {"task": "a"}, resume=True)
    search(tmp_path, genetic, Evaluate(0))  # it could not begin: nothing is in the way
    search(tmp_path, genetic, Evaluate(2))
    with pytest.raises(UserError, match="holds a study already; go on with --resume, or choose another --out"):
        Study(tmp_path, {"seed": 1, "sizes": (4, 5)}, {"task": "a"})
    with pytest.raises(UserError, match="belongs to a study with another seed"):
        Study(tmp_path, {"seed": 2, "sizes": (4, 5)}, {"task": "a"}, resume=True)
    with pytest.raises(UserError, match="was begun with another task"):
        Study(tmp_path, {"seed": 1, "sizes": (4, 5)}, {"task": "b"}, resume=True)
    with (
        Study(tmp_path, {"seed": 1, "sizes": (4, 5)}, {"task": "a"}, resume=True) as study,
        pytest.raises(UserError, match="trial 0 is none of this study: another program made it"),
    ):
        study.optimize(cma(), Evaluate(), 2, name="test", progress=False)


def test_what_is_no_number_is_worse_than_every_number(tmp_path: Path) -> None:
    def evaluate(params: Any, *_: Any) -> list[Trial[Any]]:
        return [Trial(each, (math.nan if each == 0 else float(each),)) for each in params]

    for resume in (False, True):
        sampler = genetic()
        with Study(tmp_path, {}, {}, resume=resume) as study:
            study.optimize(sampler, evaluate, 1, name="test", progress=False)
            assert [each.values for each in sampler.best] == [(50.0,), (math.inf,)]


def test_a_value_is_made_once(tmp_path: Path) -> None:
    with Study(tmp_path, {}, {}) as study:
        assert study.known("start", lambda: [1.5]) == [1.5]
    with Study(tmp_path, {}, {}, resume=True) as study:
        assert study.known("start", lambda: [0.0]) == [1.5]
    with Study(tmp_path, {"seed": 2}, {}) as study:  # nothing was evaluated: this is another one
        assert study.known("start", lambda: [0.0]) == [0.0]


def outcome(folder: Path) -> tuple[str | None, list[Any]]:
    """Return what is said against going on with a study, and its trials where nothing is."""
    try:
        return None, search(folder, genetic, Evaluate(), resume=True)[0]
    except UserError as error:
        return str(error), []


def test_a_damaged_journal_is_one_line_or_the_same_study(tmp_path: Path) -> None:
    whole, _ = search(tmp_path, genetic, Evaluate())
    text = (tmp_path / JOURNAL).read_text()
    lines, rng, refused = text.splitlines(), np.random.default_rng(0), 0
    wrong = ["null", "[]", "{}", '"text"', "-1", "1e999", "[" * 3000 + "]" * 3000]
    for number in range(120):
        at = int(rng.integers(len(lines)))
        content = json.loads(lines[at])
        name = list(content)[rng.integers(len(content))]
        content[name] = "@"
        damaged = json.dumps(content).replace('"@"', wrong[number % len(wrong)])
        (tmp_path / JOURNAL).write_text("\n".join([*lines[:at], damaged, *lines[at + 1 :]]) + "\n")
        said, again = outcome(tmp_path)
        refused += said is not None
        assert "\n" not in (said or "")
        assert [each[4]["params"] for each in again] == [each[4]["params"] for each in whole[: len(again)]]
    assert refused > 30


def test_the_better_half_climbs_on() -> None:
    scores, played = [5.0, 1.0, 3.0, 2.0, 4.0], list[tuple[int, ...]]()
    reached = climb(
        5,
        [1, 2, 4],
        lambda alive, rung: played.append((rung, *alive)),
        lambda alive, _rung: sorted(alive, key=lambda each: scores[each])[: (len(alive) + 1) // 2],
    )
    assert played == [(1, 0, 1, 2, 3, 4), (2, 1, 2, 3), (4, 1, 3)]
    assert reached == [1, 4, 2, 4, 1]
