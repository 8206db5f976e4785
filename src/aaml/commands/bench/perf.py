"""Play Kubernetes' own scheduler benchmark on real clusters, beside the real kube-scheduler.

The scenarios are read from the pinned Kubernetes module in Go's module cache. Without --workload the small ones of 1 to
10 nodes are played, as an acceptance test: the exit status is 1 where pods are bound, pending or preempted otherwise
than by kube-scheduler. `--scenario Basic* --workload 500Nodes --rounds 3` measures.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.outputs import writes
from aaml.settings import Count, Positive, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aaml.perf.player import PlayResult
    from aaml.perf.report import SideBySide
    from aaml.perf.session import PlayJob

_DISAGREES = 1


@dataclass(frozen=True)
class Args(Settings):
    """What is played, and by whom."""

    scenario: tuple[str, ...] = ()
    """names of scenarios, or patterns (Scheduling*); without any all"""
    workload: tuple[str, ...] = ()
    """names of their workloads, or patterns (500Nodes*); without any the small ones"""
    scheduler: tuple[str, ...] = ("least-allocated",)
    """policies by name or FILE.py:NAME, model files, agents that learn (dqn, gnn, acdqn, acgnn), or plugins in
    kube-scheduler (folders of `aaml export`, plugin:MODEL); kube-scheduler is the real one, which is played besides in
    any case"""
    rounds: Count = 1
    """how often each plays each workload; large ones in turns"""
    wait_s: Positive = 120.0
    """seconds that pods may take to be bound before a play counts as stuck"""
    out: Path | None = None
    """a CSV file for the table"""
    logs: Path = Path("logs/perf")
    """folder for the schedulers' logs"""
    list: bool = False
    """only list what would be played"""


@writes(folder="logs", file="out")
def run(args: Args) -> int:
    """Play, print the table and return 1 where anything differs. What was played is shown after Ctrl-C too."""
    from aaml.commands.signals import ends_at_once
    from aaml.kube.provision import end_orphans, ensure_programs
    from aaml.perf import report, scenarios
    from aaml.perf.schedulers import REAL, check_scheduler
    from aaml.perf.session import Session, jobs
    from aaml.progress import progress_bar

    plays = scenarios.select(scenarios.read(scenarios.benchmark_dir()), args.scenario, args.workload)
    schedulers = tuple(dict.fromkeys((REAL, *args.scheduler)))
    for scheduler in schedulers:
        check_scheduler(scheduler)
    if args.list:
        for play in plays:
            nobody = not jobs((play,), schedulers, 1)
            print(f"{play.name} ({play.nodes} nodes)" + (f", {report.SideBySide(play, {}).note}" if nobody else ""))
        return 0
    ensure_programs()
    end_orphans()
    args.logs.mkdir(parents=True, exist_ok=True)
    outcomes: dict[PlayJob, PlayResult] = {}
    try:
        with ends_at_once(), Session(args.logs.absolute(), args.wait_s) as session:
            todo = jobs(plays, schedulers, args.rounds)
            bar = progress_bar("play", len(todo), "play", over=todo)
            for job in bar:
                bar.set_postfix_str(f"{job.scheduler}: {job.play.name}")
                outcomes[job] = session.play(job)
    finally:
        found = report.compare(plays, outcomes)
        _show(found, schedulers, args.out)
    return 0 if all(each.agrees for each in found if each.outcomes) else _DISAGREES


def _show(found: "Sequence[SideBySide]", schedulers: tuple[str, ...], out: Path | None) -> None:
    import csv
    import io

    from aaml.files import write_text
    from aaml.perf import report
    from aaml.telemetry.tables import show, table

    header, rows = report.header(schedulers), report.rows(found, schedulers)
    show(table(header, rows))
    print(f"\n{report.summary(found)}")
    if out is not None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        write_text(out, text.getvalue())
        print(f"wrote {out}")
