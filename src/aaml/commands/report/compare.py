"""Compare policies from result folders, on paired seeds, with intervals."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aaml.commands.kinds import Flag
from aaml.outputs import writes
from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml report compare`."""

    results: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders made by `aaml evaluate`."""
    reference: str = "kube-scheduler"
    """The policy that the others are compared with."""
    metric: str | None = None
    """A column of results.csv; the task's own metric when not given."""
    out: Path | None = None
    """Folder for figures and report.html."""
    json: Flag = False
    """Print the numbers as JSON, an object a policy on a task at a size."""


@writes(folder="out")
def run(args: Args) -> int:
    """Print a table for each task and size."""
    from aaml.evaluation.report import write_report
    from aaml.evaluation.results import Results

    results = Results.read(*args.results)
    comparison = results.compare(args.reference, args.metric or "")
    print(comparison.to_json() if args.json else f"\n{comparison}")
    if args.out is not None:
        report = write_report(results.runs, results.run_specs, [comparison], args.out, "Policies compared")
        print(f"\n{report}", file=sys.stderr if args.json else sys.stdout)
    return 0
