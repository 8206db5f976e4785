"""The page as one text: with its script, its styles and BokehJS inside, it needs nothing else; exported, no server."""

import base64
import gzip
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from bokeh.embed import components
from bokeh.resources import Resources

from aaml.errors import UserError
from aaml.evaluation.bound_names import SOLVER
from aaml.evaluation.charts import NAMES_BELOW_EACH_OTHER, comparison_figure
from aaml.evaluation.results import Results
from aaml.evaluation.tables import ranking_table
from aaml.files import write_text
from aaml.insight.replay import RESOURCES
from aaml.lab import figures
from aaml.lab.library import PAGE, Library
from aaml.progress import progress_bar

LEVELS = 10  # a window may be so many times halved
_EXPORTED_LEVELS = 2


def page(library: Library, packed: str = "") -> str:
    """Return the page; with `packed` answers it asks no server."""
    curves = list(library.curves())
    drawn: dict[str, Any] = dict(figures.cluster_figures(live=library.watched is not None))
    drawn |= {f"curve {number}": plot for number, plot in enumerate(figures.curve_figures(curves)) if plot is not None}
    comparisons, shadows = _comparisons(library), library.shadow()
    for number, (_, _, plot) in enumerate(comparisons):
        drawn[f"comparison {number}"] = plot
    for number, log in enumerate(shadows):
        drawn[f"shadow {number}"] = figures.agreement_figure(number, log["pods"], log["agreement"])
    models, places = components(drawn)
    data = {
        "episodes": library.index(), "curves": curves, "colours": figures.run_colours(library.runs), "packed": packed,
        "resources": RESOURCES, "levels": _EXPORTED_LEVELS if packed else LEVELS,
        "has": {"learning": bool(library.trainings), "comparison": bool(comparisons), "shadow": bool(shadows)},
    }  # fmt: skip
    return _read("page.html").format(
        title="AAML lab", connect="'none'" if packed else "'self'", css=_read("page.css"), script=_read("page.js"),
        bokeh=Resources(mode="inline", components=["bokeh"]).render() + NAMES_BELOW_EACH_OTHER,
        models=models, data=_script(data),
        curves="".join(place for name, place in places.items() if name.startswith("curve ")),
        comparison="".join(
            f'<div class="card row"><h2>{html.escape(title)}</h2>{places[f"comparison {number}"]}{table}</div>'
            for number, (title, table, _) in enumerate(comparisons)
        ),
        shadow="".join(
            f'<div class="card row"><h2>{html.escape(log["name"])}</h2><pre>{html.escape(log["report"])}</pre>'
            f"{places[f'shadow {number}']}</div>"
            for number, log in enumerate(shadows)
        ),
        **{name: place for name, place in places.items() if " " not in name},
    )  # fmt: skip


def export(library: Library, path: Path, *, decisions: int = 300) -> None:
    """Write the page as one file that opens without a network or a server.

    It holds the first two policies on the first seed and size of the first run, with the explanations of `decisions`
    of each that are spread over the run, and all curves, comparisons and shadow logs. Raises `UserError` where the
    file cannot be written.
    """
    answers: dict[str, Any] = {"curves?": library.curves()}
    for number, episode in enumerate(library.episodes[:1]):
        chosen = dict(zip(figures.SIDES, episode.policies, strict=False))
        for_page = {"nodes": episode.nodes[0], "seed": episode.seeds[0]}
        answers |= _answers(library, number, chosen, decisions=decisions, **for_page)
        kept = type(episode)(episode.spec, episode.nodes[:1], episode.seeds[:1], tuple(chosen.values()))
        library.episodes = [kept]
    packed = base64.b64encode(gzip.compress(json.dumps(answers).encode(), mtime=0)).decode()
    write_text(path, page(library, packed), field="export")


def _answers(
    library: Library, number: int, chosen: Mapping[str, str], *, nodes: int, seed: int, decisions: int
) -> dict[str, Any]:
    """Return the answers that the page may ask for of these policies' replays, by what is asked."""
    answers: dict[str, Any] = {}
    playbacks = {side: library.playback(number, nodes, seed, policy) for side, policy in chosen.items()}
    for _, playback in playbacks.values():
        playback.ended.wait()
        if playback.error:
            raise UserError(playback.error)
    starts, ends = zip(*(library.status(playback)["span_s"] for _, playback in playbacks.values()), strict=True)
    start_s, span_s = min(starts), max(ends) - min(starts)
    for side, (key, playback) in playbacks.items():
        status = library.status(playback)
        asked = f"episode={number}&nodes={nodes}&seed={seed}&policy={_quoted(playback.policy)}"
        answers[f"playback?{asked}"] = {"key": key, "status": status}
        for level in range(_EXPORTED_LEVELS + 1):
            width = span_s / 2**level
            for at in range(2**level):
                window = library.window(playback, start_s + at * width, start_s + (at + 1) * width)
                answers[f"window?playback={_quoted(key)}&level={level}&at={at}&row=-1"] = window
        count = status["decisions"]
        for place in range(-(-count // PAGE)):
            answers[f"decisions?playback={_quoted(key)}&page={place}"] = library.decisions(playback, place)
        other = next((playbacks[each] for each in playbacks if each != side), None)
        every = max(1, -(-count // decisions))
        with progress_bar(f"explain {playback.policy}", len(range(0, count, every)), "decision") as bar:
            for decision in range(0, count, every):
                beside = f"&beside={_quoted(other[0])}" if other else ""
                asked = f"explain?playback={_quoted(key)}&decision={decision}{beside}"
                answers[asked] = library.explain(playback, decision, other[1] if other else None)
                bar.update()
    return answers


def _comparisons(library: Library) -> list[tuple[str, str, Any]]:
    """Return title, table and figure of each comparison; those on unequal seeds are left for `aaml report compare`."""
    found = []
    for folder in library.results:
        for ranking in Results.read(folder).compare():
            frame = ranking_table(ranking)
            bounds = [line.value.mean for line in ranking.lines if line.policy == SOLVER]
            if bounds:
                frame["from the bound"] = [f"{line.value.mean - bounds[0]:+.3g}" for line in ranking.lines]
            table = frame.to_html(index=False, border=0, escape=True)
            found.append((ranking.title, table, comparison_figure(ranking)))
    return found


def _quoted(text: str) -> str:
    """Quote as `URLSearchParams` does."""
    return quote_plus(text, safe="*-._").replace("~", "%7E")


def _script(value: Any) -> str:
    """Return JSON that may stand in a script element."""
    return json.dumps(value).replace("<", "\\u003c")


def _read(name: str) -> str:
    return (files("aaml.lab") / name).read_text(encoding="utf-8")
