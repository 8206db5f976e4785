"""What a study leaves to read: best.yaml for `aaml train --config`, and its report with every trial."""

import math
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
import pandas as pd
from matplotlib.ticker import MaxNLocator
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from aaml.evaluation.figures import Picture
from aaml.evaluation.page import REPORT, Page, written
from aaml.evaluation.tables import text_table
from aaml.extras import lazily
from aaml.files import write_text
from aaml.settings import plain
from aaml.training.settings import TrainConfig
from aaml.training.sweep import folder_of
from aaml.training.sweep_space import SweepConfig
from aaml.yaml_text import yaml_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from optuna import Study
    from optuna.trial import FrozenTrial

    from aaml.evaluation import charts
    from aaml.evaluation.charts import Curve, Drawn
else:  # Bokeh, which is an extra
    charts = lazily("aaml.evaluation.charts")

_FEWEST = 2  # trials that have something in common
_WIDE = 10.0  # scores that span more than this get a logarithmic axis
_BEST, _OTHER = "#0b6e4f", "#6c757d"


def write_report(study: "Study", config: SweepConfig, out: Path) -> None:
    """Write best.yaml, trials.csv and report.html anew (each whole or not at all); the study needs a finished trial."""
    best = study.best_trial
    training = plain(config.training_of(best.params).resolved)
    text = (
        f"# trial {best.number} of {len(study.trials)}: validation score {best.value:.6g}, lower is better\n"
        f"{yaml_text({key: value for key, value in training.items() if key != 'workers'})}"
    )
    write_text(out / "best.yaml", text, field="out")
    written(lambda: _write_page(study, config, out))


def _write_page(study: "Study", config: SweepConfig, out: Path) -> Path:
    best, table, shares = study.best_trial, trial_table(study), importances(study)
    page = Page(f"Study: {config.training.agent.name} on {config.training.task}", out)
    page.facts({
        "trials": f"{len(study.trials)}, of which {_pruned(study)} pruned",
        "learn by": config.base.resolved_method,
        "best": f"trial {best.number}, validation score {best.value:.4g} of {config.training.reference}'s",
        **{f"its {name}": value for name, value in best.params.items()},
    })  # fmt: skip
    page.heading("Trials")
    page.figure(history_chart(study), "history", partial(history_figure, study))
    curves, chosen = rung_curves(study), f"trial {best.number}"
    page.figure(
        charts.family_chart(
            f"validation score over the rungs ({chosen} in colour)", curves, chosen, "decisions", log=_wide(study)
        ),
        "rungs", partial(rung_figure, curves, chosen, log=_wide(study)), charts.curve_frame(curves),
    )  # fmt: skip
    if shares:
        page.figure(
            charts.bar_chart("What the best trials have in common", shares, "share (PED-ANOVA)", form="0%"),
            "importance", partial(importance_figure, shares, len(study.trials)),
            pd.DataFrame(list(shares.items()), columns=["setting", "share"]),
        )  # fmt: skip
    page.table(_shown(table.sort_values("value", kind="stable")))
    write_text(out / "trials.csv", table.to_csv(index=False), field="out")
    page.heading("Next")
    models = sorted((folder_of(out, best.number) / "model").glob("*"))  # of an actor and its critic, the actor is first
    evaluate = [f"aaml evaluate --task {config.training.task} --models {models[0]}"] if models else []
    page.code("\n".join([f"aaml train --config {out / 'best.yaml'}", *evaluate]))
    usual = TrainConfig(
        agent=type(config.training.agent).names()[config.training.agent.name], method=config.base.method
    )
    page.settings({"space": config.space, "trials": config.trials, "batch": config.batch, "rungs": config.rungs})
    page.settings(plain(config.training.resolved), plain(usual.resolved))
    page.hashed([*models, out / "trials.csv", out / "best.yaml"])
    return page.write()


def _pruned(study: "Study") -> int:
    return sum(trial.state.name == "PRUNED" for trial in study.trials)


def trial_table(study: "Study") -> pd.DataFrame:
    """Return a row a trial, in order: number, state, value, decisions and a column a parameter."""
    return pd.DataFrame(
        [
            {
                "number": trial.number,
                "state": trial.state.name.lower(),
                "value": score(trial),
                "decisions": max(trial.intermediate_values),
                **trial.params,
            }
            for trial in study.trials
        ]
    )


def summary(study: "Study", config: SweepConfig, out: Path, rows: int = 10) -> str:
    """Return the best trials and the commands to go on with, as text for a terminal."""
    table = _shown(trial_table(study).iloc[[trial.number for trial in _ranked(study)[:rows]]])
    shares = ", ".join(f"{name} {share:.0%}" for name, share in importances(study).items())
    shares = f"importance: {shares}\n" if shares else ""
    best, task = study.best_trial, config.training.task
    warning = not_better(study, config)
    counts = f"{len(study.trials)} trials by {config.base.resolved_method}, of which {_pruned(study)} pruned"
    return (
        f"{warning}{text_table(table)}\n\n{counts}; best: trial {best.number}, validation score {best.value:.4g} "
        f"(lower is better)\n{shares}report: {out / REPORT}\n"
        f"curves: tensorboard --logdir {out / 'trials'}\nnext: aaml train --config {out / 'best.yaml'}\n"
        f"      aaml evaluate --task {task} --models {folder_of(out, best.number)}"
    )


