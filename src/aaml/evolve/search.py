"""A search for formulas in a folder: islands that go on generation by generation, curves, the front, a page.

==================  ==================================================================================
settings.json       what the search was told
state.json          all islands after the last generation: --resume goes on from there, to the bit
front.json          the formulas that no other dominates, with their losses on validation episodes
front/              each of them as a file, SIZE.formula
model/              the one that was chosen: the shortest within a standard error of the best on validation
looks.jsonl         each look at the leaderboard's episodes
report.html         a page
==================  ==================================================================================
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aaml.errors import UserError
from aaml.evaluation.identity import inputs, same_inputs
from aaml.evaluation.page import written
from aaml.evolve.cases import check as check_held_out
from aaml.evolve.front import Judged, chosen, judge_front, undominated
from aaml.evolve.island import Island
from aaml.evolve.judge import Races
from aaml.evolve.settings import EvolveConfig
from aaml.evolve.state import read_state
from aaml.extras import lazily
from aaml.files import write_json
from aaml.outputs import output_folder
from aaml.parallel.pool import Kept, open_pool
from aaml.policies.formula_file import save_formula
from aaml.policies.formulas.policy import Formula
from aaml.policies.formulas.text import parse
from aaml.progress import progress_bar
from aaml.schema import convert, of_json, read_bytes
from aaml.settings import changed, plain
from aaml.telemetry.event_file import TensorBoardWriter
from aaml.telemetry.provenance import command, provenance
from aaml.workload.traces import pod_list

if TYPE_CHECKING:
    from aaml.evolve import page
else:  # Bokeh, which is an extra
    page = lazily("aaml.evolve.page")

_log = logging.getLogger(__name__)
_MIGRANTS = 5
Front = list[tuple[str, float, int]]


def evolve(
    config: EvolveConfig,
    out: Path,
    *,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    progress: bool = True,
) -> list[Judged]:
    """Search until the generations are done or `stop()` is true; return the front, judged on validation episodes.

    The same settings give the same formulas, with any number of processes and interruptions. With `resume` the settings
    in the folder count, but for generations and workers. Raises `UserError` for a folder that holds another search.
    """
    with output_folder(out):
        return _evolve(config, out, resume, stop, progress=progress)


def _evolve(config: EvolveConfig, out: Path, resume: bool, stop: Callable[[], bool], *, progress: bool) -> list[Judged]:
    config, state = _opened(config, out, resume)
    played = inputs_of(config)
    with open_pool(config.workers) as pool, closing(TensorBoardWriter(out)) as writer:
        islands = [pool.keep(Island, config, number) for number in range(config.islands)]
        if state is not None:
            _all(islands, "restore", [(each,) for each in state["islands"]])
        done, fronts = (0, [[] for _ in islands]) if state is None else (state["generations"], state["fronts"])
        bar = progress_bar("evolve", config.generations, "generation", enabled=progress, at=done)
        with bar:
            while done < config.generations and not stop():
                migrants = _migrants(fronts, done, config)
                results = _all(islands, "advance", [(each,) for each in migrants])
                states = _all(islands, "state", [()] * len(islands))
                done, fronts = done + 1, [each["front"] for each in results]
                _save(config, out, {"generations": done, "fronts": fronts, "islands": states, "inputs": played})
                _curves(writer, results, done)
                bar.set_postfix(best=f"{min(loss for front in fronts for _, loss, _ in front):.4f}", refresh=False)
                bar.update()
    if not done:
        return []
    return leave(config, out, fronts, progress=progress)


def leave(config: EvolveConfig, out: Path, fronts: Sequence[Front], *, progress: bool = True) -> list[Judged]:
    """Judge the islands' fronts on validation episodes; write front, formulas and page."""
    found = {text: loss for front in fronts for text, loss, _ in front}
    everyone, judge = judge_front(config, sorted(found.items()), progress=progress)
    front = undominated(everyone)
    write_json(out / "front.json", [each.facts() for each in front], indent=1)
    for old in (*(out / "front").glob("*.formula"), *(out / "model").glob("*.formula")):
        old.unlink()
    for each in front:
        save_formula(formula_of(config, judge, each), out / "front" / f"{each.size:02}.formula")
    save_formula(formula_of(config, judge, chosen(front)), out / "model" / f"{config.label}.formula")
    written(lambda: page.write_page(config, out, front, everyone))
    return front


