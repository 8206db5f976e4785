"""Say what is in a trace: how long, how many nodes and pods, who placed them, lifetimes, waits, load, gaps."""

from dataclasses import dataclass

import tyro

from aaml.commands.kinds import Flag
from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml trace summary`."""

    trace: tyro.conf.Positional[str]
    """folder of the trace, or openb"""
    json: Flag = False
    """print it as JSON"""


def run(args: Args) -> int:
    """Print it."""
    import json

    from aaml.workload.trace.summary import summarise
    from aaml.workload.trace.trace import Trace

    summary = summarise(Trace.read(args.trace))
    print(json.dumps(summary.plain(), indent=2) if args.json else summary)
    return 0
