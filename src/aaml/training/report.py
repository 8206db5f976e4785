"""The report of a training: its validation, its curves, its settings, and what it left behind."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aaml.errors import UserError
from aaml.evaluation.figures import Panel, curve_figure
from aaml.evaluation.page import Page
from aaml.extras import lazily
from aaml.scheduling.curves import OF_VALIDATION, VALIDATION_DIFFERENCE, VALIDATION_SCORE, validation_metric
from aaml.schema import convert, of_json, read_bytes
from aaml.settings import changed, plain
from aaml.sim.metrics import find_metric
from aaml.sim.tasks import find_task
from aaml.training.records import METRICS, read_config, read_metrics
from aaml.training.settings import TrainConfig

if TYPE_CHECKING:
    from aaml.evaluation import charts
else:  # Bokeh, which is an extra
    charts = lazily("aaml.evaluation.charts")

Curves = Mapping[str, tuple[list[float], list[float]]]


def write_training_report(folder: Path) -> Path:
    """Write report.html of a run folder, with its figures and the numbers of its curves; returns the page's path.

    Raises `UserError` for a folder that holds no run.
    """
    record = read_config(folder)
    if record is None:
        raise UserError(f"{folder}: holds no training")
    config = changed(TrainConfig(), record["training"])
    name = f"{config.agent.name} on {config.task}, seed {config.seed}"
    lines = read_metrics(folder)
    curves = curves_of(lines)
    page = Page(f"Training: {name}", folder)
    page.made_from(record)
    page.facts(_outcome(folder, config) | _warm_start(lines))
    _validation(page, config, curves)
    _learned(page, curves)
    placement = folder / "placement.png"
    if placement.exists():
        page.heading("The last placement")
        page.image(placement.read_bytes(), "use of the nodes at the end of a validation episode")
    page.heading("Next")
    models = sorted((folder / "model").glob("*"))  # of an actor and its critic, the actor is the first
    evaluate = [f"aaml evaluate --task {config.task} --models {models[0]}"] if models else []
    page.code("\n".join([*evaluate, f"tensorboard --logdir {folder.parent}"]))
    usual = plain(TrainConfig(agent=type(config.agent).names()[config.agent.name], method=config.method).resolved)
    page.settings(plain(config.resolved), usual)
    page.hashed([*models, folder / METRICS, *([Path(config.trace)] if config.trace else [])])
    return page.write()


def curves_of(lines: Sequence[Mapping[str, object]]) -> Curves:
    """Return the curves among a run's records, by name in order of appearance; what is no number is left out."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for line in lines:
        value, step = line.get("value"), line.get("step")
        if line.get("kind") == "scalar" and isinstance(value, int | float) and isinstance(step, int | float):
            steps, values = curves.setdefault(str(line["name"]), ([], []))
            steps.append(float(step))
            values.append(float(value))
    return curves


def _outcome(folder: Path, config: TrainConfig) -> dict[str, object]:
    path = folder / "summary.json"
    if not path.exists():
        return {"outcome": "not ended yet"}
    try:
        summary = convert(of_json(read_bytes(path, "summary"), str(path)), _Summary, str(path))
    except UserError as error:
        return {"outcome": f"not known: {error}"}
    return {
        "best validation score": f"{summary.best:.4f} of {config.reference}'s (below 1 is better)",
        "reached after": f"{summary.best_step:,} of {summary.step:,} decisions{_kept(summary, config)}",
        "validations": summary.validations, "time": f"{summary.seconds:.1f} s",
    }  # fmt: skip


def _kept(summary: "_Summary", config: TrainConfig) -> str:
    return f": {config.nothing_better}" if summary.best_step == 0 < summary.step else ""


class _Summary(msgspec.Struct):
    """What is shown of `write_summary`."""

    best: float
    best_step: int
    step: int
    validations: int
    seconds: float


def _warm_start(lines: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return what the imitation of the teacher came to."""
    told = next((line for line in lines if line.get("kind") == "warm start"), {})
    shown = {name: value for name, value in told.items() if name not in {"time", "kind"}}
    return {
        f"warm start: {name}": f"{value:.3f}" if isinstance(value, float) else value for name, value in shown.items()
    }


def _validation(page: Page, config: TrainConfig, curves: Curves) -> None:
    metric = find_metric(find_task(config.task).metric)
    axes = {VALIDATION_SCORE: "score, lower is better"}
    axes[validation_metric(metric.name)] = f"{metric.name}, {metric.better} is better"
    names = [name for name in axes if name in curves]
    if not names:
        return
    page.heading("Validation during training")
    levels = {VALIDATION_SCORE: {config.reference: 1.0}}
    drawn = {name: curves[name] for name in names}
    panels = [Panel({name: [curve]}, name, axes[name], levels.get(name, {})) for name, curve in drawn.items()]
    with page.grid():
        for number, (name, curve) in enumerate(drawn.items()):
            chart = charts.curve_chart(axes[name], {name: curve}, levels=levels.get(name), log=True)
            if number:
                page.figure(chart)
            else:
                page.figure(chart, "validation", partial(curve_figure, *panels), charts.curve_frame(drawn))
        if VALIDATION_DIFFERENCE[0] in curves:
            mean, low, high = (curves[name] for name in VALIDATION_DIFFERENCE)
            title = f"difference from {config.reference}, paired by episode, with its 95% interval"
            page.figure(charts.band_chart(title, mean, low, high))


def _learned(page: Page, curves: Curves) -> None:
    others = {name: curve for name, curve in curves.items() if not name.startswith(OF_VALIDATION)}
    if others:
        page.heading("Learning")
        with page.grid():
            for name, curve in others.items():
                page.figure(charts.curve_chart(name, {name: curve}))
        page.text(
            f"All points of all curves: {METRICS}; curves of more than 1,000 points are drawn as means of blocks."
        )
