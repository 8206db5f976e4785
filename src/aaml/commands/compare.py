"""Compare policies from result folders, on paired seeds, with intervals."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
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
    from aaml.evaluation.report import write_report
    from aaml.evaluation.results import Results

    results = Results.read(*args.results)
    comparison = results.compare(args.reference, args.metric or "")
    print(f"\n{comparison}")
    if args.out is not None:
        print(f"\n{write_report(results, [comparison], args.out, 'Policies compared')}")
    return 0
