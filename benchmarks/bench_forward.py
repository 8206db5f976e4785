"""Time of one decision's forward pass, side by side: the torch network and its numpy twin, one thread.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/bench_forward.py

Prints milliseconds at the 50th and 99th percentile for each encoder, head and cluster size, and the budget that the
numpy twin, which agents act by, is to keep: 1.5 ms at 1,000 nodes, 10 ms at 10,000.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from aaml.cluster.topology import Graph
from aaml.learning.collate import collate
from aaml.learning.inference import FastNetwork
from aaml.learning.networks import Network, NetworkSpec, make_network
from aaml.scheduling.observation import NODE_FEATURES, PAIR_FEATURES, POD_FEATURES, Observation

SIZES = (10, 100, 1_000, 10_000)
BUDGET_MS = {1_000: 1.5, 10_000: 10.0}


def observation(n: int, rng: np.random.Generator) -> Observation:
    """Return random features over a star of `n` nodes."""
    rows, hub = np.arange(n), np.full(n, n)
    graph = Graph(n, np.stack([np.concatenate([rows, hub]), np.concatenate([hub, rows])]))
    return Observation(
        rng.random((n, len(NODE_FEATURES)), dtype=np.float32),
        rng.random((n, len(PAIR_FEATURES)), dtype=np.float32),
        rng.random(len(POD_FEATURES), dtype=np.float32),
        rng.random(n) < 0.9,
        graph,
    )


def percentiles(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return milliseconds (p50, p99) of `call` after three warm-up calls."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(1000.0 * (time.perf_counter() - started))
    return float(np.percentile(times, 50)), float(np.percentile(times, 99))


def main() -> None:
    """Measure and print the table."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    print(f"{'nodes':>6} {'encoder':<8}{'head':<7}{'torch p50':>10}{'p99':>8}{'numpy p50':>11}{'p99':>8}  budget")
    for n in SIZES:
        seen = observation(n, rng)
        repeats = max(30, min(500, 20_000 // n))
        for encoder in ("mlp", "gnn"):
            for head in ("q", "actor"):
                network = make_network(NetworkSpec(encoder=encoder, head=head), seed=0)
                with torch.inference_mode():
                    slow = percentiles(partial(in_torch, network, seen), repeats)
                fast = percentiles(partial(FastNetwork(network), seen), repeats)
                budget = f"{BUDGET_MS[n]:g} ms" if n in BUDGET_MS else ""
                shown = f"{slow[0]:>10.3f}{slow[1]:>8.3f}{fast[0]:>11.3f}{fast[1]:>8.3f}  {budget}"
                print(f"{n:>6} {encoder:<8}{head:<7}{shown}", flush=True)


def in_torch(network: Network, seen: Observation) -> torch.Tensor:
    """Collate and pass one observation through the torch network."""
    result: torch.Tensor = network(collate([seen], network.needs_graphs))
    return result


if __name__ == "__main__":
    main()
