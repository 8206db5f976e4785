"""Let pods come and go on a real KWOK cluster for an hour, and write down what a scheduler takes meanwhile.

A line every few seconds: memory, file handles and threads of the scheduler with its processes, the latency from the
creation of a pod to its bind, and the loss of what it learns. Exit status 1 when a pod was lost, the loss is no number,
the scheduler had to be started again, or memory or handles grow by more than a tenth from the second quarter of the
time to the last.
"""

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from aaml.chaos.settings import SoakSettings
from aaml.commands.kinds import Flag
from aaml.commands.signals import ends_at_once
from aaml.outputs import writes

_MOST_GROWTH = 1.1


@dataclass(frozen=True)
class Args(SoakSettings):
    """`aaml bench soak`."""

    out: Path | None = None
    """a CSV file for the record"""
    dry_run: Flag = False
    """say what would be made, and make nothing"""


@writes(file="out")
def run(args: Args) -> int:
    """Run, write the record as it grows, and say what grew."""
    from tqdm.auto import tqdm

    from aaml.chaos.soak import Sample, grown, soak, write
    from aaml.chaos.workload import shape_for
    from aaml.kube.provision import ClusterOptions, KwokCluster, Owner

    cluster = KwokCluster(f"soak-{os.getpid()}")
    if args.dry_run:
        print(
            f"a cluster soak-PID of {args.nodes} KWOK nodes would be made on this machine, {args.rate:g} pods a second "
            "put on it, and all of it taken down at the end"
        )
        return 0
    samples: list[Sample] = []
    waiting = 0

    def tell(sample: Sample) -> None:
        samples.append(sample)
        if args.out is not None:
            write(args.out, samples)
        tqdm.write(
            f"{sample.seconds:.0f} s: {sample.bound} of {sample.created} pods bound, {sample.memory_mib:.0f} MiB, "
            f"{sample.handles} handles, {1000 * sample.latency_p50_s:.0f} ms (p99 {1000 * sample.latency_p99_s:.0f})",
            file=sys.stderr,
        )

    with ends_at_once() as interruption:
        there = int(args.rate * (args.lifetime_s + 10.0)) + 100  # pods at a time, and some that wait to be deleted
        options = ClusterOptions(
            args.nodes, shape_for(there, args.nodes), scheduler=args.run == "idle-extender", owner=Owner.this_process()
        )
        try:
            cluster.up(options, progress=False)
            _, waiting = soak(cluster, args, tell)
        except KeyboardInterrupt:
            print("interrupted: what follows is of the time until then", file=sys.stderr)
        finally:
            cluster.down()
    if len(samples) < 4:
        print("too short to say whether anything grows")
        return interruption.status or 1
    growth = {name: grown(samples, name) for name in ("memory_mib", "handles", "latency_p50_s")}
    losses = [sample.loss for sample in samples if sample.loss is not None]
    last = samples[-1]
    print(f"{last.created} pods in {last.seconds:.0f} s, {waiting} without a node at the end, {last.restarts} restarts")
    print("last quarter over second: " + ", ".join(f"{name} x {factor:.2f}" for name, factor in growth.items()))
    flat = all(growth[name] <= _MOST_GROWTH for name in ("memory_mib", "handles"))
    well = flat and not waiting and not last.restarts and all(map(math.isfinite, losses))
    return interruption.status or int(not well)
