"""Commitments in the simulator: its meter beside an integral, and what learned nodes make of what is paid anyway."""

from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.commitments import Commitments, Pool, Reservation, SavingsPlan
from aaml.nodes.committed import CommittedNodes
from aaml.nodes.fluid import Fluid
from aaml.nodes.learned import LearnedNodes
from aaml.nodes.meter import Meter
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.ports import Delete, Observed, OwnedNode, Provision, Waiting
from support import make
from support.make import GIB

HOUR = 3600.0


def kind(name, cpu, price, *, spot=None, zones=("",)):
    allocatable = ((CPU, cpu), (MEMORY, cpu // 1000 * 4 * GIB), (PODS, 110))
    ways = [Offering(price, zone=zone) for zone in zones]
    return InstanceType(name, allocatable, (*ways, *([Offering(spot, "spot")] if spot else ())))


SMALL, LARGE, OTHER = kind("a.1", 1000, 0.10), kind("a.4", 4000, 0.36), kind("b.4", 4000, 0.40, spot=0.12)
CATALOGUE = Catalogue((SMALL, LARGE, OTHER))
PLAN = SavingsPlan(dollars_per_hour=0.18, discount=0.5, families=("a",))
RESERVED = Reservation(instance_type="b.4", count=1, dollars_per_hour=0.25)


def meter(*committed):
    plans = tuple(each for each in committed if isinstance(each, SavingsPlan))
    reserved = tuple(each for each in committed if isinstance(each, Reservation))
    held = CommittedNodes(Commitments(savings_plans=plans, reservations=reserved), CATALOGUE.types)
    return Meter(Fluid(CATALOGUE), committed=held)


def test_commitments_are_paid_before_there_is_a_node():
    found = meter(PLAN, RESERVED)
    found.hold(2 * HOUR)
    assert found.dollars == pytest.approx(2 * (0.18 + 0.25))
    found.launched(OwnedNode("n", OTHER, OTHER.offerings[0], 2 * HOUR))
    found.hold(3 * HOUR)
    assert found.dollars == pytest.approx(3 * 0.43), "it is reserved"
    found.launched(OwnedNode("m", OTHER, OTHER.offerings[1], 3 * HOUR))
    found.hold(4 * HOUR)
    assert found.dollars == pytest.approx(4 * 0.43 + 0.12), "a spot node is paid by itself"


def test_a_copy_of_a_meter_goes_its_own_way():
    found = meter(PLAN)
    twin = found.copy()
    twin.launched(OwnedNode("n", LARGE, LARGE.offerings[0], 0.0))
    found.launched(OwnedNode("m", OTHER, OTHER.offerings[0], 0.0))
    for each in (found, twin):
        each.hold(HOUR)
    assert (found.dollars, twin.dollars) == (pytest.approx(0.18 + 0.40), pytest.approx(0.18))


@pytest.mark.parametrize("seed", range(5))
def test_the_meter_is_the_integral_of_what_each_moment_costs(seed):
    """An oracle of its own: each moment anew, by hand: the reservation, then the plan from the best discount on."""
    rng, found = np.random.default_rng(seed), meter(PLAN, RESERVED)
    there, dollars, now_s = [], 0.0, 0.0
    for _ in range(60):
        step_s = float(rng.exponential(300.0))
        counts = {each.name: sum(node.type is each and node.offering.capacity_type != "spot" for node in there)
                  for each in CATALOGUE.types}  # fmt: skip
        of_a = 0.10 * counts["a.1"] + 0.36 * counts["a.4"]
        on_demand = 0.40 * max(counts["b.4"] - 1, 0) + max(of_a - 0.18 / 0.5, 0.0)
        spot = 0.12 * sum(node.offering.capacity_type == "spot" for node in there)
        dollars += (0.18 + 0.25 + on_demand + spot) * step_s / HOUR
        now_s += step_s
        found.hold(now_s)
        if there and rng.random() < 0.45:
            found.gone(there.pop(int(rng.integers(len(there)))))
        else:
            made = CATALOGUE.types[int(rng.integers(3))]
            offering = made.offerings[int(rng.integers(len(made.offerings)))]
            there.append(OwnedNode(f"n{now_s}", made, offering, now_s))
            found.launched(there[-1])
    assert found.dollars == pytest.approx(dollars)


def test_zones_tell_nodes_apart_where_a_reservation_does():
    types = (kind("a.1", 1000, 0.10, zones=("x", "y")),)
    reserved = Reservation(instance_type="a.1", count=1, dollars_per_hour=0.06, zone="x")
    held = CommittedNodes(Commitments(reservations=(reserved,)), types)
    held.add(types[0], types[0].offerings[1], 1)
    assert held.off == pytest.approx(-0.06)
    held.add(types[0], types[0].offerings[0], 1)
    assert held.off == pytest.approx(0.10 - 0.06)
    assert held.book.pools == (Pool("a.1", "x", 0.10), Pool("a.1", "", 0.10))


# ---- learned nodes ---------------------------------------------------------------------------------------------------

SOLD = Catalogue(tuple(each.of(("on-demand",)) for each in CATALOGUE.types))
EAGER = NodePolicy(idle_s=0.0, patience_s=0.0, spare_value=0.0, spare_growth=0.0, size_power=0.0, largest_share=1.0)


def learned(*committed, **numbers):
    plans = tuple(each for each in committed if isinstance(each, SavingsPlan))
    counted = tuple(each for each in committed if isinstance(each, Reservation))
    return LearnedNodes(
        replace(EAGER, **numbers), SOLD, commitments=Commitments(savings_plans=plans, reservations=counted)
    )


def reserved(count, name="b.4"):
    return Reservation(instance_type=name, count=count, dollars_per_hour=0.25)


def waiting(*pods):
    return {each.uid: Waiting(each, 0.0) for each in pods}


def ready(name, made):
    return OwnedNode(name, made, made.offerings[0], -500.0, -450.0, -400.0)


def ordered(autoscaler, seen):
    found = []
    while commands := autoscaler.act(seen):
        found += commands
        for each in commands:
            if isinstance(each, Provision):
                seen.nodes[f"new{len(seen.nodes)}"] = OwnedNode(
                    f"new{len(seen.nodes)}", each.types[0], each.types[0].offerings[0], seen.now_s
                )
                seen.waiting = {}
            else:
                for name in each.names:
                    seen.nodes[name].deleting = True
    return found


def types_of(commands):
    return sorted(each.types[0].name for each in commands if isinstance(each, Provision))


BIG = make.pod("p", 3500, 8 * GIB, owner="ReplicaSet/web")


def test_a_reserved_node_is_provisioned_before_a_cheaper_one_on_demand():
    b_reserved = reserved(1)
    assert types_of(ordered(learned(), Observed(0.0, waiting=waiting(BIG)))) == ["a.4"]
    assert types_of(ordered(learned(b_reserved), Observed(0.0, waiting=waiting(BIG)))) == ["b.4"]


def test_only_so_many_as_are_reserved():
    pods = [make.pod(f"p{number}", 3500, 8 * GIB, owner="ReplicaSet/web") for number in range(3)]
    found = types_of(ordered(learned(reserved(2)), Observed(0.0, waiting=waiting(*pods))))
    assert found == ["a.4", "b.4", "b.4"]
    used = {"n": ready("n", OTHER)}
    seen = Observed(0.0, nodes=used, pods={"n": {"q": replace(BIG, uid="q")}}, waiting=waiting(*pods))
    assert types_of(ordered(learned(reserved(2)), seen)) == ["a.4", "a.4", "b.4"]


def test_a_plan_that_is_used_up_changes_nothing():
    plan = SavingsPlan(dollars_per_hour=0.20, discount=0.5, families=("b",))
    # One b.4 at 0.20 is all that the plan pays for; the second would cost 0.40, and a.4 costs 0.36.
    pods = [make.pod(f"p{number}", 3500, 8 * GIB, owner="ReplicaSet/web") for number in range(2)]
    assert types_of(ordered(learned(plan), Observed(0.0, waiting=waiting(*pods)))) == ["a.4", "b.4"]
    # With a dime left the second costs 0.40 - 0.20, which is less than 0.36.
    more = SavingsPlan(dollars_per_hour=0.30, discount=0.5, families=("b",))
    assert types_of(ordered(learned(more), Observed(0.0, waiting=waiting(*pods)))) == ["b.4", "b.4"]


def deleted(commands):
    return sorted(name for each in commands if isinstance(each, Delete) for name in each.names)


def test_empty_nodes_stay_that_are_paid_for_anyway():
    def seen():
        nodes = [ready("x", OTHER), ready("y", OTHER), ready("z", OTHER), ready("s", SMALL)]
        return Observed(0.0, nodes={each.name: each for each in nodes})

    assert deleted(ordered(learned(), seen())) == ["s", "x", "y", "z"]
    found = deleted(ordered(learned(reserved(2)), seen()))
    assert len(found) == 2, "one on demand of each type"
    assert "s" in found


def test_pods_move_from_nodes_on_demand_to_those_that_are_paid_for_anyway():
    small = make.pod("q", 500, GIB, owner="ReplicaSet/web")

    def seen():
        nodes = [ready("x", OTHER), ready("s", LARGE)]
        return Observed(
            100.0, nodes={each.name: each for each in nodes},
            pods={"x": {"p": replace(small, uid="p")}, "s": {"q": replace(small, uid="q")}},
        )  # fmt: skip

    moving = {"eviction_dollars": 0.001, "horizon_s": 1000.0, "most_at_once": 1.0}
    assert deleted(ordered(learned(**moving), seen())) == ["x"], "the dearer of two"
    assert deleted(ordered(learned(reserved(1), **moving), seen())) == ["s"], "the other is paid anyway"
    both = deleted(ordered(learned(reserved(1), reserved(1, "a.4"), **moving), seen()))
    assert both == [], "neither saves anything"


def test_commitments_that_are_for_no_type_here_change_nothing():
    seen = Observed(0.0, waiting=waiting(BIG))
    none = SavingsPlan(dollars_per_hour=9.0, discount=0.5, families=("c",))
    assert types_of(ordered(learned(none), seen)) == ["a.4"]
