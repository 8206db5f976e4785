"""Metrics on states whose figures are easy to work out by hand."""

import math

import numpy as np
import pytest

from aaml.cluster.metrics import TimeAverage, TimeAverages, fragmentation_ratio, usage
from aaml.cluster.objects import CONTROL_PLANE_LABEL, GpuRequest, Node, Pod
from aaml.cluster.state import ClusterState


def state():
    nodes = [
        Node("control", {"cpu": 1000, "memory": 1000, "pods": 10}, labels={CONTROL_PLANE_LABEL: ""}),
        Node("a", {"cpu": 1000, "memory": 1000, "pods": 10}, gpu_count=2),
        Node("b", {"cpu": 3000, "memory": 1000, "pods": 10}),
    ]
    result = ClusterState(nodes)
    result.assume(Pod("p", requests={"cpu": 800, "memory": 500}, gpu=GpuRequest(1, 500)), "a")
    result.assume(Pod("system", requests={"cpu": 900, "memory": 900}), "control")
    return result


def test_usage_counts_capacity_nodes_only():
    now = usage(state())
    assert (now.nodes, now.empty_nodes) == (2, 1)
    assert now.cpu_mean == pytest.approx(0.4)
    assert now.cpu_variance == pytest.approx(0.16)
    assert now.memory_variance == pytest.approx(0.0625)
    assert now.variance == pytest.approx(0.11125)
    assert now.cpu_allocation == pytest.approx(0.2)  # 800 of 4000
    assert now.memory_allocation == pytest.approx(0.25)
    assert now.gpu_allocation == pytest.approx(0.25)  # 500 of 2000 thousandths
    assert now.empty_fraction == 0.5


def test_small_variances_do_not_drown_in_rounding():
    size = 10**15
    nodes = [Node(name, {"cpu": size, "memory": size, "pods": 9}) for name in "ab"]
    cluster = ClusterState(nodes)
    cluster.assume(Pod("p", requests={"cpu": size // 2 + 2 * 10**5}), "a")
    cluster.assume(Pod("q", requests={"cpu": size // 2}), "b")
    assert usage(cluster).cpu_variance == pytest.approx((1e5 / 1e15) ** 2, rel=1e-3)


def test_an_empty_cluster_has_no_use():
    now = usage(ClusterState())
    assert (now.nodes, now.variance, now.gpu_allocation) == (0, 0.0, 0.0)


def test_time_averages_weigh_by_duration():
    average = TimeAverage()
    assert math.isnan(average.mean)
    average.hold(1.0, 3.0)
    average.hold(5.0, 1.0)
    assert average.mean == 2.0
    averages, cluster = TimeAverages(), state()
    averages.hold(cluster, 4, 1.0)
    cluster.remove_pod("default/p")
    averages.hold(cluster, 0, 3.0)
    means = averages.means()
    assert means["cpu_variance"] == pytest.approx(0.04)
    assert means["pending_pods"] == 1.0
    assert means["empty_nodes"] == pytest.approx(1.75)


def test_fragmentation_ratio_is_fragments_over_free_devices():
    assert fragmentation_ratio(state(), lambda _state: np.array([0.0, 300.0, 0.0])) == pytest.approx(0.2)  # of 1500