def not_better(study: "Study", config: SweepConfig) -> str:
    """Return a line that no trial is better than the reference; empty where one is."""
    if (study.best_value or 0.0) < 1.0:
        return ""
    return f"no trial is better than {config.training.reference} on validation episodes\n\n"


def importances(study: "Study") -> dict[str, float]:
    """Return each parameter's share in reaching the best trials, by PED-ANOVA (Watanabe et al., IJCAI 2023).

    It compares where the best tenth of the trials lie (at least five, at most half) with where all do, and so needs
    their order only: pruned trials count too, below all that went farther. Of one trial there is nothing to say.
    """
    if len(study.trials) < _FEWEST:
        return {}
    ranked = optuna.create_study()
    for rank, trial in enumerate(_ranked(study)):
        ranked.add_trial(create_trial(value=float(rank), params=trial.params, distributions=trial.distributions))
    names = list(study.best_trial.params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few trials: said in the figure's title
        top = PedAnovaImportanceEvaluator(target_quantile=max(0.1, min(0.5, 5 / len(ranked.trials))))
        shares = get_param_importances(ranked, evaluator=top, params=names)
    return dict(sorted(shares.items(), key=lambda each: -each[1]))


def history_figure(study: "Study") -> "Figure":
    """Draw every trial's score and the best so far; hollow: pruned."""
    figure = Picture(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.subplots()
    best, steps = math.inf, []
    for trial in study.trials:
        complete = trial.state.name == "COMPLETE"
        best = min(best, score(trial)) if complete else best
        steps.append(best)
        axes.plot(trial.number, score(trial), "o", ms=5, color=_OTHER, mfc=_OTHER if complete else "none")
    axes.step(range(len(steps)), steps, where="post", color=_BEST, lw=1.8, label="best so far")
    axes.set(xlabel="trial (hollow: pruned)", ylabel="validation score, lower is better")
    if _wide(study):
        axes.set_yscale("log")
    axes.set_title("Study", loc="left", fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def rung_curves(study: "Study") -> "dict[str, Curve]":
    """Return each trial's validation scores over the decisions that its rungs lie at."""
    return {
        f"trial {trial.number}": (list(map(float, steps)), [trial.intermediate_values[step] for step in steps])
        for trial in study.trials
        if (steps := sorted(trial.intermediate_values))
    }


def rung_figure(curves: "Mapping[str, Curve]", chosen: str, *, log: bool) -> "Figure":
    """Draw each trial's scores over its rungs, the best one in colour."""
    figure = Picture(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, (steps, values) in sorted(curves.items(), key=lambda each: each[0] == chosen):
        best = name == chosen
        axes.plot(
            steps, values, marker="o", ms=4, color=_BEST if best else _OTHER, lw=2.2 if best else 0.9,
            alpha=1.0 if best else 0.55, label=name if best else "",
        )  # fmt: skip
    axes.set(xlabel="decisions", ylabel="validation score, lower is better", yscale="log" if log else "linear")
    axes.set_title("Trials over their rungs", loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _wide(study: "Study") -> bool:
    """Whether the scores span so much that an axis is to be logarithmic."""
    scores = [value for trial in study.trials for value in trial.intermediate_values.values()]
    return min(scores) > 0 and max(scores) / min(scores) > _WIDE


def history_chart(study: "Study") -> "Drawn":
    """Return the same to point at: every trial's score with its settings."""
    names = dict.fromkeys(name for trial in study.trials for name in trial.params)
    return charts.history_chart(
        "validation score, lower is better (hollow: pruned)",
        [score(trial) for trial in study.trials],
        [trial.state.name == "COMPLETE" for trial in study.trials],
        {"decisions": [max(trial.intermediate_values) for trial in study.trials]}
        | {name: [str(trial.params.get(name, "")) for trial in study.trials] for name in names},
        log=_wide(study),
    )


def importance_figure(shares: dict[str, float], trials: int) -> "Figure":
    """Draw a bar a parameter, the most important at the top."""
    figure = Picture(figsize=(7.0, 0.9 + 0.36 * len(shares)), layout="constrained")
    axes = figure.subplots()
    axes.barh(list(shares), list(shares.values()), color=_BEST, height=0.6)
    axes.invert_yaxis()
    axes.set_xlabel("share (PED-ANOVA)")
    axes.set_title(f"What the best of {trials} trials have in common", loc="left", fontsize=11)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def score(trial: "FrozenTrial") -> float:
    """Return the score at the last rung that the trial reached."""
    return trial.intermediate_values[max(trial.intermediate_values)]


def _ranked(study: "Study") -> "list[FrozenTrial]":
    """Return the trials, the best first: those that went farther before the others, then by score."""
    return sorted(study.trials, key=lambda trial: (-max(trial.intermediate_values), score(trial), trial.number))


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with its numbers as short texts."""
    shown = table.copy()
    for column in table.columns[2:]:
        shown[column] = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in table[column]]
    return shown
