"""GPUs that are bought: shared by thousandths on single devices, as the simulator shares them."""

from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster.objects import GpuRequest
from aaml.errors import UserError
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.catalogue_file import openb_catalogue, parse_catalogue, written_catalogue
from aaml.nodes.fluid import Fluid
from aaml.nodes.packing import pack
from aaml.nodes.ports import Observed, OwnedNode
from aaml.nodes.settings import ClusterAutoscalerSettings, NodeTimes
from aaml.optimum.clairvoyant import offline_bill
from aaml.optimum.relaxation import fluid_bill
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.bill import BILL_TASKS
from aaml.sim.cluster import SimCluster
from support import make
from support.make import GIB
from support.nodes_to_buy import measured


def kind(name, gpus, price, model="T4", cores=8):
    offered = (("cpu", 1000 * cores), ("memory", 32 * GIB), ("pods", 110))
    return InstanceType(name, offered, (Offering(price),), gpu_count=gpus, gpu_model=model if gpus else "")


TYPES = Catalogue((kind("plain", 0, 0.4), kind("one", 1, 1.0), kind("two", 2, 1.8), kind("fast", 2, 4.0, "V100")))


def pod(name, milli, count=1, models=(), cores=1.0, **more):
    gpu = GpuRequest(count, milli, frozenset(models))
    return make.pod(name, int(1000 * cores), GIB, gpu=gpu, **more)


def bought(*pods, seen=None):
    """Return the cheapest type of each claim, and the nodes that were used."""
    capacity = measured(seen or Observed(0.0), TYPES)
    packed = pack(TYPES, capacity, pods)
    names = [min((TYPES.types[t] for t in claim.fits.nonzero()[0]), key=lambda each: each.cheapest.price).name
             for claim in packed.claims]  # fmt: skip
    return names, packed.used


def test_shares_are_packed_on_single_devices():
    assert bought(pod("a", 400), pod("b", 600)) == (["one"], ())
    assert bought(pod("a", 600), pod("b", 600)) == (["two"], ()), "1.2 devices fit on no single one"
    assert bought(pod("a", 500), pod("b", 1000)) == (["two"], ())
    assert bought(pod("a", 1000, count=2), pod("b", 100)) == (["two", "one"], ()), "whole devices are nobody else's"
    assert bought(make.pod("c")) == (["plain"], ())
    assert bought(pod("a", 1000, models=["V100"])) == (["fast"], ())
    assert bought(pod("a", 1000, count=3)) == ([], ()), "no type has three"


def test_what_is_left_of_a_nodes_devices_counts():
    """Both devices of the node are half taken: there is a whole one in sum, and none for who wants a whole one."""
    node = OwnedNode("n", TYPES["two"], TYPES["two"].cheapest, 0.0, initialized_s=1.0)
    state = make.cluster([TYPES["two"].node("n", TYPES["two"].cheapest)])
    for name in "ab":
        state.assume(pod(name, 500), "n", ("ab".index(name),))
    seen = Observed(2.0, {"n": node}, {"n": state.node_pods[0]}, gpu_free={"n": state.gpu_free[0]})
    assert bought(pod("c", 500), seen=seen) == ([], ("n",))
    assert bought(pod("c", 1000), seen=seen) == (["one"], ())
    assert bought(pod("c", 500), pod("d", 500), pod("e", 500), seen=seen) == (["one"], ("n",))


def test_a_file_says_how_many_gpus_and_which():
    again = parse_catalogue(written_catalogue(openb_catalogue().types).encode(), "text")
    assert [(each.gpu_count, each.gpu_model) for each in again.types] == [
        (each.gpu_count, each.gpu_model) for each in openb_catalogue().types
    ]
    node = openb_catalogue()["v100-8x96"].node("n", Offering(1.0))
    assert (node.gpu_count, node.gpu_model) == (8, "V100M32")


def test_the_fluid_bound_prices_gpus_too():
    fluid = Fluid(Catalogue((kind("plain", 0, 0.8), kind("one", 1, 2.0))))
    assert fluid.price(1000, GIB, 1000) == pytest.approx(2.0), "a device is bought with its eight cores"
    assert fluid.price(4000, GIB, 1000) == pytest.approx(2.0)
    assert fluid.price(12_000, GIB, 1000) == pytest.approx(2.4), "four cores more, of the plain type"
    assert fluid.price(8000, 0.0, 0.0) == pytest.approx(0.8)
    assert Fluid(Catalogue((kind("plain", 0, 0.8),))).price(8000, 0.0) == pytest.approx(0.8)


def test_knowing_all_pods_shares_of_different_times_take_one_device():
    """Two shares of 0.6 one after the other on one device, and beside each other on two: an hour each."""
    after = [pod("a", 600, life=3600.0), pod("b", 600, at=3600.0, life=3600.0)]
    beside = [pod("a", 600, life=3600.0), pod("b", 600, life=3600.0)]
    assert offline_bill(after, TYPES, 7200.0) == pytest.approx(2.0)
    assert offline_bill(beside, TYPES, 7200.0) == pytest.approx(1.8)
    assert fluid_bill(beside, TYPES, 7200.0) == pytest.approx(1.2 * 0.9), "1.2 devices at the price of type two"


def test_pods_get_the_gpus_that_karpenter_buys():
    task = replace(
        BILL_TASKS["bill-openb"], catalogue=TYPES, fixed_prices=True, times=NodeTimes(registration_delay_s=5.0)
    )
    supply = task.supply(np.random.default_rng(0), TYPES)
    pods = [pod("a", 600, owner="Job/a"), pod("b", 600, owner="Job/b"), pod("c", 300, owner="Job/c")]
    cluster = SimCluster((), pods, until_s=60.0, supply=supply, invariants=True)
    play(cluster, make_policy("kube-scheduler"))
    assert [node.gpu_count for node in cluster.state.nodes] == [2]
    assert cluster.metrics()["pending"] == 0
    assert cluster.metrics()["bill"] == pytest.approx(1.8, rel=0.1), "from the first batch on"


@pytest.mark.slow
def test_an_episode_of_openb_has_its_gpus_and_lifetimes():
    task = BILL_TASKS["bill-openb"]
    cluster = task.build(1000, 4, pods=60, invariants=True)
    pods = list(cluster.workload)
    play(cluster, make_policy("kube-scheduler-packing"))
    told = cluster.metrics()
    assert told["bound"] >= told["arrived"] >= 59, "the last one comes as the episode ends"
    assert any(each.gpu.total_milli % 1000 for each in pods)
    assert all(each.do_not_disrupt == (each.qos == "BE") == each.owner.startswith("Job/") for each in pods)
    assert told["fluid_ratio"] >= 1.0
    assert all(task.drawn_catalogue(1000).fits(each).any() for each in pods)


def test_gpus_are_refused_where_nobody_buys_them():
    supply = BILL_TASKS["bill"].supply(np.random.default_rng(0), Catalogue((kind("plain", 0, 1.0),)))
    with pytest.raises(UserError, match="GPUs, and no instance type has any"):
        SimCluster((), [pod("a", 500)], until_s=1.0, supply=supply)
    openb = replace(BILL_TASKS["bill-openb"], autoscaler=ClusterAutoscalerSettings())
    with pytest.raises(UserError, match="Karpenter, for types with GPUs"):
        openb.build(0)
