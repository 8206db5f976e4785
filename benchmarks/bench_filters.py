"""Microseconds of one filter run, one score run and one preemption, by the constraints of the pod.

    OMP_NUM_THREADS=1 python benchmarks/bench_filters.py                 # 100, 1,000 and 5,000 nodes
    OMP_NUM_THREADS=1 python benchmarks/bench_filters.py --nodes 1000

Five pods run on each node. The best of seven repeats is shown; run it on an idle machine.
"""

import argparse
import timeit
from collections.abc import Callable
from functools import partial

from aaml.cluster.filters import feasible
from aaml.cluster.objects import (
    HOSTNAME_LABEL,
    Affinity,
    HostPort,
    LabelSelector,
    Node,
    Pod,
    PodAffinityTerm,
    Requirement,
    Taint,
    Toleration,
    TopologySpread,
)
from aaml.cluster.state import ClusterState
from aaml.policies.kube_scores import total_scores
from aaml.scheduling.preemption import plan

GIB = 1 << 30
APP = LabelSelector((Requirement("app", "In", ("a1",)),))
PLAIN = Pod(
    "p",
    requests={"cpu": 500, "memory": GIB},
    labels={"app": "a1"},
    tolerations=tuple(
        Toleration(f"node.kubernetes.io/{what}", "Exists", effect="NoExecute") for what in ("not-ready", "unreachable")
    ),
)


def pods() -> dict[str, Pod]:
    """Return a pod for each kind of constraint."""
    anti = Affinity(required_anti_pods=(PodAffinityTerm(HOSTNAME_LABEL, APP, frozenset({"default"})),))

    def with_fields(**fields: object) -> Pod:
        return Pod("p", requests=PLAIN.requests, labels=PLAIN.labels, **fields)  # type: ignore[arg-type]

    return {
        "resources, taints": PLAIN,
        "node selector": with_fields(node_selector={"zone": "z1"}),
        "host port": with_fields(host_ports=(HostPort(80),)),
        "spread over zones": with_fields(spread=(TopologySpread(1, "zone", APP),)),
        "spread over hosts": with_fields(spread=(TopologySpread(1, HOSTNAME_LABEL, APP),)),
        "anti-affinity": with_fields(affinity=anti),
    }


def cluster(nodes: int) -> ClusterState:
    """Return a cluster of three zones; every tenth node is tainted."""
    state = ClusterState(
        Node(
            f"n{number}",
            {"cpu": 8000, "memory": 64 * GIB, "pods": 110, "ephemeral-storage": 1 << 40},
            {HOSTNAME_LABEL: f"n{number}", "zone": f"z{number % 3}"},
            (Taint("dedicated"),) if number % 10 == 0 else (),
        )
        for number in range(nodes)
    )
    for number in range(5 * nodes):
        pod = Pod(f"r{number}", requests={"cpu": 1000, "memory": GIB}, labels={"app": f"a{number % 7}"})
        state.assume(pod, f"n{number % nodes}")
    return state


def microseconds(call: Callable[[], object], number: int) -> float:
    """Return the best mean of seven repeats."""
    call()
    return min(timeit.repeat(call, number=number, repeat=7)) / number * 1e6


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[100, 1000, 5000])
    for nodes in parser.parse_args().nodes:
        state = cluster(nodes)
        print(f"{nodes} nodes{'filters, us':>27}{'scores, us':>14}")
        for name, pod in pods().items():
            mask = feasible(state, pod).mask
            filters = microseconds(partial(feasible, state, pod), 200)
            scores = microseconds(partial(total_scores, state, pod, mask), 50)
            print(f"  {name:20}{filters:14.1f}{scores:14.1f}")
        important = Pod("vip", priority=10, requests={"cpu": 5000})
        print(f"  {'preemption':20}{microseconds(partial(plan, state, important), 1):14.1f}")


if __name__ == "__main__":
    main()
