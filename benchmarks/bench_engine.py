"""Decisions a second of the compiled engine, and how cost and memory grow with the cluster.

    python benchmarks/bench_engine.py openb            # the default trace, per policy: best and median of 10 runs
    python benchmarks/bench_engine.py scale            # 1,213 to 100,000 nodes, pods for 130% of their GPUs
    python benchmarks/bench_engine.py large            # 100,000 nodes, 1,000,000 pods: time and peak memory

One thread; run it on an idle machine. `openb` needs the trace (`aaml trace fetch openb`).
"""

import argparse
import resource
import statistics
import sys
import time
from itertools import pairwise

import numpy as np

from aaml.episodes.engine import Episode, simulate, warm_up
from aaml.policies.fragmentation import fragment_tables, typical_pods
from aaml.policies.gpu.arrays import empty_nodes, pod_shape
from aaml.policies.gpu.learned import NETWORK_INPUTS, network_scorer
from aaml.policies.gpu.policies import FGD, policy_number
from aaml.policies.gpu_names import FEATURES, GROUPS
from aaml.sim.openb import prepare, run_openb
from aaml.workload.synthetic_gpu import pods_for_load, synthetic_nodes, synthetic_pods

POLICIES = ("fgd", "best-fit", "dot-product", "gpu-packing", "gpu-clustering", "random")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("openb", "scale", "large"))
    parser.add_argument("--runs", type=int, default=10)
    args = parser.parse_args()
    started = time.perf_counter()
    warm_up()
    print(f"kernels ready after {time.perf_counter() - started:.2f} s", file=sys.stderr)
    {"openb": lambda: openb(args.runs), "scale": scale, "large": large}[args.what]()


def openb(runs: int) -> None:
    """Print decisions a second on the default trace, metrics at every arrival."""
    rng = np.random.default_rng(0)
    prepared = prepare("default", 42)

    def network(*hidden: int) -> object:
        sizes = (NETWORK_INPUTS, *hidden, 1)
        layers = [(rng.normal(size=(out, into)) / into**0.5, np.zeros(out)) for into, out in pairwise(sizes)]
        return network_scorer(layers, prepared.tables, prepared.devices)

    cases = [(name, name, None) for name in POLICIES]
    cases.append(("linear", "linear", rng.normal(size=(len(GROUPS), len(FEATURES)))))
    cases += [("network 32", "network", network(32)), ("network 32-32", "network", network(32, 32))]
    print(f"{'policy':<16} {'best':>9} {'median':>9}  decisions/s")
    for label, policy, weights in cases:
        speeds = []
        for _ in range(runs):
            result = run_openb("default", 42, policy, weights)
            speeds.append(result.decisions / result.seconds)
        print(f"{label:<16} {max(speeds):>9,.0f} {statistics.median(speeds):>9,.0f}")


def _run(nodes: int, pods: int, policy: str) -> tuple[Episode, float]:
    cluster = synthetic_nodes(nodes)
    sample = synthetic_pods(min(pods, 20_000), np.random.default_rng(0))
    arrays, models = empty_nodes(cluster)
    shapes, inverse = np.unique(np.array([pod_shape(pod, models) for pod in sample]), axis=0, return_inverse=True)
    arrivals = np.random.default_rng(1).choice(inverse.reshape(-1), size=pods)
    tables = fragment_tables(typical_pods(sample), models, arrays.gpu.shape[1])
    started = time.perf_counter()
    episode = simulate(
        arrays, shapes, arrivals, tables, policy_number(policy), node_rank=np.arange(nodes),
        device_rule=3 if policy_number(policy) == FGD else 0,
    )  # fmt: skip
    return episode, time.perf_counter() - started


def scale() -> None:
    """Print the cost of a decision as the cluster grows."""
    print(f"{'policy':<10} {'nodes':>8} {'pods':>9} {'decisions/s':>12} {'us/decision':>12}")
    for policy in ("fgd", "best-fit"):
        for nodes in (1_213, 5_000, 20_000, 100_000):
            pods = pods_for_load(synthetic_nodes(nodes), 1.3)
            _, seconds = _run(nodes, pods, policy)
            print(f"{policy:<10} {nodes:>8,} {pods:>9,} {pods / seconds:>12,.0f} {1e6 * seconds / pods:>12.1f}")


def large() -> None:
    """Print time and peak memory of 100,000 nodes and 1,000,000 pods."""
    episode, seconds = _run(100_000, 1_000_000, "fgd")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"FGD, 100,000 nodes, 1,000,000 pods: {seconds:.1f} s, {1e6 / seconds:,.0f} decisions/s")
    print(f"{(episode.node < 0).sum():,} pods failed; peak memory {peak:.2f} GiB")


if __name__ == "__main__":
    main()
