"""A search for formulas in a folder: islands that go on generation by generation, curves, the front, a page.

==================  ==================================================================================
settings.json       what the search was told
study.jsonl         every formula that was played: --resume goes on from there, to the bit
front.json          the formulas that no other dominates, with their losses on validation episodes
front/              each of them as a file, SIZE.formula
model/              the one that was chosen: the shortest within a standard error of the best on validation
looks.jsonl         each look at the leaderboard's episodes
report.html         a page
==================  ==================================================================================
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aaml.errors import StoppedError, UserError
from aaml.evaluation.identity import inputs
from aaml.evaluation.page import written
from aaml.evolve.cases import check as check_held_out
from aaml.evolve.front import Evaluated, chosen, evaluate_front, undominated
from aaml.evolve.island import Candidate, Islands, evaluate_in_training, training_cases
from aaml.evolve.races import Races
from aaml.evolve.settings import FREE, EvolveConfig
from aaml.extras import lazily
from aaml.files import write_json
from aaml.outputs import output_folder, refuse_overwriting
from aaml.parallel.pool import open_pool
from aaml.policies.formula_file import save_formula
from aaml.policies.formulas.policy import Formula
from aaml.policies.formulas.text import parse
from aaml.schema import convert, of_json, read_bytes
from aaml.settings import changed, plain
from aaml.study.looks import Look
from aaml.study.study import Study, exists
from aaml.study.trial import Trial
from aaml.telemetry.event_file import TensorBoardWriter
from aaml.telemetry.provenance import command, provenance
from aaml.workload.traces import trace_files

if TYPE_CHECKING:
    from aaml.evolve import page
else:  # Bokeh, which is an extra
    page = lazily("aaml.evolve.page")

SETTINGS = "settings.json"
_AT_ONCE = 16  # formulas of a job


def evolve(
    config: EvolveConfig,
    out: Path,
    *,
    resume: bool = False,
    said: Collection[str] | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: bool = True,
) -> list[Evaluated]:
    """Search until the generations are done or `stop()` is true; return the front, evaluated on validation episodes.

    The same settings give the same formulas, with any number of processes and interruptions. With `resume` the settings
    in the folder count, but for generations and workers; `said` are those of `config` that a person named, None for
    all. Raises `UserError` for a folder that holds another search,
    and `StoppedError` where no generation was done.
    """
    with output_folder(out):
        if resume and (out / SETTINGS).is_file():
            config = read_config(out).going_on(config, said)
        return _evolve(config, out, resume, stop, progress=progress)


def _evolve(
    config: EvolveConfig, out: Path, resume: bool, stop: Callable[[], bool], *, progress: bool
) -> list[Evaluated]:
    config.check()  # what is no task is told before there is a folder
    check_held_out(config)
    refuse_overwriting([out / "front.json"], [], going_on=exists(out))
    told = {name: value for name, value in plain(config).items() if name not in (*FREE, "start")}
    with Study(out, told, inputs_of(config), resume=resume, objectives=2) as study:
        write_json(out / SETTINGS, {**plain(config), "start": [str(path) for path in config.start]}, indent=1)
        with open_pool(config.workers) as pool, closing(TensorBoardWriter(out)) as writer:
            islands = Islands(config, training_cases(config))

            def evaluate(asked: Sequence[Candidate], _number: int, _known: object) -> list[Trial[Candidate]]:
                parts = [asked[begin : begin + _AT_ONCE] for begin in range(0, len(asked), _AT_ONCE)]
                found = dict(pool.run(evaluate_in_training, [(config, each) for each in parts], stop))
                return [trial for place in range(len(parts)) for trial in found[place]]

            def after(number: int) -> str:
                return f"best={_curves(writer, islands, number + 1):.4f}"

            done = study.optimize(
                islands, evaluate, config.generations, name="evolve", stopped=stop, after=after, progress=progress
            )
        if not done:
            raise StoppedError
        found = {text: loss for front in islands.fronts for text, loss, _ in front}
        return leave(config, out, found, study.look(sorted(found)), progress=progress)


def leave(
    config: EvolveConfig, out: Path, found: Mapping[str, float], look: Look, *, progress: bool = True
) -> list[Evaluated]:
    """Evaluate formulas by their texts, with their training losses, on validation episodes; write front and page."""
    everyone, races = evaluate_front(config, sorted(found.items()), look, progress=progress)
    front = undominated(everyone)
    write_json(out / "front.json", [each.facts() for each in front], indent=1)
    for old in (*(out / "front").glob("*.formula"), *(out / "model").glob("*.formula")):
        old.unlink()
    for each in front:
        save_formula(formula_of(config, races, each), out / "front" / f"{each.size:02}.formula")
    save_formula(formula_of(config, races, chosen(front)), out / "model" / f"{config.label}.formula")
    written(lambda: page.write_page(config, out, front, everyone, look))
    return front


def formula_of(config: EvolveConfig, races: Races, evaluated: Evaluated) -> Formula:
    """Return a formula with where it came from."""
    origin = {
        "command": command(),
        "task": list(config.task),
        "metric": config.metric,
        "reference": config.reference_policy,
        "search_seed": config.seed,
        "training_loss": evaluated.training_loss,
        "validation_loss": evaluated.loss,
        "validation_episodes": len(evaluated.losses),
        **provenance(),
    }
    return Formula(parse(evaluated.text), races.observation_spec, origin)


def read_config(out: Path) -> EvolveConfig:
    """Return what the search in a folder was told. Raises `UserError` where there is none."""
    path = out / SETTINGS
    if not path.is_file():
        raise UserError(f"out: {out} holds no search for formulas")
    where = f"out: {path}"
    content = convert(of_json(read_bytes(path, "out"), where), dict[str, Any], where)
    try:
        return changed(EvolveConfig(), content)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def inputs_of(config: EvolveConfig) -> dict[str, str]:
    """Return what a search evaluates formulas on and begins with, by contents."""
    lists = [file for name in (config.traces if config.is_openb else ()) for file in trace_files(name)]
    files = {"start": config.start, "traces": lists}
    return inputs(() if config.is_openb else config.tasks, {"reference": config.reference}, files)


def _curves(writer: TensorBoardWriter, islands: Islands, done: int) -> float:
    """Write the curves of a generation and return the least loss."""
    front = [each for found in islands.fronts for each in found]
    least = min(loss for _, loss, _ in front)
    writer.scalar("evolve/loss", least, done)
    for most in (5, 11, 21, 31):
        if within := [loss for _, loss, size in front if size <= most]:
            writer.scalar(f"evolve/loss of size {most} at most", min(within), done)
    writer.scalar("evolve/formulas played", sum(each.played for each in islands.islands), done)
    writer.scalar("evolve/formulas looked at", sum(each.asked for each in islands.islands), done)
    return least
