"""Report on a shadow log: how often each policy agrees with the scheduler it was run beside, and which does better.

Several policies, and several models of one kind, may share a log. It is made by
`aaml schedule policy --policy NAME --dry-run --shadow-log FILE.jsonl`.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from aaml.commands.kinds import Flag
from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml report shadow`."""

    report: tyro.conf.Positional[Path]
    """the log, one JSON line a pod"""
    json: Flag = False
    """print the report as JSON"""


def run(args: Args) -> int:
    """Print the report."""
    import msgspec

    from aaml.live.shadow import read_report

    report = read_report(args.report)
    plain = msgspec.json.format(msgspec.json.encode(report.to_dict()), indent=2).decode()  # null for what is not known
    print(plain if args.json else report)
    return 0
