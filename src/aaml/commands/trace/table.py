"""Write what one scheduler did as data/sched_*.csv has it, to fill replay buffers from."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from aaml.outputs import writes
from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml trace table`."""

    trace: tyro.conf.Positional[str]
    """folder of the trace"""
    out: Path | None = None
    """file for the table"""
    scheduler: str = "default-scheduler"
    """whose placements"""


@writes(file="out")
def run(args: Args) -> int:
    """Write it, and say how many placements it has."""
    from aaml.errors import UserError
    from aaml.live.record import PlacementTable
    from aaml.live.settings import DEFAULT_REWARD
    from aaml.policies.registry import make_reward
    from aaml.workload.trace.trace import Trace

    if args.out is None:
        raise UserError("out: is missing; expected the table's file")
    table = PlacementTable(args.out, args.scheduler, make_reward(DEFAULT_REWARD))
    table.take_all(Trace.read(args.trace).events)
    if not table.written:
        print(f"nothing was placed by {args.scheduler}: no file was written")
        return 1
    print(f"{args.out}: {table.written} placements, {table.skipped} on nodes that came later left out")
    return 0
