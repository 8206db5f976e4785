"""The live table says what is there, and fits the terminal at ten and at a thousand nodes."""

from dataclasses import replace

import pytest

from aaml.cluster.objects import CONTROL_PLANE_LABEL, Taint
from aaml.cluster.state import ClusterState
from aaml.telemetry.top import TopModel, render
from support import make
from support.make import GIB

SIZE = (64_000, 256 * GIB)


def cluster(count: int, racks: int = 0) -> ClusterState:
    control = make.node(
        "kwok-ctl-node-0", *SIZE, labels={CONTROL_PLANE_LABEL: ""}, taints=(Taint(CONTROL_PLANE_LABEL),)
    )
    nodes = [make.node(f"n{i}", *SIZE, labels={"rack": f"r{i % racks}"} if racks else {}) for i in range(count)]
    return make.cluster([control, *nodes])


def put(state: ClusterState, name: str, node: str, cpu_milli: int, memory_bytes: int = GIB) -> None:
    state.assume(make.pod(name, cpu_milli, memory_bytes), node)


def test_each_node_has_its_line_while_they_fit():
    state = cluster(10)
    model = TopModel("kwok", pending=3)
    model.watch(state)
    put(state, "web-1", "n4", 32_000, 64 * GIB)
    text = render(model, state)
    (line,) = [line for line in text.splitlines() if line.startswith("n4 ")]
    assert "1/110" in line
    assert "32.0/64 50%" in line
    assert "64.0/256 25%" in line
    assert "kwok-ctl-node-0" not in text
    assert "10 nodes" in text
    assert "1 pods" in text
    assert "3 pending" in text
    assert "default/web-1 -> n4" in text


def test_totals_leave_the_control_plane_out():
    state = cluster(2)
    put(state, "a", "n0", 64_000)
    assert "50.0%   64.0 of 128 cores" in render(TopModel("kwok"), state)


def test_variance_is_that_of_the_workers_alone():
    state = cluster(2)
    put(state, "a", "n0", 32_000)
    # Fractions 0.5 and 0: mean 0.25, both 0.25 away.
    assert "variance of CPU use 0.062" in render(TopModel("kwok"), state)


@pytest.mark.parametrize(("count", "racks"), [(10, 0), (1000, 0), (1000, 8), (1000, 200)])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 50), (60, 12)])
def test_it_fits_the_terminal(count, racks, width, height):
    state = cluster(count, racks)
    model = TopModel("kwok")
    model.watch(state)
    for i in range(count):
        put(state, f"pod-with-a-long-name-{i}", f"n{i}", 100 * (i % 20))
    lines = render(model, state, width=width, height=height).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_a_thousand_nodes_show_quantiles_and_the_extremes():
    state = cluster(1000)
    for i in range(1000):
        put(state, f"p{i}", f"n{i}", 64 * i)  # node i uses i thousandths of its CPU
    text = render(TopModel("kwok"), state, height=30)
    median = next(line for line in text.splitlines() if line.startswith("median"))
    assert " 50.0%" in median or " 49.9%" in median
    assert "n999 " in text
    assert "n0 " in text
    assert "n500 " not in text


def test_racks_come_in_the_order_of_their_numbers():
    text = render(TopModel("kwok"), cluster(100, racks=12), height=30)
    names = [line.split()[0] for line in text.splitlines() if "nodes)" in line]
    assert names == [f"r{i}" for i in range(12)]


def test_a_cordoned_node_is_marked():
    state = make.cluster([make.node("n0", *SIZE, unschedulable=True), make.node("n1", *SIZE)])
    text = render(TopModel("kwok"), state)
    assert "2 nodes (1 cordoned: *)" in text
    assert next(line.split()[:2] for line in text.splitlines() if line.startswith("n")) == ["n0", "*"]


def test_the_rate_is_over_the_last_ten_seconds():
    now = [100.0]
    model = TopModel("kwok", clock=lambda: now[0])
    state = cluster(1)
    model.watch(state)
    for i in range(20):
        put(state, f"p{i}", "n0", 1)
        now[0] += 1.0
    assert "1.0 placed/s" in render(model, state) or "1.1 placed/s" in render(model, state)
    now[0] += 60.0
    assert "0.0 placed/s" in render(model, state)


def test_a_pod_that_ends_or_is_labelled_anew_was_not_placed_again():
    state, model = cluster(1), TopModel("kwok")
    model.watch(state)
    pod = make.pod("p", 1)
    state.assume(pod, "n0")
    bound = replace(pod, node_name="n0")
    state.upsert_pod(bound)
    state.upsert_pod(replace(bound, labels={"a": "b"}))
    state.upsert_pod(replace(bound, terminating=True))
    assert (model.bound, len(model.recent)) == (1, 1)


def test_dollars_stand_beside_use_where_prices_are_known():
    state = cluster(3)
    put(state, "web", "n0", 4_000)
    put(state, "unpriced", "n2", 8_000)
    model = TopModel("kwok", lambda node: {"n0": 0.5, "n1": 0.25}.get(node.name))
    text = render(model, state, width=200)
    assert "$0.75 an hour" in text
    assert "$0.1875 for an hour of a requested core" in text  # 0.75 for the four cores on nodes with a price
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("n")}
    assert lines["n0"].endswith("0.500")
    assert "$" not in lines["n2"]
    assert lines["n2"].endswith("%")


def test_no_dollars_are_shown_where_no_price_is_known():
    assert "$" not in render(TopModel("kwok"), cluster(3))
