"""What a study leaves to read: trials.csv, best.yaml for `aaml train --config`, history and importance as figures."""

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import yaml

from aaml.experiment.report import text_table
from aaml.experiment.sweep import SweepConfig, folder_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from optuna import Study
    from optuna.trial import FrozenTrial

_BEST, _OTHER = "#0b6e4f", "#6c757d"


def write_report(study: "Study", config: SweepConfig, out: Path) -> None:
    """Write the four files anew (aside first, then renamed); the study needs a finished trial."""
    best = study.best_trial
    training = config.training_of(best.params).to_dict()
    text = (
        f"# trial {best.number} of {len(study.trials)}: validation score {best.value:.6g}, lower is better\n"
        f"{yaml.safe_dump({key: value for key, value in training.items() if key != 'workers'}, sort_keys=False)}"
    )
    _replace(out / "best.yaml", text.encode())
    _replace(out / "trials.csv", trial_table(study).to_csv(index=False).encode())
    _draw(history_figure(study), out / "history.png")
    _draw(importance_figure(importances(study), len(study.trials)), out / "importance.png")


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
    table = trial_table(study).iloc[[trial.number for trial in _ranked(study)[:rows]]]
    for column in table.columns[2:]:
        table[column] = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in table[column]]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in importances(study).items())
    best, task = study.best_trial, config.training.task
    model = folder_of(out, best.number) / "model"
    counts = f"{len(study.trials)} trials, of which {sum(t.state.name == 'PRUNED' for t in study.trials)} pruned"
    return (
        f"{text_table(table)}\n\n{counts}; best: trial {best.number}, validation score {best.value:.4g} "
        f"(lower is better)\nimportance: {shares}\nfigures: {out / 'history.png'}, {out / 'importance.png'}\n"
        f"curves: tensorboard --logdir {out / 'trials'}\nnext: aaml train --config {out / 'best.yaml'}\n"
        f"      aaml evaluate --task {task} --models {model}/*.pth"
    )


def importances(study: "Study") -> dict[str, float]:
    """Return each parameter's share in reaching the best trials, by PED-ANOVA (Watanabe et al., IJCAI 2023).

    It compares where the best tenth of the trials lie (at least five, at most half) with where all do, and so needs
    their order only: pruned trials count too, below all that went farther.
    """
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.trial import create_trial

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
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.subplots()
    best, steps = math.inf, []
    for trial in study.trials:
        complete = trial.state.name == "COMPLETE"
        best = min(best, score(trial)) if complete else best
        steps.append(best)
        axes.plot(trial.number, score(trial), "o", ms=5, color=_OTHER, mfc=_OTHER if complete else "none")
    axes.step(range(len(steps)), steps, where="post", color=_BEST, lw=1.8, label="best so far")
    axes.set(xlabel="trial (hollow: pruned)", ylabel="validation score, lower is better")
    scores = [score(trial) for trial in study.trials]
    if min(scores) > 0 and max(scores) / min(scores) > 10:
        axes.set_yscale("log")
    axes.set_title("Study", loc="left", fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def importance_figure(shares: dict[str, float], trials: int) -> "Figure":
    """Draw a bar a parameter, the most important at the top."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 0.9 + 0.36 * len(shares)), layout="constrained")
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


def _draw(figure: "Figure", path: Path) -> None:
    aside = path.with_name(f".{path.name}")
    figure.savefig(aside, dpi=130, format="png")
    aside.replace(path)


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(content)
    aside.replace(path)
