"""Simulated bills beside those that the real Karpenter ran up on the same pods: how wrong the simulator is.

The real runs (26 November 2026) had Kubernetes 1.36.1 on KWOK, Karpenter 1.15.0 with its KWOK provider, and the types
c5, m5 and r5 of its `kwok/examples/aws_instance_types.json`, on demand; which sizes was not written down: up to 9xlarge
the fluid bounds are those of the real runs. Each run took twelve minutes: some 600 pods in two waves, 40% of them jobs
that may not be evicted, `consolidateAfter` 15 s, a budget of 10%, nodes that register after 20 s. Services were deleted
when their time was over, wherever they were.

    python benchmarks/bench_bill_simulated.py --instance-types aws_instance_types.json
"""

import argparse
import math
import random
import statistics
from pathlib import Path

import numpy as np

from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.catalogue_file import read_catalogue
from aaml.nodes.karpenter import Karpenter
from aaml.nodes.settings import ConsolidationPolicy, KarpenterSettings
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.cluster import SimCluster
from aaml.sim.supply import NodeSupply
from aaml.sim.timeline import DeletePod
from aaml.workload.model import Workload

SPAN_S = 720.0
FAMILIES, SIZES = ("c5", "m5", "r5"), ("large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "9xlarge")
UNDER: ConsolidationPolicy = "WhenEmptyOrUnderutilized"
REAL: tuple[tuple[int, str, ConsolidationPolicy, tuple[float, ...]], ...] = (
    (1, "kube-scheduler", UNDER, (2.440, 2.291)),
    (1, "kube-scheduler-packing", UNDER, (2.033, 2.058)),
    (2, "kube-scheduler", UNDER, (1.984,)),
    (2, "kube-scheduler-packing", UNDER, (1.782,)),
    (3, "kube-scheduler", UNDER, (2.366,)),
    (3, "kube-scheduler-packing", UNDER, (2.255,)),
    (4, "kube-scheduler", UNDER, (2.105,)),
    (4, "kube-scheduler-packing", UNDER, (1.922,)),
    (1, "kube-scheduler", "WhenEmpty", (2.616,)),
    (1, "kube-scheduler-packing", "WhenEmpty", (2.159,)),
)
"""(seed, policy, consolidation policy, the dollars of each real run)."""


def pods_of(seed: int, pods: int = 600, jobs: float = 0.4) -> tuple[list[Pod], list[DeletePod]]:
    """Draw the pods of the real runs, and when services are deleted."""
    drawn, ends = list[Pod](), list[DeletePod]()
    rng, at_s, peak = random.Random(seed), 0.0, 1.7 * pods / SPAN_S
    while True:
        at_s += rng.expovariate(peak)
        if at_s >= SPAN_S:
            return drawn, ends
        if rng.random() > (1 - 0.7 * math.cos(2 * math.pi * at_s / (SPAN_S / 2))) * pods / SPAN_S / peak:
            continue
        cpu = rng.choices([0.25, 0.5, 1, 2, 4, 8], [25, 25, 20, 15, 10, 5])[0]
        gib = min(32.0, max(0.5, cpu * rng.choice([1, 2, 4, 8])))
        is_job = rng.random() < jobs
        life_s = round(rng.expovariate(1 / 60) + 5 if is_job else rng.lognormvariate(math.log(150), 0.8), 2)
        uid = str(len(drawn))
        requests = {CPU: int(1000 * cpu), MEMORY: int(gib * 2**30)}
        drawn.append(Pod(
            f"pod-{uid}", uid=uid, requests=requests, owner=f"ReplicaSet/{uid}", do_not_disrupt=is_job,
            created_s=round(at_s, 3), lifetime_s=life_s if is_job else None,
        ))  # fmt: skip
        if not is_job:
            ends.append(DeletePod(round(at_s, 3) + life_s, uid))


def catalogue_of(path: Path) -> Catalogue:
    """Read the types that the real runs could provision."""
    whole = read_catalogue(path)
    return Catalogue(tuple(
        kind for kind in whole.types
        if kind.name.partition(".")[0] in FAMILIES and kind.name.partition(".")[2] in SIZES
    ))  # fmt: skip


def simulate(
    seed: int, policy: str, consolidation: ConsolidationPolicy, catalogue: Catalogue, repeat: int
) -> dict[str, float]:
    """Return the metrics of a simulated run."""
    rng = np.random.default_rng([seed, repeat])
    settings = KarpenterSettings(consolidation_policy=consolidation, consolidate_after_s=15.0)
    karpenter = Karpenter(settings, catalogue, 10.0 * float(rng.random()))
    pods, ends = pods_of(seed)
    cluster = SimCluster(
        (), Workload(tuple(pods)), timeline=ends, until_s=SPAN_S, supply=NodeSupply(karpenter, catalogue, rng)
    )
    play(cluster, make_policy(policy, PolicyOptions(seed=repeat)))
    return dict(cluster.metrics())


def main() -> None:
    """Print a row a setting: the real bills, the simulated ones, how far they are apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instance-types", type=Path, required=True, help="Karpenter's aws_instance_types.json")
    parser.add_argument("--repeats", type=int, default=4, help="simulated runs a setting, with other delays")
    args = parser.parse_args()
    catalogue, errors = catalogue_of(args.instance_types), list[float]()
    print(f"{'seed':>4} {'policy':24} {'consolidation':26} {'real $':>14} {'simulated $':>12} {'error':>7}")
    for seed, policy, consolidation, real in REAL:
        runs = [simulate(seed, policy, consolidation, catalogue, repeat) for repeat in range(args.repeats)]
        bill = statistics.mean(run["bill"] for run in runs) * SPAN_S / 3600.0
        own = [bill / each - 1.0 for each in real]
        errors += own
        told = " ".join(f"{each:.3f}" for each in real)
        print(
            f"{seed:>4} {policy:24} {consolidation:26} {told:>14} {bill:>12.3f} {statistics.mean(own):>+7.1%}", end=""
        )
        print(f"  evicted {statistics.mean(run['evicted'] for run in runs):.0f}", end="")
        print(f", waits p99 {statistics.mean(run['waiting_p99_s'] for run in runs):.0f} s")
    print(f"mean absolute error over {len(errors)} real runs: {statistics.mean(map(abs, errors)):.1%}", end="")
    print(f"; mean error {statistics.mean(errors):+.1%}")


if __name__ == "__main__":
    main()
