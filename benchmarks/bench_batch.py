"""Decisions a second of episodes in lockstep, with observations, beside SimCluster's; one thread, and all cores.

    python benchmarks/bench_batch.py                    # 10, 100 and 1,000 nodes of balance
    python benchmarks/bench_batch.py --task fragmentation --nodes 20
    python benchmarks/bench_batch.py --task bill --nodes 20     # nodes are provisioned and terminated
    python benchmarks/bench_batch.py --task bill --nodes 20 --costs     # and what they cost is shown

Each decision is the first feasible node. A decision of the batch is `BatchedEnv.step` whole: arrivals, departures, time
averages, reward, the next pod's mask and features, and what happens in Python at the end of an episode; `new` adds the
drawing and laying out of a workload for every episode, `shared` is without (16 workloads are played again and again).
SimCluster's is the scheduling cycle with its observation. Rates of one thread count its own CPU seconds, so that other
work on the machine disturbs less; those of all cores are by the clock. Compiling is not in them: its seconds are told
first (a second run loads the kernels from numba's cache).
"""

import argparse
import os
import time

import numpy as np

from aaml.episodes.batch import BatchedEnv
from aaml.episodes.plan import Plan
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.registry import make_reward
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.ports import Decision
from aaml.scheduling.rewards import RewardOptions
from aaml.sim.bill import BillTask
from aaml.sim.task import Task
from aaml.sim.task_episodes import TaskEpisodes
from aaml.sim.tasks import find_task

WORKLOADS = 16
NODES_IN_ALL = 2560  # of all rows together


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="balance")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--costs", action="store_true")
    args = parser.parse_args()
    task = find_task(args.task)
    expected = task.expected()
    meter = FragmentMeter.of(expected) if any(pod.gpu.count for pod in expected) else None
    observation_spec = ObservationSpec(task.lookahead, fragmentation=meter, costs=args.costs)
    started, before = time.perf_counter(), time.process_time()
    BatchedEnv(lambda _g, _n: Plan.of_cluster(task.build(0, 3)), 1, observation_spec=observation_spec,
               reward=task.reward, expected=meter, threads=1).reset()  # fmt: skip
    print(f"kernels ready after {time.perf_counter() - started:.1f} s ({time.process_time() - before:.1f} s of CPU)")
    cores = os.cpu_count() or 1
    print(f"load average {os.getloadavg()[0]:.1f} on {cores} cores; decisions a second of {task.name}:")
    print(f"{'nodes':>6} {'rows':>5} {'shared':>11} {'new':>11} {f'{cores} threads':>11} {'SimCluster':>11}")
    for nodes in args.nodes:
        rows = max(NODES_IN_ALL // nodes, 4)
        pods = None if isinstance(task, BillTask) else min(round(task.pods_per_node * nodes), 3000)
        drawn = TaskEpisodes(task, pods)
        shared = [drawn.plan(seed, nodes) for seed in range(WORKLOADS)]

        def again(group: int, number: int, shared: list[Plan] = shared) -> Plan:
            return shared[(group + number) % WORKLOADS]

        def new(group: int, number: int, nodes: int = nodes, drawn: TaskEpisodes = drawn) -> Plan:
            return drawn.plan(1000 * group + number, nodes)

        options = {"observation_spec": observation_spec, "reward": task.reward, "expected": meter}
        rates = [
            _batch(BatchedEnv(again, rows, threads=1, **options), args.seconds, time.process_time),
            _batch(BatchedEnv(new, rows, threads=1, **options), args.seconds, time.process_time),
            _batch(BatchedEnv(again, rows, threads=cores, **options), args.seconds, time.perf_counter),
            _simulated(task, nodes, pods, observation_spec, meter, args.seconds),
        ]
        print(f"{nodes:>6} {rows:>5} " + " ".join(f"{rate:>11,.0f}" for rate in rates))


def _batch(batch: BatchedEnv, seconds: float, clock) -> float:  # noqa: ANN001
    """Return decisions a second; choosing the nodes is not counted."""
    batch.reset()
    decisions, spent = 0, 0.0
    while spent < seconds:
        actions = batch.seen.mask.argmax(axis=1)
        started = clock()
        batch.step(actions)
        spent += clock() - started
        decisions += len(batch)
    batch.close()
    return decisions / spent


def _simulated(
    task: Task,
    nodes: int,
    pods: int | None,
    observation_spec: ObservationSpec,
    meter: FragmentMeter | None,
    seconds: float,
) -> float:
    """Return decisions a second of the scheduling cycle over SimCluster, building the episode not counted."""
    decisions, spent, seed = 0, 0.0, 0
    while spent < seconds:
        cycle = SchedulingCycle(
            task.build(seed, nodes, pods=pods), make_reward(task.reward, RewardOptions(meter)), observation_spec
        )
        seed += 1
        started = time.process_time()
        while (pod := cycle.cluster.next_pod()) is not None:
            context = cycle.begin(pod)
            if context is not None:
                _ = context.observation
                cycle.finish(context, Decision(int(np.argmax(context.mask))))
                decisions += 1
        spent += time.process_time() - started
    return decisions / spent


if __name__ == "__main__":
    main()
