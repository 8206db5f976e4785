"""The page of a study: what is told of its result, its trials one after the other, the front, the best ones."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from optuna.trial import FrozenTrial, TrialState

from aaml.evaluation.page import Page, written
from aaml.extras import lazily
from aaml.study.pareto import fronts
from aaml.study.study import JOURNAL, Study

if TYPE_CHECKING:
    from aaml.evaluation import charts
else:  # Bokeh, which is an extra
    charts = lazily("aaml.evaluation.charts")

_BEST = 20  # trials in the table
_SHOWN = 200  # characters of a trial's parameters


def front(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that no other dominates among those that were not pruned and break the limits the least."""
    whole = [each for each in trials if each.state == TrialState.COMPLETE]
    least = min((violation(each) for each in whole), default=0.0)
    kept = [each for each in whole if violation(each) == least]
    if not kept:
        return []
    found = fronts(np.array([each.values for each in kept]))[0]
    return sorted((kept[place] for place in found), key=lambda each: (*each.values, each.number))


def violation(trial: FrozenTrial) -> float:
    """Return by how much a trial breaks limits."""
    return float(trial.user_attrs.get("violation", 0.0))


def write_page(
    study: Study, title: str, told: Sequence[str], settings: Mapping[str, object], objectives: Sequence[str],
    files: Sequence[Path] = (),
) -> Path | None:  # fmt: skip
    """Write report.html into the folder of a study with trials; `told` are the lines on top, the worst news first."""
    return written(lambda: _page(study, title, told, settings, objectives, files))


def _page(
    study: Study, title: str, told: Sequence[str], settings: Mapping[str, object], objectives: Sequence[str],
    files: Sequence[Path],
) -> Path:  # fmt: skip
    page, trials = Page(title, study.folder), study.trials
    for line in told:
        page.text(line)
    best = front(trials)
    whole = [each.state == TrialState.COMPLETE for each in trials]
    page.facts({
        "trials": f"{len(trials)}, of which {whole.count(False)} pruned",
        "limits": f"broken by {sum(violation(each) > 0.0 for each in trials)} trials in training",
        "front": f"{len(best)} of them: no other is better by every objective",
    })  # fmt: skip
    page.figure(
        charts.history_chart(
            f"{objectives[0]}, lower is better (hollow: pruned)", [each.values[0] for each in trials], whole,
            {"limits broken by": [f"{violation(each):.3g}" for each in trials]}, log=False,
        ),
        "history", numbers=_table(trials, objectives),
    )  # fmt: skip
    if len(objectives) > 1:
        page.figure(charts.front_chart(
            [(each.values[0], each.values[1]) for each in trials], [(each.values[0], each.values[1]) for each in best],
            objectives,
        ), "front", numbers=_table(best, objectives))  # fmt: skip
    page.heading("The best in training" if len(objectives) == 1 else "The front in training")
    ranked = best if len(objectives) > 1 else sorted(
        (each for each, is_whole in zip(trials, whole, strict=True) if is_whole),
        key=lambda each: (violation(each), each.values[0], each.number),
    )  # fmt: skip
    page.table(_table(ranked[:_BEST], objectives))
    page.settings(settings)
    page.hashed([*files, study.folder / JOURNAL])
    return page.write()


def _table(trials: Sequence[FrozenTrial], objectives: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame([
        {
            "number": each.number, "state": each.state.name.lower(),
            **{name: f"{value:.6g}" if math.isfinite(value) else str(value)
               for name, value in zip(objectives, each.values, strict=True)},
            "limits broken by": f"{violation(each):.3g}",
            "parameters": json.dumps(each.user_attrs.get("params", each.params))[:_SHOWN],
        }
        for each in trials
    ])  # fmt: skip
