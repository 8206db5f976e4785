"""The running bill of a cluster: dollars an hour by instance type and by owner, what is idle, what was spent.

Reads nodes and pods, and writes nothing. Prices come from a file of instance types in the format of Karpenter's KWOK
provider, else from the one that ships, and for a type that it does not list from the node's own label
`eks-node-viewer/instance-price`. Types without a price are named and left out. A node's price is divided among its pods
by what they request of CPU, memory and GPUs; the rest is idle. With --commitments, savings plans and reservations pay
for nodes first. With --recorded it says what they have paid for on a recording's nodes, and what more would have saved.
"""

import re
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from aaml.commands.kinds import Flag
from aaml.commands.signals import ends_by
from aaml.errors import UserError, bad_value
from aaml.settings import Count, Positive, Settings

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Args(Settings):
    """Settings of the bill."""

    watch: Flag = False
    """go on until Ctrl-C; nodes that go meanwhile stay in what was spent"""
    json: Flag = False
    """print each bill as a line of JSON"""
    since: str = "1h"
    """what was spent from when on: a time like 2026-11-27T06:00, or how long ago: 90s, 30m, 8h, 7d. Nodes count from
    their creation; those that went before are not known"""
    instance_types: Path | None = None
    """file with types and prices in the format of Karpenter's KWOK provider; without it nodes' labels and made-up types
    count"""
    commitments: Path | None = None
    """file with savings plans and reservations (kind: Commitments), paid whether they are used or not"""
    recorded: Path | None = None
    """folder of a trace: what the commitments have paid for there, in place of the cluster as it is now"""
    rows: Count = 15
    """owners with a line of their own"""
    every: Positive = 5.0
    """seconds between two bills with --watch"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""


def run(args: Args) -> int:
    """Show the bill once, or until Ctrl-C."""
    import threading

    if args.recorded is not None:
        return _recorded(args, args.recorded)

    from aaml.kube.watcher import ClusterWatch
    from aaml.live.bill import Bill, follow
    from aaml.nodes.committed import find_commitments
    from aaml.nodes.prices import PriceList

    since_s = _since(args.since, time.time())
    prices = PriceList.read(args.instance_types)
    commitments = find_commitments(args.commitments, args.instance_types) if args.commitments else None
    stop = threading.Event()

    def show(bill: Bill) -> None:
        print(bill.to_json() if args.json else bill.text(args.rows), flush=True)
        if args.watch and not args.json:
            print(flush=True)

    with closing(ClusterWatch.connect(args.kubeconfig, connections=2)) as watch, ends_by(stop.set):
        every_s = args.every if args.watch else None
        follow(
            watch, prices, show, since_s=since_s, commitments=commitments, every_s=every_s, stopped=stop.is_set
        )  # fmt: skip
    return 0  # Ctrl-C is the way out of it


def _recorded(args: Args, folder: Path) -> int:
    """Show what commitments have paid for on a recording's nodes."""
    from aaml.evaluation.recorded_commitments import evaluate_commitments
    from aaml.nodes.committed import find_commitments
    from aaml.nodes.prices import PriceList
    from aaml.workload.trace.trace import Trace

    if args.commitments is None:
        raise UserError("recorded: goes with --commitments FILE; what nodes cost without them, `aaml replay` says")
    if args.watch:
        raise UserError("watch: goes without --recorded; a recording does not change")
    commitments = find_commitments(args.commitments, args.instance_types)
    found = evaluate_commitments(Trace.read(folder), PriceList.read(args.instance_types), commitments)
    print(found.to_json() if args.json else found.text())
    return 0


def _since(text: str, now_s: float) -> float:
    """Return a time in seconds since 1970; one without a zone is this machine's. Raises `UserError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    try:
        since_s = now_s - float(found[1]) * _UNITS_S[found[2]] if found else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise bad_value("since", text, "a time like 2026-11-27T06:00, or how long ago: 90s, 30m, 8h, 7d") from None
    if not 0.0 <= since_s <= now_s:
        raise bad_value("since", text, "a time between 1970 and now")
    return since_s
