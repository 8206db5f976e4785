"""Report on a shadow log: how often a policy agrees with the scheduler it was run beside, and which does better.

The log is made by `aaml schedule policy --policy NAME --dry-run --shadow-log FILE.jsonl`.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml shadow`."""

    report: tyro.conf.Positional[Path]
    """the log, one JSON line a pod"""


def run(args: Args) -> int:
    """Print the report."""
    from aaml.live.shadow import read_report

    print(read_report(args.report))
    return 0
