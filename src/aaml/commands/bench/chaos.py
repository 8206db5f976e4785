"""Break things on a real KWOK cluster while a scheduler works, and look at what the API server says afterwards.

Each fault strikes while pods are created and bound, on a cluster of its own that is gone afterwards. Then every pod
must be on one node, no node may hold more than it offers, the model must be readable and the process alive. Exit status
1 when something is not as it must be. The programs of the cluster are built once: `aaml cluster build`.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from aaml.chaos.settings import ChaosSettings
from aaml.commands.signals import ends_at_once
from aaml.outputs import writes


@dataclass(frozen=True)
class Args(ChaosSettings):
    """`aaml bench chaos`."""

    list: bool = False
    """list the faults and do nothing"""
    out: Path | None = None
    """a CSV file with a row a run, written as each ends; runs that are there with these settings are not made again"""


@writes(file="out")
def run(args: Args) -> int:
    """Run the faults, tell of each run, and print the table."""
    from tqdm.auto import tqdm

    from aaml.chaos.faults import FAULTS
    from aaml.chaos.runs import HEADER, ChaosRun, append, cells, chosen, missing, read, run_all, summary
    from aaml.chaos.site import LIMITED
    from aaml.chaos.workload import shape_for
    from aaml.kube.provision import ClusterOptions, KwokCluster, Owner, ensure_programs
    from aaml.plugin.build import build
    from aaml.plugin.module import is_plugin
    from aaml.plugin.run import plugin_of
    from aaml.progress import progress_bar
    from aaml.telemetry.tables import show, table

    if args.list:
        show(table(("fault", "what happens"), [(each.name, each.about) for each in FAULTS.values()]))
        return 0
    names = {fault.name for fault in chosen(args)}
    runs = [] if args.out is None else [each for each in read(args.out, args) if each.fault in names]
    faults = missing(args, runs)
    if is_plugin(args.scheduler):
        ensure_programs()
        build(plugin_of(args.scheduler))  # before the clock of a fault runs
    cluster = KwokCluster(f"chaos-{os.getpid()}")
    bar = progress_bar("chaos", len(runs) + len(faults), "run", at=len(runs))

    def tell(done: ChaosRun) -> None:
        bar.update()
        runs.append(done)
        if args.out is not None:
            append(args.out, done, args)
        verdict = "; ".join(done.wrong) or "well"
        tqdm.write(
            f"{done.fault}: {done.pods} pods, {done.lost} lost, {done.doubled} doubled, "
            f"{done.recovery_s:.1f} s to recover, {done.restarts} restarts: {verdict}",
            file=sys.stderr,
        )

    with ends_at_once() as interruption, bar:
        options = ClusterOptions(
            args.nodes, shape_for(args.pods, args.nodes), scheduler=False, owner=Owner.this_process(), arguments=LIMITED
        )
        try:
            if faults:
                cluster.up(options, progress=False)
                run_all(cluster, faults, args, tell)
        except KeyboardInterrupt:
            print(
                "interrupted: the table holds the runs that ended"
                + ("" if args.out is None else "; the same command goes on"),
                file=sys.stderr,
            )
        finally:
            cluster.down()
    rows = summary(runs)
    words = [name.replace("_", " ") for name in HEADER]
    show(table(words, map(cells, rows), right=words[1:]))
    failed = any(run.lost or run.doubled or run.wrong for run in runs)
    return interruption.status or int(failed)
