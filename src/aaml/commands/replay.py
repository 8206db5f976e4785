"""Replay a trace under another policy: first how well the simulation knows the recorded scheduler, then what if.

First each decision of the recorded kube-scheduler is checked from the recorded state: how many the simulated one
reproduces, and why not the others. Then the windows of the trace are played, with arrivals, lifetimes and nodes as they
were, under the simulated kube-scheduler and under each policy; what was recorded stands beside them. Differences are
paired by window. Models are evaluated on the holdout alone, which no training on this trace has seen. With --on each
policy also places the pods of the windows live, on a real KWOK cluster in scaled time. With --autoscaler nodes are
provisioned and terminated instead, and what they cost is compared.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from aaml.outputs import writes
from aaml.settings import Positive, Settings

if TYPE_CHECKING:
    from aaml.evaluation.entries import PolicyEntry
    from aaml.sim.recorded import TraceTask
    from aaml.sim.recorded_bill import RecordedBillTask
    from aaml.workload.trace.windows import Window, Windows

_ALSO = ("waiting_mean_s", "mean_empty_fraction")
_GPUS = "mean_gpu_allocation"
_OF_BILL = ("bill", "bill_per_core_hour", "waiting_p99_s", "evicted")
_AUTOSCALERS = {  # and the tasks that know their settings
    "karpenter": "bill", "karpenter-when-empty": "bill-when-empty", "cluster-autoscaler": "bill-cluster-autoscaler",
}  # fmt: skip


@dataclass(frozen=True)
class Args(Settings):
    """`aaml replay`."""

    trace: tyro.conf.Positional[str]
    """Folder of a trace, or GOAL@FOLDER for the goal of another task than balance, such as compress@trace/."""
    policy: tuple[str, ...] = ()
    """Policies by name, FILE.py:NAME, kube-scheduler:FILE.yaml or LABEL=NAME, and model files; none: reproduce the
    recorded decisions only."""
    scheduler: str = "default-scheduler"
    """Whose recorded decisions are to be reproduced."""
    metric: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    """What to compare by; the goal's metric, the wait, the nodes that stay empty and GPU allocation when not given."""
    windows: Literal["holdout", "all"] = "holdout"
    """Which windows to play; all: for policies that were not trained on the trace."""
    out: Path = Path("runs/replay")
    """Folder for results.csv, windows.csv, decisions.csv and report.html."""
    workers: str = "1"
    """Processes (a number), ray, or ray:HOST:PORT."""
    autoscaler: Literal["", "karpenter", "karpenter-when-empty", "cluster-autoscaler"] = ""
    """What provisions and terminates the nodes; without it they come and go as recorded. A task of yours with other
    settings: FILE.py:NAME@FOLDER."""
    instance_types: Path | None = None
    """File of the types that can be provisioned, with prices, as Karpenter's KWOK provider takes it; without it the
    made-up types that ship."""
    on: str = ""
    """Name of a cluster of `aaml cluster up` without a workload: play the windows there as well, for real."""
    speed: Positive = 60.0
    """How many times as fast as recorded the windows are played there."""


@writes(folder="out")
def run(args: Args) -> int:
    """Reproduce, play and compare."""
    from aaml.errors import UserError, bad_value
    from aaml.evaluation.entries import check, policy_entries
    from aaml.sim.metrics import find_metric
    from aaml.sim.tasks import find_trace_task

    task = _bill(args) if args.autoscaler else find_trace_task(args.trace, args.windows)
    if args.instance_types and not args.autoscaler:
        raise UserError("instance_types: is of use with --autoscaler only")
    if args.on and args.autoscaler:
        raise bad_value("on", args.on, "nothing with --autoscaler, which is simulated")
    entered = policy_entries(args.policy) if args.policy else ()
    for name in args.metric:
        find_metric(name)
    if args.on:
        from aaml.kube.provision import records

        if not entered:
            raise bad_value("on", args.on, "a --policy to place pods by as well")
        records.load(args.on)
    for entry in entered:
        if args.windows == "all" and entry.learned:
            raise UserError(
                f"windows: all are for policies without a model; {entry.name} may have seen some of them. Where "
                f"none learned from this trace: aaml trace split {args.trace} --holdout 1"
            )
        check(entry, task, travels=False)  # before the minutes that judging the recorded decisions takes
    reproduced = _reproduce(args, task)
    if entered:
        _what_if(args, task, entered, reproduced)
    return 0


def _bill(args: Args) -> "RecordedBillTask":
    """Return the trace as a bill. Raises `UserError` for a trace with a goal of its own."""
    from dataclasses import replace

    from aaml.errors import bad_value
    from aaml.nodes.catalogue_file import read_catalogue
    from aaml.sim.bill import BILL_TASKS
    from aaml.sim.recorded_bill import recorded_bill
    from aaml.workload.trace.store import is_trace

    if "@" in args.trace and not is_trace(args.trace):
        raise bad_value("trace", args.trace, "a folder alone with --autoscaler")
    bill = BILL_TASKS[_AUTOSCALERS[args.autoscaler]]
    if args.instance_types is not None:
        bill = replace(bill, catalogue=read_catalogue(args.instance_types, {}))
    return replace(recorded_bill(Path(args.trace), bill, args.windows), name=f"{bill.name}@{args.trace}")


