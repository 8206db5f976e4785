"""Run folders made small for the repository: what documents are drawn from, rounded, without this machine's paths."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from aaml.errors import UserError, bad_value
from aaml.evaluation.identity import AS_TEXT
from aaml.evaluation.results import RESULTS
from aaml.training.records import CONFIG, METRICS, read_metrics

_DIGITS = "%.6g"
_POINTS = 100  # of a curve


def keep(run: Path, folder: Path) -> list[Path]:
    """Copy what `tools/docs/draw.py` reads from a run's folder into `folder`; returns the files.

    results.csv and allocation.csv with six digits; summary.json without its single runs; config.json without the
    machine's name and paths; metrics.jsonl with at most 100 points a curve, without times. Raises `UserError` for a
    folder that holds none of them.
    """
    kept = {}
    for name in (RESULTS, "allocation.csv"):
        if (run / name).is_file():
            try:
                kept[name] = pd.read_csv(run / name, dtype=AS_TEXT).to_csv(index=False, float_format=_DIGITS)
            except ValueError as error:
                raise UserError(f"{run / name}: not readable as CSV: {error}") from error
    if (run / METRICS).is_file():
        kept[METRICS] = "".join(f"{json.dumps(point)}\n" for point in _thinned(run))
    for name in (CONFIG, "summary.json"):
        if (run / name).is_file():
            kept[name] = json.dumps(_facts(run / name), indent=1) + "\n"
    if not kept:
        raise bad_value("keep", str(run), f"a folder of `aaml evaluate`, `train` or `bench` with {RESULTS} or the like")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in kept.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in kept]


def _facts(path: Path) -> dict[str, Any]:
    """Return what a run says of itself, without its single runs and what only names the machine."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(facts, dict):
        raise UserError(f"{path}: is not the {path.name} of a run")
    return {key: value for key, value in facts.items() if key not in {"runs", "platform"}}


def _thinned(run: Path) -> list[dict[str, object]]:
    """Return the curves' points, evenly thinned; each keeps its last."""
    curves: dict[str, list[dict[str, object]]] = {}
    for point in read_metrics(run):
        if point.get("kind") == "scalar":
            value = float(_DIGITS % point["value"])
            curves.setdefault(point["name"], []).append({**point, "value": value})
    thin = [points[::-1][:: -(-len(points) // _POINTS)][::-1] for points in curves.values()]
    return [{key: point[key] for key in ("kind", "name", "value", "step")} for points in thin for point in points]
