"""Pods of openb that come and go, near what the GPUs hold."""

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.sim.tasks import find_task
from aaml.workload.churn import Churn, _runs
from aaml.workload.synthetic_gpu import synthetic_nodes


def test_the_pods_are_those_of_the_trace():
    """Median and 99th percentile of the lifetimes of all 8,152 pods of the default list, worked out from its file."""
    lifetimes_s = np.concatenate([_runs(0).lifetimes_s, _runs(1).lifetimes_s])
    assert (len(lifetimes_s), np.median(lifetimes_s), lifetimes_s.max()) == (8_152, 540.0, 12_537_496.0)
    assert np.percentile(lifetimes_s, 99) == pytest.approx(96_509.0, rel=0.001)


def test_pods_that_came_before_ask_for_the_load_and_are_as_old_as_a_snapshot_finds_them():
    nodes = synthetic_nodes(200)
    devices = sum(node.gpu_count for node in nodes)
    pods = Churn(0.8)(nodes, 10_000, np.random.default_rng(0)).pods
    before = [pod for pod in pods if pod.created_s < 0.0]
    assert all(-pod.created_s < pod.lifetime_s for pod in before)
    assert sum(pod.gpu.total_milli for pod in before) / 1000 == pytest.approx(0.8 * devices, abs=8.0)
    assert np.mean([-pod.created_s / pod.lifetime_s for pod in before]) == pytest.approx(0.5, abs=0.05)
    # What runs was drawn by how long it runs: nearly all of it for more than a day, as one in a hundred arrivals.
    after = [pod for pod in pods if pod.created_s >= 0.0]
    assert np.mean([pod.lifetime_s > 86_400.0 for pod in before]) > 0.8
    assert np.mean([pod.lifetime_s > 86_400.0 for pod in after]) < 0.02


def test_the_pods_that_are_learned_from_are_none_of_those_to_come():
    task = find_task("churn")
    kinds = [{(pod.qos, pod.gpu, pod.lifetime_s) for pod in pods} for pods in (task.expected(), task.build(0).workload)]
    long = [{each for each in kind if each[2] > 20_000.0} for kind in kinds]  # short lifetimes are alike by chance
    assert min(map(len, long)) > 30
    assert len(long[0] & long[1]) <= 1


def test_what_happens_before_time_0_is_not_judged():
    cluster = find_task("churn").build(1, nodes=20)
    assert cluster.now_s() < 0.0
    while cluster.now_s() < 0.0 and (pod := cluster.next_pod()) is not None:
        cluster.bind(pod, int(np.argmax(cluster.feasible(pod))))
    assert cluster.journal.averages.seconds == pytest.approx(max(cluster.now_s(), 0.0))


def test_a_task_at_another_load():
    task = find_task("churn@0.5")
    assert (task.name, task.draw.load, find_task("services-and-jobs@0.2").draw.load) == ("churn@0.5", 0.5, 0.2)
    for name, said in (
        ("seed-a@0.5", "no load"),
        ("seed-a@0.1..0.5", "seed-a@0.1..0.5.*no load"),
        ("churn@much", "task: 'churn@much' is not accepted; expected churn at a load"),
        ("churn@0", "load: '0'"),
        ("balance@0.2..", "load: '0.2..'"),
        ("balance@0.5..0.2", "load: '0.5..0.2' is not accepted; expected a range from the lower to the higher"),
    ):
        with pytest.raises(UserError, match=said):
            find_task(name)


@pytest.mark.parametrize("name", ["balance", "churn"])
def test_a_range_of_loads_gives_each_episode_its_own(name):
    """Pods of balance come at a rate in proportion to the load, and the pods that churn begins with ask for it."""

    def shown(task, seed):
        pods = task.build(seed, 10, pods=400).workload.pods
        if name == "balance":
            return 1.0 / pods[-1].created_s
        return sum(pod.gpu.total_milli for pod in pods if pod.created_s <= 0.0)

    task = find_task(f"{name}@0.2..0.6")
    low, high = (np.mean([shown(find_task(f"{name}@{load}"), seed) for seed in range(20)]) for load in (0.2, 0.6))
    seen = np.array([shown(task, seed) for seed in range(20)])
    assert task.name == f"{name}@0.2..0.6"
    assert shown(task, 3) == seen[3], "the load belongs to the episode's seed"
    assert seen.max() > low + 0.7 * (high - low)
    assert seen.min() < low + 0.3 * (high - low)
