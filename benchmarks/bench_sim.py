"""Speed of the simulated cluster: decisions a second, environment steps a second, and scaling over processes.

    python benchmarks/bench_sim.py cluster             # SimCluster alone and with policies, 10 to 1,000 nodes
    python benchmarks/bench_sim.py env                 # steps of aaml/Cluster-v0 by kind of observation
    python benchmarks/bench_sim.py vector              # AsyncVectorEnv over 1 to all cores, and batches of rollouts

Each figure is the best of --runs. `cluster` and `env` count CPU seconds of one thread, so that other work on the
machine disturbs little; `vector` counts wall-clock seconds: run it on an idle machine.
"""

import argparse
import multiprocessing
import multiprocessing.pool
import os
import time
from collections.abc import Callable

import gymnasium
import numpy as np

import aaml.sim
from aaml.policies.registry import make_policy, make_reward
from aaml.scheduling.play import play
from aaml.sim.tasks import find_task

POLICIES = ("first-fit", "least-allocated", "least-variance", "kube-scheduler")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cluster", "env", "vector"))
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    {"cluster": cluster, "env": environment, "vector": vector}[args.what](args.runs)


def best(runs: int, once: Callable[[], tuple[int, float]]) -> float:
    """Return the most things a second of several runs, after one to warm up; `once` returns (things, seconds)."""
    once()
    return max(count / seconds for count, seconds in (once() for _ in range(runs)))


def cluster(runs: int) -> None:
    """Decisions a second: arrivals, departures, filters, binds and time averages of the balance task included."""
    for nodes in (10, 100, 1000):
        pods = 5000
        print(f"{nodes:>5} nodes  {'bare first node':<16} {best(runs, lambda: _bare(nodes, pods)):>10,.0f} decisions/s")  # noqa: B023
        for policy in POLICIES:
            speed = best(runs, lambda: _loop(nodes, pods, policy))  # noqa: B023
            print(f"{nodes:>5} nodes  {policy:<16} {speed:>10,.0f} decisions/s (loop and balance reward)")


def _bare(nodes: int, pods: int) -> tuple[int, float]:
    sim = find_task("balance").build(0, nodes, pods=pods)
    started = time.process_time()
    while (pod := sim.next_pod()) is not None:
        mask = sim.feasible(pod)
        if mask.any():
            sim.bind(pod, int(mask.argmax()))
        else:
            sim.reject(pod)
    return pods, time.process_time() - started


def _loop(nodes: int, pods: int, policy: str) -> tuple[int, float]:
    sim = find_task("balance").build(0, nodes, pods=pods)
    chosen, reward = make_policy(policy), make_reward("balance")
    started = time.process_time()
    stats = play(sim, chosen, reward)
    return stats.decisions, time.process_time() - started


def environment(runs: int) -> None:
    """Steps a second of one environment with random feasible actions."""
    for task, nodes in (("balance", 10), ("balance", 100), ("fragmentation", 20)):
        for mode in ("flat", "dict", "graph"):
            env = gymnasium.make(aaml.sim.ENVIRONMENT_ID, task=task, nodes=nodes, observation=mode, pods=1000)
            print(f"{task} {nodes:>4} nodes  {mode:<6} {best(runs, lambda: _episode(env)):>8,.0f} steps/s")  # noqa: B023


def _episode(env: gymnasium.Env, seed: int = 0) -> tuple[int, float]:
    rng = np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    started, steps = time.process_time(), 0
    while True:
        _, _, terminated, truncated, info = env.step(rng.choice(np.flatnonzero(info["action_mask"])))
        steps += 1
        if terminated or truncated:
            return steps, time.process_time() - started


def vector(runs: int) -> None:
    """Steps a second over processes: lockstep with AsyncVectorEnv, and whole episodes by a pool of processes."""
    cores = len(os.sched_getaffinity(0))
    for processes in sorted({1, 2, cores // 2, cores} - {0}):
        lockstep = best(runs, lambda: _lockstep(processes))  # noqa: B023
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            episodes = best(runs, lambda: _episodes(pool, processes))  # noqa: B023
        print(
            f"{processes:>3} processes  lockstep {lockstep:>9,.0f} steps/s   whole episodes {episodes:>9,.0f} steps/s"
        )


def _lockstep(processes: int, steps: int = 400) -> tuple[int, float]:
    envs = gymnasium.make_vec(
        aaml.sim.ENVIRONMENT_ID, num_envs=processes, vectorization_mode="async", task="balance", pods=1000
    )
    rng = np.random.default_rng(0)
    try:
        _, info = envs.reset(seed=0)
        started = time.perf_counter()
        for _ in range(steps):
            actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in info["action_mask"]])
            info = envs.step(actions)[-1]
        return steps * processes, time.perf_counter() - started
    finally:
        envs.close()


def _episodes(pool: multiprocessing.pool.Pool, processes: int) -> tuple[int, float]:
    started = time.perf_counter()
    steps = sum(pool.map(_whole_episode, range(processes), chunksize=1))
    return steps, time.perf_counter() - started


def _whole_episode(seed: int) -> int:
    env = gymnasium.make(aaml.sim.ENVIRONMENT_ID, task="balance", pods=2000)
    return _episode(env, seed)[0]


if __name__ == "__main__":
    main()
