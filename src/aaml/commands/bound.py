"""What an optimum allows: the best placement by a solver that knows all pods beforehand, beside the policies' results.

Needs ortools, which the extra `solver` brings. Bills of more than 60 pods, or with GPUs, are packed by a heuristic,
which needs nothing. A line a seed says which of both it was. A recording (bill@FOLDER) is packed by requests: the line
says how many of its pods ask for zones, other pods or volumes besides, which is not heeded.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from aaml.settings import Count, Positive, Settings


@dataclass(frozen=True)
class Args(Settings):
    """What to bound."""

    what: tyro.conf.Positional[str] = "fragmentation"
    """a task whose pods stay (fragmentation, balance-batch, compress-batch), a bill (bill, bill-when-empty,
    bill-cluster-autoscaler, bill-openb, bill@FOLDER), or openb for the published benchmark"""
    seeds: str = ""
    """numbers and ranges: 42..51 or 42,45; 1000..1019, or all windows of a trace's holdout, when not given"""
    nodes: Count | None = None
    """a task's number of nodes; its own when not given"""
    pods: Count | None = None
    """a task's number of pods; its own when not given"""
    limit_s: Positive = 20.0
    """seconds for each seed of a task; bound and placement may then lie apart"""
    traces: str = "default"
    """openb's traces, with commas between them; "published" for the paper's 17"""
    columns: tuple[int, ...] = (100, 130)
    """openb's columns: percent of the GPU capacity that has arrived"""
    out: Path | None = None
    """folder for results.csv, as `aaml evaluate` writes it; by default runs/bound-WHAT"""


def run(args: Args) -> int:
    """Solve, write a row as each is known, and say what was found."""
    from aaml.commands.signals import ends_by
    from aaml.errors import bad_value
    from aaml.evaluation.bound import BOUNDED, bound_task
    from aaml.evaluation.bound_bill import bound_bill
    from aaml.evaluation.evaluate import parse_seeds
    from aaml.evaluation.results import ResultFile
    from aaml.files import in_a_name
    from aaml.openb.bench import parse_traces
    from aaml.openb.bound import bound_traces
    from aaml.outputs import output_folder
    from aaml.sim.bill import BILL_TASKS, BillTask
    from aaml.sim.recorded_bill import RecordedBillTask
    from aaml.sim.tasks import find_task

    if args.what not in (*BOUNDED, "openb") and args.what.partition("@")[0] not in BILL_TASKS:
        raise bad_value("what", args.what, f"one of {', '.join((*BOUNDED, *BILL_TASKS))}, bill@FOLDER, openb")
    task = None if args.what in (*BOUNDED, "openb") else find_task(args.what)
    windows = () if task is None or args.seeds else task.episodes
    seeds, stop = windows or parse_seeds(args.seeds or "1000..1019"), list[bool]()

    def stopped() -> bool:
        return bool(stop)

    out = args.out or Path("runs") / f"bound-{in_a_name(args.what)}"
    with output_folder(out), ends_by(lambda: stop.append(True)) as interruption:
        if args.what == "openb":
            rows = bound_traces(parse_traces(args.traces), seeds, args.columns, stopped=stopped)
        elif isinstance(task, BillTask | RecordedBillTask):
            rows = bound_bill(task, seeds, args.nodes, args.pods, limit_s=args.limit_s, stopped=stopped)
        else:
            rows = bound_task(args.what, seeds, args.nodes, args.pods, limit_s=args.limit_s, stopped=stopped)
        file = ResultFile(out)
        for row in rows:
            file.append(row)
    print(file.path)
    if args.what != "openb":
        print(f"policies beside it: aaml evaluate --task {args.what} --out {file.path.parent}")
    return interruption.status
