"""Draw the tables and figures of Markdown documents again, from result folders.

A block stands between `<!-- aaml: KIND option=value ... -->` and `<!-- aaml: end -->`. Kinds: evaluate, openb,
openb-summary, csv, chaos, means, ratios, shares, settings, standings, leaderboard, leaderboard-policies,
leaderboard-protocol, ranking, model-index, model-card (tables), evaluate-figure, gains-figure, openb-figure, curves,
soak, lines, standings-figure, ratios-figure (figures, which also take name=FILE and alt="..."). Their options are the
parameters of the functions in `blocks`; a wrong one is answered with the list.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aaml.cli import script
from aaml.errors import UserError
from keep import keep
from leaders import missing_pages
from redraw import redraw


def documents() -> tuple[Path, ...]:
    """Return README.md and every page below docs/, relative to the current folder."""
    return (Path("README.md"), *sorted(Path("docs").rglob("*.md")))


@dataclass(frozen=True)
class Args:
    """What to draw."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Markdown files, README.md and all below docs/ unless told; paths in them are relative to the current folder."""
    check: bool = False
    """Change nothing; name what differs and exit with 1 if anything does."""
    keep: tuple[Path, Path] | None = None
    """RUN FOLDER: first copy what documents need of a run into a folder such as docs/results/NAME, rounded."""


def run(args: Args) -> int:
    """Redraw, or tell what differs."""
    if args.keep and args.check:
        raise UserError("--keep: cannot go with --check, which changes nothing")
    if args.keep:
        for path in keep(*args.keep):
            print(f"kept {path}")
    missing = {} if args.files else missing_pages()
    for page, text in missing.items():
        if args.check:
            print(f"{page}: is missing; make redraw writes it")
        else:
            page.parent.mkdir(exist_ok=True)
            page.write_text(text, encoding="utf-8")
    redrawn = redraw(args.files or documents(), figures=not args.check)
    for difference in redrawn.differences:
        print(difference)
    if args.check:
        return int(bool(redrawn.differences or missing))
    redrawn.write()
    for path in redrawn.files:
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(script(__file__, Args, run, __doc__))
