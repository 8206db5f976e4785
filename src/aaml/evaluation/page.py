"""A run's report: one HTML file with interactive figures, tables, and how the run was made; it needs no network.

BokehJS lies inside each page once, 1.3 MB of it. Beside the page lie its figures as PNG and SVG and their numbers as
CSV.
"""

import base64
import html
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from aaml.evaluation.tables import html_table
from aaml.extras import MissingExtraError, lazily
from aaml.files import write_text, write_whole
from aaml.telemetry.provenance import command, digest, provenance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure

    from aaml.evaluation import charts
    from aaml.evaluation.charts import Drawn
else:  # Bokeh, which is an extra
    charts = lazily("aaml.evaluation.charts")

REPORT = "report.html"
_log = logging.getLogger(__name__)
_LONG = 16  # rows: more stand in columns


class Page:
    """A page in the making: what is added stands on it in that order, with how the run was made at its end.

    Parameters
    ----------
    title
        What was done, in a line.
    folder
        Where the page and its figures go.
    name
        File name of the page, whose stem precedes the names of other files unless it is report.html.
    made_by
        The command that the run was started with; the one of this process when empty.

    """

    def __init__(self, title: str, folder: Path, name: str = REPORT, made_by: str = "") -> None:
        self.title, self.path = title, folder / name
        self._command = made_by or command()
        self._prefix = "" if name == REPORT else f"{Path(name).stem}-"
        self._body: list[str | int] = []  # a number is the place of a figure
        self._figures: list[Drawn] = []
        self._settings: list[tuple[str, str, bool]] = []
        self._files: list[Path] = []
        self._provenance: Mapping[str, Any] | None = None

    def heading(self, text: str) -> None:
        """Start a section."""
        self._body.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._body.append(f"<p>{html.escape(text)}</p>")

    def code(self, text: str) -> None:
        """Add commands or other verbatim text."""
        self._body.append(f"<pre>{html.escape(text)}</pre>")

    def folded(self, title: str, text: str, anchor: str) -> None:
        """Add verbatim text that a click on its title shows, and a link to #`anchor`."""
        name = html.escape(anchor)
        shown = f'<pre id="{name}">{html.escape(text)}</pre>'  # what holds the target of a link is opened by it
        self._body.append(f"<details><summary>{html.escape(title)}</summary>{shown}</details>")

    def table(self, frame: pd.DataFrame, csv: str = "") -> None:
        """Add a table; with a name, its numbers lie beside the page as NAME.csv."""
        self._body.append(f'<div class="scroll">{html_table(frame)}</div>')
        if csv:
            self._beside(f"{csv}.csv", frame)

    def facts(self, values: Mapping[str, object]) -> None:
        """Add a table of names and values."""
        self._body.append(_facts([(name, str(value), False) for name, value in values.items()]))

    @contextmanager
    def grid(self) -> "Iterator[None]":
        """Let the figures that are added meanwhile stand side by side where there is room."""
        self._body.append('<div class="grid">')
        yield
        self._body.append("</div>")

    def figure(
        self,
        drawn: "Drawn",
        name: str = "",
        still: "Callable[[], Figure] | None" = None,
        numbers: pd.DataFrame | None = None,
    ) -> None:
        """Add an interactive figure.

        Beside the page lie what `still` draws as NAME.png and NAME.svg, and its `numbers` as NAME.csv.
        """
        made = []
        if still is not None:
            picture = still()
            laid_out(picture)
            for kind in ("png", "svg"):
                path = self._path(f"{name}.{kind}")
                write_whole(path, partial(picture.savefig, dpi=130, format=kind), field="figure")
                made.append(path)
        if numbers is not None:
            made.append(self._beside(f"{name}.csv", numbers))
        links = " &middot; ".join(f'<a href="{html.escape(each.name)}">{html.escape(each.name)}</a>' for each in made)
        self._body += ["<figure>", len(self._figures), f"<figcaption>{links}</figcaption></figure>"]
        self._figures.append(drawn)

    def image(self, png: bytes, alt: str) -> None:
        """Add a picture that is there already."""
        data = base64.b64encode(png).decode()
        self._body.append(f'<figure><img alt="{html.escape(alt)}" src="data:image/png;base64,{data}"></figure>')

    def settings(self, values: Mapping[str, object], usual: Mapping[str, object] | None = None) -> None:
        """List the settings of the run; those that differ from `usual` are set off."""
        for name, value in values.items():
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            other = usual is not None and name in usual and usual[name] != value
            if (name, shown) not in [(known, text) for known, text, _ in self._settings]:
                self._settings.append((name, shown or "-", other))

    def hashed(self, paths: Sequence[Path]) -> None:
        """Name files or folders with what their content is; those that are not there are left out."""
        self._files += [path for path in paths if path.exists() and path not in self._files]

    def made_from(self, facts: Mapping[str, Any]) -> None:
        """Take revision and versions from a run's record, where the run was another process than this one."""
        self._provenance = {name: facts[name] for name in ("git_revision", "versions", "platform") if name in facts}

    def write(self) -> Path:
        """Write the page, whole or not at all, and return its path."""
        library, script, places = charts.parts(self._figures) if self._figures else ("", "", ())
        body = "\n".join(each if isinstance(each, str) else places[each] for each in self._body)
        parts = {
            "title": html.escape(self.title), "css": files("aaml.evaluation").joinpath("page.css").read_text("utf-8"),
            "library": library, "script": script, "body": body, "command": html.escape(self._command),
            "when": time.strftime("%Y-%m-%d %H:%M"), "made": self._made(),
        }  # fmt: skip
        write_text(self.path, _PAGE.format(**parts), field="page")
        return self.path

    def _made(self) -> str:
        """Return how the run was made: settings, versions, digests."""
        origin = provenance() if self._provenance is None else self._provenance
        versions = origin.get("versions", {})
        facts = [
            ("git revision", str(origin.get("git_revision", "unknown")), False),
            ("versions", ", ".join(f"{name} {number}" for name, number in versions.items()), False),
            ("platform", str(origin.get("platform", "unknown")), False),
        ]
        parts = []
        if self._settings:
            any_changed = any(changed for *_, changed in self._settings)
            note = "<p>What was not left at its default is in green.</p>" if any_changed else ""
            parts.append(f"<details open><summary>Configuration</summary>{note}{_facts(self._settings)}</details>")
        parts.append(f"<details open><summary>Made by</summary>{_facts(facts)}")
        if self._files:
            digests = [(str(path), f"sha256 {digest(path)}", False) for path in self._files]
            parts.append(_facts(digests))
        return "".join([*parts, "</details>"])

    def _path(self, name: str) -> Path:
        return self.path.with_name(f"{self._prefix}{name}")

    def _beside(self, name: str, frame: pd.DataFrame) -> Path:
        path = self._path(name)
        write_text(path, frame.to_csv(index=False), field="numbers")
        return path


def laid_out(picture: "Figure") -> None:
    """Give the parts of a picture their places, once for all files: matplotlib does it twice a file else."""
    engine = picture.get_layout_engine()
    if engine is not None:
        engine.execute(picture)
        picture.set_layout_engine("none")


def written(write: Callable[[], Path]) -> Path | None:
    """Write a page and return its path; None, with one line in the log, where its figures cannot be drawn.

    Figures need Bokeh, which the package brings as the extra `lab`: a training or an evaluation works without it.
    """
    try:
        return write()
    except MissingExtraError as error:
        _log.warning("no report: %s", error)
        return None


def _facts(rows: Sequence[tuple[str, str, bool]]) -> str:
    cells = "".join(
        f"<tr{' class=changed' * changed}><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>"
        for name, text, changed in rows
    )
    kind = "facts long" if len(rows) > _LONG else "facts"
    return f'<div class="scroll"><table class="{kind}"><tbody>{cells}</tbody></table></div>'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:; font-src data:">
<link rel="icon" href="data:,"><title>{title}</title>
<style>{css}</style>
{library}
</head><body><header><h1>{title}</h1><pre>{command}</pre><p>{when}</p></header>
<main>
{body}
{made}
</main>
{script}
</body></html>
"""