def formula_of(config: EvolveConfig, judge: Races, judged: Judged) -> Formula:
    """Return a formula with where it came from."""
    origin = {
        "command": command(),
        "task": list(config.task),
        "metric": config.metric,
        "reference": config.judged_by,
        "search_seed": config.seed,
        "training_loss": judged.training_loss,
        "validation_loss": judged.loss,
        "validation_episodes": len(judged.losses),
        **provenance(),
    }
    return Formula(parse(judged.text), judge.observation_spec, origin)


def read_config(out: Path) -> EvolveConfig:
    """Return what the search in a folder was told. Raises `UserError` where there is none."""
    path = out / "settings.json"
    if not path.is_file():
        raise UserError(f"out: {out} holds no search for formulas")
    where = f"out: {path}"
    content = convert(of_json(read_bytes(path, "out"), where), dict[str, Any], where)
    try:
        return changed(EvolveConfig(), content)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _opened(config: EvolveConfig, out: Path, resume: bool) -> tuple[EvolveConfig, Mapping[str, Any] | None]:
    """Return the settings of the search, and the state that it goes on from, None for a new one."""
    path = out / "state.json"
    if not path.is_file():  # nor was a search begun whose first generation could not be played
        if (out / "front.json").exists():
            raise UserError(
                f"out: {out} holds formulas (front.json) that no search of `aaml search formula` left there; "
                "choose another folder"
            )
        config.check()  # what is no task is told before there is a folder
        check_held_out(config)
        _log.debug("a new search on %s", ", ".join(config.task))
        return config, None
    if not resume:
        raise UserError(f"out: {out} holds a search already; go on with --resume, or choose another folder")
    config = read_config(out).going_on(config)
    config.check()
    state = read_state(path, config.islands)
    same_inputs(inputs_of(config), state.get("inputs"), out)
    return config, state


def inputs_of(config: EvolveConfig) -> dict[str, str]:
    """Return what a search judges formulas on and begins with, by contents."""
    lists = [pod_list(name) for name in (config.traces if config.is_openb else ())]
    files = {"start": config.start, "traces": lists}
    return inputs(() if config.is_openb else config.tasks, {"reference": config.reference}, files)


def _save(config: EvolveConfig, out: Path, state: Mapping[str, Any]) -> None:
    """Keep what the search was told, and how far it is."""
    write_json(out / "settings.json", {**plain(config), "start": [str(path) for path in config.start]}, indent=1)
    write_json(out / "state.json", state)


def _all(islands: Sequence[Kept], method: str, values: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call a method of all islands at once."""
    for island, each in zip(islands, values, strict=True):
        island.send(method, *each)
    return [island.receive() for island in islands]


def _migrants(fronts: Sequence[Front], done: int, config: EvolveConfig) -> list[list[str]]:
    """Return the formulas that each island gets: the best of the island before it, now and then."""
    if not done or done % config.migrate_every or len(fronts) == 1:
        return [[] for _ in fronts]
    best = [[text for text, _, _ in sorted(front, key=lambda each: each[1])[:_MIGRANTS]] for front in fronts]
    return [best[number - 1] for number in range(len(fronts))]


def _curves(writer: TensorBoardWriter, results: Sequence[Mapping[str, Any]], done: int) -> None:
    front = [each for result in results for each in result["front"]]
    writer.scalar("evolve/loss", min(loss for _, loss, _ in front), done)
    for most in (5, 11, 21, 31):
        if within := [loss for _, loss, size in front if size <= most]:
            writer.scalar(f"evolve/loss of size {most} at most", min(within), done)
    writer.scalar("evolve/formulas played", sum(result["played"] for result in results), done)
    writer.scalar("evolve/formulas looked at", sum(result["asked"] for result in results), done)
