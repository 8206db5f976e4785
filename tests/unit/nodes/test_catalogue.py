"""Instance types: Karpenter's file format, what is kept from pods, prices; the LP relaxation and the meter, by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest

from aaml.cluster.objects import ARCH_LABEL, CAPACITY_TYPE_LABEL, ZONE_LABEL
from aaml.errors import UserError
from aaml.nodes.catalogue import Catalogue, Offering
from aaml.nodes.catalogue_file import parse_catalogue, parse_types, read_catalogue, shipped_catalogue, written_catalogue
from aaml.nodes.fluid import Fluid
from aaml.nodes.meter import Meter
from aaml.nodes.ports import OwnedNode
from aaml.nodes.requirements import only
from support.nodes_to_buy import CATALOGUE, GIB, SMALL, kind, pod


def offering(price, capacity_type="on-demand", zone="test-zone-a"):
    return {
        "Price": price,
        "Available": True,
        "Requirements": [
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity_type]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]},
        ],
    }


def entry(name="c-2x", **changes):
    return {
        "name": name,
        "offerings": [offering(0.0416, "spot"), offering(0.0542), offering(0.06, zone="test-zone-b")],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": "2", "ephemeral-storage": "20Gi", "memory": "4Gi", "pods": "32"},
        **changes,
    }


def parsed(*entries, **options):
    return parse_catalogue(json.dumps(entries).encode(), "types.json", **options)


def test_a_file_of_karpenters_kwok_provider_is_read_with_what_it_keeps_from_pods():
    (read,) = parsed(entry()).types
    assert dict(read.allocatable) == {
        "cpu": 1900, "memory": (4096 - 10) << 20, "ephemeral-storage": 20 << 30, "pods": 32
    }  # fmt: skip
    assert read.offerings == (
        Offering(0.0542, "on-demand", "test-zone-a"),
        Offering(0.06, "on-demand", "test-zone-b"),
    )
    assert read.cheapest.price == 0.0542
    assert read.worst_price() == 0.06
    node = read.node("n", read.cheapest)
    assert node.labels["node.kubernetes.io/instance-type"] == "c-2x"
    assert node.labels["topology.kubernetes.io/zone"] == "test-zone-a"


def test_architecture_operating_system_and_capacity_type_choose():
    windows, arm = entry("w", operatingSystems=["windows"]), entry("a", architecture="arm64")
    old = entry("x", architecture="x86_64")
    assert [each.name for each in parsed(entry(), windows, arm, old).types] == ["c-2x", "x"]
    assert [each.name for each in parsed(windows, arm, labels={ARCH_LABEL: only("arm64")}).types] == ["a"]
    (spot,) = parsed(entry(), labels={CAPACITY_TYPE_LABEL: only("spot", "on-demand")}).types
    assert spot.cheapest == Offering(0.0416, "spot", "test-zone-a")
    assert spot.worst_price() == 0.0416, "spot is launched before on-demand"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "instance types: types.json: is not JSON.*expected a JSON list"),
        (b'[{"name": "x"}]', "missing required field"),
        (b"[]", "types.json: instance types.*at least one type with an offering"),
        (json.dumps([entry(offerings=[offering(-1.0)])]).encode(), "JSON list"),
        (json.dumps([entry(offerings=[offering(1.0, "free")])]).encode(), "'free' is not accepted; expected one of"),
        (json.dumps([entry(resources={"cpu": "two"})]).encode(), "two"),
        (
            json.dumps([entry(resources={"cpu": "2"})]).encode(),
            r"\[0\] c-2x: resources: memory: 'none' is not accepted",
        ),
        (
            json.dumps([entry(resources={"cpu": "100m", "memory": "1Gi"})]).encode(),
            "types.json: instance types.*at least one type with an offering",
        ),
        (json.dumps([entry(resources={"cpu": "2", "memory": "9Ei"})]).encode(), "memory: '9Ei' .* at most 1Pi"),
        (json.dumps([entry(resources={"cpu": 10**30, "memory": "1Gi"})]).encode(), "whole numbers of 64 bits"),
        (
            json.dumps([entry(offerings=[offering(0.0)])]).encode(),
            "c-2x: Price: 0.0 is not accepted; .*a price above 0",
        ),
        (json.dumps([entry("a"), entry("b"), entry("a")]).encode(), r"name of \[0\] and \[2\]: 'a' is not accepted"),
        (json.dumps([entry(colour="red")]).encode(), "unknown field `colour`; expected one of name, offerings,"),
        (json.dumps([entry(offerings=[{**offering(1.0), "Availabel": False}])]).encode(), "did you mean Available"),
        (json.dumps([entry(operatingSystems=[])]).encode(), "operatingSystems: Expected `array` of length >= 1"),
        (json.dumps([entry(architecture="arm64")]).encode(), "on kubernetes.io/arch: 'amd64' .* some of arm64"),
        (b'[{"name": "a", "name": "b"}]', "key 'name' stands twice"),
    ],
)
def test_a_file_that_says_something_else_is_told_in_a_line(text, said):
    with pytest.raises(UserError, match=said) as told:
        parse_catalogue(text, "types.json")
    assert "\n" not in str(told.value)


def test_a_type_without_room_for_pods_is_left_out_and_keeps_its_price(caplog):
    full = entry("nano", resources={"cpu": "2", "memory": "0"})
    left = parse_catalogue(json.dumps([entry("roomy"), full]).encode(), "types.json")
    assert [kind.name for kind in left.types] == ["roomy"]
    assert caplog.messages == ["types.json: no room for pods beside the kubelet, left out: nano"]
    priced = parse_types(json.dumps([full]).encode(), "types.json", every=True)
    assert [kind.cheapest.price for kind in priced] == [entry()["offerings"][0]["Price"]]


def with_requirements(*requirements):
    return {"Price": 1.0, "Requirements": list(requirements)}


def asked(key, operator, *values):
    return {"key": key, "operator": operator, "values": list(values)}


def test_an_offering_is_one_for_each_capacity_type_and_zone_that_all_its_requirements_allow():
    several = with_requirements(
        asked(CAPACITY_TYPE_LABEL, "In", "spot", "on-demand"), asked(ZONE_LABEL, "In", "a", "b", "c"),
        asked("failure-domain.beta.kubernetes.io/zone", "In", "c", "b"),
    )  # fmt: skip
    (read,) = parsed(entry(offerings=[several]), labels={}).types
    assert set(read.offerings) == {Offering(1.0, kind, zone) for kind in ("spot", "on-demand") for zone in ("b", "c")}


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        (asked(CAPACITY_TYPE_LABEL, "NotIn", "spot"), "'NotIn spot' is not accepted; expected the operator In"),
        (asked(ZONE_LABEL, "Exists"), "'Exists' is not accepted; expected the operator In"),
        (asked(ZONE_LABEL, "In"), "'In' is not accepted; expected the operator In with values"),
    ],
)
def test_another_operator_of_an_offering_is_refused_and_not_taken_for_in(requirement, said):
    with pytest.raises(UserError, match=said):
        parsed(entry(offerings=[with_requirements(requirement)]), labels={})


def test_labels_of_offerings_that_nobody_reads_are_named(caplog):
    parsed(entry(offerings=[with_requirements(asked("topology.k8s.aws/zone-id", "In", "use1-az1"))]))
    assert "types.json: not modelled here: offerings' label topology.k8s.aws/zone-id" in caplog.text


def test_a_type_that_is_not_available_is_left_out_and_named(caplog):
    sold_out = {**offering(0.01), "Available": False}
    assert [each.name for each in parsed(entry("gone", offerings=[sold_out]), entry()).types] == ["c-2x"]
    assert "types.json: no available offering, left out: gone" in caplog.text
    with pytest.raises(UserError, match="at least one type with an offering"):
        parsed(entry("gone", offerings=[sold_out]))


def test_variants_of_a_name_are_one_type_and_linux_on_amd64_goes_first(caplog):
    """As in `kwok/examples/aws_instance_types.json`: t1.micro is there four times."""
    kinds = [(arch, [os]) for arch in ("i386", "x86_64") for os in ("windows", "linux")]
    listed = [entry("t1.micro", architecture=arch, operatingSystems=os) for arch, os in kinds]
    (read,) = parsed(*listed, labels={}).types
    assert (read.arch, read.os) == ("amd64", "linux")
    left_out = "t1.micro (linux, i386), t1.micro (windows, amd64), t1.micro (windows, i386)"
    assert f"one type a name, left out: {left_out}" in caplog.text


def test_a_catalogue_has_each_name_once_and_prices_above_0():
    with pytest.raises(UserError, match="'a' is not accepted; expected each name once"):
        Catalogue((kind("a", 4, 1.0), kind("a", 32, 1.0)))
    with pytest.raises(UserError, match=r"instance type free: Price: 0\.0 is not accepted"):
        Catalogue((kind("free", 4, 0.0),))
    with pytest.raises(UserError, match="instance type none: offerings"):
        Catalogue((replace(kind("none", 4, 1.0), offerings=()),))


def test_a_file_that_is_not_there_is_told_in_a_line(tmp_path):
    with pytest.raises(UserError, match=r"instance types: .*none.json.* is not accepted; expected a file that can be"):
        read_catalogue(tmp_path / "none.json")


def test_the_catalogue_that_ships_has_shapes_that_are_no_powers_of_two_and_is_written_as_it_is_read():
    ours = shipped_catalogue()
    cores = {(dict(each.allocatable)["cpu"] + 100) // 1000 for each in ours.types}
    assert {3, 6, 7, 12, 20} <= cores
    assert all(each.watts_idle > 0.0 < each.watts_per_core for each in ours.types)
    assert parse_catalogue(written_catalogue(ours.types).encode(), "ours") == ours
    assert list(ours.prices) == sorted(ours.prices)


def test_the_fluid_price_is_the_least_mix_of_types():
    # A dollar buys 2 cores and 4 GiB (lean) or 1 core and 8 GiB (fat). 3 cores and 12 GiB are one of each, 2 dollars.
    fluid = Fluid(Catalogue((kind("lean", 2, 1.0, gib=4), kind("fat", 2, 2.0, gib=16))))
    assert fluid.price(3000, 12 * GIB) == pytest.approx(2.0)
    assert fluid.price(2000, 1 * GIB) == pytest.approx(1.0), "memory is left over"
    assert fluid.price(0, 16 * GIB) == pytest.approx(2.0)
    assert fluid.price(0, 0) == 0.0


def test_types_that_are_worth_less_than_others_do_not_count():
    best = Fluid(Catalogue((kind("a", 4, 1.0),)))
    more = Fluid(Catalogue((kind("a", 4, 1.0), kind("dear", 4, 1.5), kind("small", 1, 0.3))))
    for cores, gib in ((1, 1), (5, 3), (2, 40)):
        assert more.price(1000 * cores, gib * GIB) == pytest.approx(best.price(1000 * cores, gib * GIB))


def test_the_fluid_price_is_that_of_the_linear_programme():
    rng = np.random.default_rng(7)
    types = [kind(f"k{n}", int(rng.integers(1, 40)), float(rng.uniform(0.1, 3.0)), gib=int(rng.integers(1, 90)))
             for n in range(25)]  # fmt: skip
    fluid = Fluid(Catalogue(tuple(types)))
    rates = [(dict(each.allocatable)["cpu"] / 1000, dict(each.allocatable)["memory"] / GIB, each.cheapest.price)
             for each in types]  # fmt: skip
    for cores, gib in rng.uniform(0.0, 50.0, (40, 2)).tolist():
        cheapest = min(  # the optimum has at most two types
            price
            for one in rates
            for other in rates
            for price in [_covered(one, other, cores, gib)]
            if price is not None
        )
        assert fluid.price(1000 * cores, gib * GIB) == pytest.approx(cheapest)


def _covered(one, other, cores, gib):
    """Return the price of amounts of two types that cover a request, None where they cannot both be exact."""
    if one is other:
        return max(cores / one[0], gib / one[1]) * one[2]
    area = one[0] * other[1] - other[0] * one[1]
    if not area:
        return None
    x, y = (cores * other[1] - other[0] * gib) / area, (one[0] * gib - cores * one[1]) / area
    return x * one[2] + y * other[2] if min(x, y) >= 0 else None


def test_a_meter_counts_dollars_energy_and_carbon_of_each_hour():
    watts = kind("w", 2, 0.5, watts_idle=100.0, watts_per_core=50.0)
    meter = Meter(Fluid(Catalogue((watts,))), carbon_g_per_kwh=(100.0, 400.0))
    node = OwnedNode("n", watts, watts.cheapest, 0.0)
    meter.launched(node)
    meter.hold(1800.0)
    meter.placed(pod("p", 1), node)
    meter.hold(5400.0)  # half of the second hour, in which a kWh is 400 g
    meter.gone(node)
    meter.placed(pod("p", 1), node, -1)
    meter.hold(7200.0)
    told = meter.metrics(7200.0)
    assert told["bill"] == pytest.approx(0.375), "0.5 dollars an hour for an hour and a half, in two"
    assert told["bill_per_core_hour"] == pytest.approx(0.75)
    assert told["fluid_ratio"] == pytest.approx(0.75 / 0.25)
    assert told["mean_nodes"] == pytest.approx(0.75)
    assert told["nodes_bought"] == 1
    # 100 W for half an hour, 150 W for an hour: 0.05 and 0.15 kWh; the first 0.125 kWh at 100 g, then 0.075 at 400 g.
    assert told["power_kw"] == pytest.approx(0.1)
    assert told["co2_kg_per_hour"] == pytest.approx((0.125 * 100 + 0.075 * 400) / 1000 / 2)


def test_types_are_cheapest_first_and_found_by_name():
    assert [each.name for each in Catalogue(tuple(reversed(CATALOGUE.types))).types] == ["small", "medium", "large"]
    assert CATALOGUE["small"] is SMALL
    with pytest.raises(UserError, match="at least one type"):
        Catalogue(())


def test_a_pod_fits_a_type_that_is_sold_where_it_selects_and_by_former_names_of_labels():
    ways = (Offering(1.0, zone="a"), Offering(1.0, zone="b"), Offering(2.0, "spot", "c"))
    catalogue = Catalogue((replace(SMALL, offerings=ways),))
    for zone, some, launched in (("a", True, False), ("c", True, False), ("d", False, False)):
        asks = pod("p", node_selector={"failure-domain.beta.kubernetes.io/zone": zone})
        assert catalogue.fits(asks).tolist() == [some]
        assert catalogue.fits(asks, launched=True).tolist() == [launched], "any of the cheapest may be launched"
    asks = pod("p", node_selector={"beta.kubernetes.io/os": "linux"})
    assert catalogue.fits(asks, launched=True).tolist() == [True]
    assert catalogue.types[0].node("n", ways[0]).labels["beta.kubernetes.io/os"] == "linux", "kubelets set it still"
