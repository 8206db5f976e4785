"""Compare policies from result folders, on paired seeds, with intervals."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Args:
    """`aaml compare`."""

    results: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders made by `aaml evaluate`."""
    reference: str = "kube-scheduler"
    """The policy that the others are compared with."""
    metric: str | None = None
    """A column of results.csv; the task's own metric when not given."""
    out: Path | None = None
    """Folder for figures and report.html."""


def run(args: Args) -> int:
    """Print a table for each task and size."""
    from aaml.experiment.report import Page
    from aaml.experiment.results import compare_all, read_results

    page = Page("AAML: comparison") if args.out else None
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    frame = read_results(args.results)
    for text in compare_all(frame, args.reference, metric=args.metric, page=page, figures=args.out):
        print(f"\n{text}")
    if page is not None and args.out is not None:
        print(f"\n{page.write(args.out / 'report.html')}")
    return 0