def _reproduce(args: Args, task: "TraceTask") -> str:
    """Judge the recorded decisions, and return in a line how many are reproduced."""
    import pandas as pd

    from aaml.evaluation.reproduce import reproduce
    from aaml.files import write_text
    from aaml.progress import progress_bar
    from aaml.workload.trace.windows import read_windows

    trace = read_windows(task.folder).trace
    with progress_bar("reproduce the recorded decisions", len(trace.events), "event") as bar:
        reproduction = reproduce(trace, args.scheduler, on_event=bar.update)
    print(reproduction)
    if reproduction.verdicts:
        decisions = args.out / "decisions.csv"
        write_text(decisions, pd.DataFrame(reproduction.verdicts).to_csv(index=False), field="out")
        print(f"every decision: {decisions}")
    elif len(trace.schedulers):
        names = ", ".join(f"{name} ({count})" for name, count in trace.schedulers.most_common())
        print(f"who placed pods: {names}; name one with --scheduler")
    return str(reproduction).partition("\n")[0]


def _live(args: Args, task: "TraceTask", entered: "tuple[PolicyEntry, ...]", trace_s: float) -> "list[dict[str, Any]]":
    from aaml.evaluation.identity import identity
    from aaml.kube.provision import records
    from aaml.live.replay import replay_live
    from aaml.workload.trace.windows import read_windows

    record = records.load(args.on)
    minutes = trace_s * len(entered) / args.speed / 60
    print(f"\n{len(task.episodes)} windows on {args.on}, {args.speed:g} times as fast: about {minutes:.3g} minutes")
    held = read_windows(task.folder)
    gangs = sum(pod.group is not None for each in task.episodes for pod in held.window(each).arrivals)
    if gangs:
        print(f"{gangs} pods of groups are placed one by one there: the windows are played without PodGroups")
    print(f"cluster {args.on} at {record.server}: its {record.nodes} nodes are deleted, and made again afterwards")
    found = replay_live(task, entered, args.on, args.speed)
    print("\n".join(map(str, found)))
    whole = {each.name: each.whole for each in entered}
    return [each.row | identity(task, None, whole[each.policy], each.policy) for each in found]


def _what_if(args: Args, task: "TraceTask", entered: "tuple[PolicyEntry, ...]", reproduced: str) -> None:
    from dataclasses import replace

    from aaml.evaluation.page import written
    from aaml.evaluation.report import write_report
    from aaml.evaluation.run_spec import write_run_specs
    from aaml.evaluation.what_if import REFERENCE, comparable, of_bills, paid, what_if
    from aaml.files import write_text
    from aaml.nodes.prices import PriceList
    from aaml.sim.recorded_bill import RecordedBillTask
    from aaml.workload.trace.windows import read_windows

    windows = read_windows(task.folder)
    played = [windows.window(number) for number in task.episodes]
    write_text(args.out / "windows.csv", _table(windows, played), field="out")
    prices = PriceList.read(args.instance_types)
    results = what_if(task, entered, workers=args.workers, prices=prices)
    if args.on:
        results = results.plus(_live(args, task, entered, len(played) * windows.split.window_s))
    write_text(args.out / "results.csv", results.runs.to_csv(index=False), field="out")
    types = args.instance_types and args.instance_types.resolve()
    write_run_specs(args.out, {name: replace(each, instance_types=types) for name, each in results.run_specs.items()})
    billed = isinstance(task, RecordedBillTask)
    gpus = any(node.gpu_count for node in played[0].nodes)
    also = _OF_BILL if billed else (*_ALSO, *((_GPUS,) if gpus else ()))
    metrics = args.metric or tuple(dict.fromkeys((task.metric, *also)))
    tally = windows.tally(task.episodes)
    lines = [
        f"{len(played)} windows of {windows.split.window_s:g} s ({args.windows}), paired by window: of the trace's "
        f"{len(windows.trace.lives)} pods {tally.arrive} arrive in them, {tally.ran} have a node already, "
        f"{tally.outside} are in none of them"
        + (f"; {tally.twice} wait from one window into the next and arrive in both" if tally.twice else "")
    ]
    if isinstance(task, RecordedBillTask):
        lines += of_bills(task, played, prices)
    else:
        lines += [f"Caution: {each}." for each in windows.cautions(task.episodes)]
    if not tally.arrive:
        lines.append("nothing to decide: record for longer, or cut other windows with `aaml trace split`")
    comparisons = []
    simulated = (REFERENCE, *(each.name for each in entered))
    for metric in metrics:
        chosen, left_out = comparable(results, metric, simulated)
        lines += left_out
        if len(chosen.runs):
            comparisons.append(chosen.compare(REFERENCE, metric))
    print("", *lines, sep="\n")
    for comparison in comparisons:
        print(f"\n{comparison}")
    if billed:
        paid_lines = paid(results, simulated, len(played) * windows.split.window_s)
        print("", *paid_lines, sep="\n")
        lines += paid_lines
    title = f"What if: {windows.trace.name}, by window"
    page = written(
        lambda: write_report(results.runs, results.run_specs, comparisons, args.out, title, [reproduced, *lines])
    )
    paths = (args.out / "results.csv", args.out / "windows.csv", page)
    print("\n" + ", ".join(str(path) for path in paths if path is not None))


def _table(windows: "Windows", played: "list[Window]") -> str:
    """Return a line a window; a pod that waits when it begins came before, so that arrivals add up."""
    lines = ["seed,start_s,end_s,arrivals,waiting_at_start,running_at_start"]
    for each in played:
        waiting = sum(windows.trace.lives[pod.uid].created_s < each.start_s for pod in each.arrivals)
        lines.append(
            f"{each.index},{each.start_s:g},{each.start_s + each.length_s:g},{len(each.arrivals) - waiting},{waiting},"
            f"{len(each.running)}"
        )
    return "\n".join(lines) + "\n"
