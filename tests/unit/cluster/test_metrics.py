"""Metrics on states whose figures are easy to work out by hand."""

import math

import pytest

from aaml.cluster.metrics import TimeAverages, usage
from aaml.cluster.objects import CONTROL_PLANE_LABEL, GpuRequest, Node, Pod
from aaml.cluster.state import ClusterState
from support import make


def state():
    nodes = [
        make.node("control", 1000, 1000, labels={CONTROL_PLANE_LABEL: ""}),
        make.node("a", 1000, 1000, gpus=2),
        make.node("b", 3000, 1000),
    ]
    return make.cluster(
        nodes, a=[make.pod("p", 800, 500, gpu=GpuRequest(1, 500))], control=[make.pod("system", 900, 900)]
    )


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
    cluster = make.cluster(make.nodes(2, size, size), [(0, size // 2 + 2 * 10**5, 0), (1, size // 2, 0)])
    assert usage(cluster).cpu_variance == pytest.approx((1e5 / 1e15) ** 2, rel=1e-3)


def test_an_empty_cluster_has_no_use():
    now = usage(ClusterState())
    assert (now.nodes, now.variance, now.gpu_allocation) == (0, 0.0, 0.0)


def test_time_averages_weigh_by_duration():
    averages, cluster = TimeAverages(), state()
    assert math.isnan(averages.means()["variance"])
    averages.hold(cluster, 4, 0, 1.0)
    cluster.remove_pod("default/p")
    averages.hold(cluster, 0, 0, 3.0)
    means = averages.means()
    assert means["cpu_variance"] == pytest.approx(0.04)
    assert means["pending_pods"] == 1.0
    assert means["empty_nodes"] == pytest.approx(1.75)


def test_gpus_entirely_free_and_gpu_demand_that_waits_are_shares_of_the_cluster():
    """Four devices, one half taken and one taken whole; pods that ask for a device and a half wait half the time."""
    cluster = ClusterState([Node(name, {"cpu": 1, "pods": 9}, gpu_count=2) for name in ("a", "b")])
    cluster.assume(Pod("share", gpu=GpuRequest(1, 500)), "a")
    cluster.assume(Pod("whole", gpu=GpuRequest(1, 1000)), "b")
    averages = TimeAverages()
    averages.hold(cluster, 2, 1500, 10.0)
    averages.hold(cluster, 0, 0, 10.0)
    assert usage(cluster).whole_gpus == 0.5
    assert averages.means()["whole_gpus"] == 0.5
    assert averages.means()["gpu_waiting"] == pytest.approx(0.5 * 1.5 / 4.0)
