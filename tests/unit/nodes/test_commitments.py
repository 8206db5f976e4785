"""Savings plans and reservations: what nodes cost with them, by AWS's published examples and by brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aaml.cli import run as command
from aaml.cluster.kernels import interpreted
from aaml.errors import UserError
from aaml.nodes.commitments import Commitments, Covered, Pool, Reservation, SavingsPlan, read_commitments, settle
from aaml.nodes.usage import Usage

HOUR = 3600.0
# AWS's own example (Savings Plans User Guide, "Understanding how Savings Plans apply to your usage"): an hour of four
# r5.4xlarge, one m5.24xlarge, 400 vCPU and 1,600 GB of Fargate; on demand, and at the rates of a Compute plan.
R5, M5 = Pool("r5.4xlarge", "us-east-1a", 1.0), Pool("m5.24xlarge", "us-east-1a", 10.0)
VCPU, GB = Pool("fargate.vcpu", "", 0.04), Pool("fargate.gb", "", 0.004)
POOLS, USAGE = (R5, M5, VCPU, GB), (4, 1, 400, 1600)
RATES = {"r5": 0.30, "m5": 0.18, "fargate": 0.25}


def compute(dollars):
    return SavingsPlan(dollars_per_hour=dollars, discount=0.0, discounts=RATES)


def settled(usage=USAGE, pools=POOLS, hours=1.0, **committed):
    return Commitments(**committed).over(pools).settled(usage, hours)


def test_aws_scenario_1_a_plan_that_covers_all_usage():
    found = settled(savings_plans=(compute(50.0),))
    # 4 x 0.70, 8.20, 400 x 0.03, 1,600 x 0.003.
    assert found.used.tolist() == pytest.approx([2.80 + 8.20 + 12.00 + 4.80])
    assert found.total.on_demand == 0.0
    assert found.total.paid == 50.0, "the commitment is paid whether it is used or not"
    assert found.total.unused == pytest.approx(50.0 - 27.80)
    assert found.total.covered == pytest.approx(4.0 + 10.0 + 16.0 + 6.4)


def test_aws_scenario_2_a_plan_that_covers_some_usage():
    found = settled(savings_plans=(compute(2.0),))
    # The highest discount first: about 2.9 units of r5, and 1.14 dollars of r5 on demand.
    assert found.covered[0] == pytest.approx(2.0 / 0.7)
    assert found.on_demand[0] == pytest.approx(1.14, abs=0.005)
    assert found.on_demand[1:].tolist() == pytest.approx([10.0, 16.0, 6.4])
    assert found.total.unused == 0.0


def test_aws_scenario_3_reservations_are_used_before_plans():
    reserved = Reservation(instance_type="r5.4xlarge", count=2, dollars_per_hour=0.6)
    found = settled(savings_plans=(compute(18.20),), reservations=(reserved,))
    # Two of r5 are reserved; the others at 0.70, Fargate at 12.00 and 4.80 exhaust 18.20; m5 is on demand.
    assert found.used.tolist() == pytest.approx([1.2, 18.20])
    assert found.on_demand.tolist() == pytest.approx([0.0, 10.0, 0.0, 0.0])


def test_aws_scenario_4_a_plan_of_a_family_is_used_before_one_of_all():
    of_r5 = SavingsPlan(dollars_per_hour=3.0, discount=0.4, families=("r5",))
    found = settled(savings_plans=(compute(16.80), of_r5))
    # r5 at 0.60 is 2.40 of the 3.00; the other plan is exhausted by Fargate.
    assert found.used.tolist() == pytest.approx([16.80, 2.40])
    assert found.on_demand.tolist() == pytest.approx([0.0, 10.0, 0.0, 0.0])
    assert found.total.unused == pytest.approx(0.60)


def test_a_reservation_of_a_zone_is_used_before_one_of_any_zone():
    pools = (Pool("m", "a", 1.0), Pool("m", "b", 1.0))
    any_zone = Reservation(instance_type="m", count=1, dollars_per_hour=0.5)
    in_a = Reservation(instance_type="m", count=1, dollars_per_hour=0.5, zone="a")
    both = settled((1, 1), pools, reservations=(any_zone, in_a))
    assert both.on_demand.tolist() == [0.0, 0.0], "the one of any zone is left for b"
    assert settled((0, 1), pools, reservations=(in_a,)).on_demand.tolist() == [0.0, 1.0]


def test_reservations_take_dear_nodes_first_and_nodes_that_were_launched_as_reserved_before_all():
    pools = (Pool("m", "a", 1.0), Pool("m", "b", 1.2), Pool("m", "a", 1e-7, "reserved"))
    one = Reservation(instance_type="m", count=1, dollars_per_hour=0.5)
    assert settled((1, 1, 0), pools, reservations=(one,)).on_demand.tolist() == [1.0, 0.0, 0.0]
    assert settled((1, 1, 1), pools, reservations=(one,)).on_demand.tolist() == [1.0, 1.2, 0.0]
    plan = SavingsPlan(dollars_per_hour=9.0, discount=0.5)
    assert settled((0, 0, 1), pools, savings_plans=(plan,)).used.tolist() == [0.0], "plans are for nodes on demand"


# ---- brute force -----------------------------------------------------------------------------------------------------

UNITS = 4  # parts of a node
PRICES = (1.0, 2.0, 4.0)
KINDS = ("a.1", "a.2", "b.4")


def cheapest(nodes, plan, reservations):
    """The least that can be paid: every way to give reserved instances, and parts of nodes to the plan, is tried."""
    committed = (plan.dollars_per_hour if plan else 0.0) + sum(
        each.count * each.dollars_per_hour for each in reservations
    )
    least = np.inf
    ways = [range(min(count * UNITS, UNITS * nodes[kind_of(each)]) + 1) for each, count in with_counts(reservations)]
    for given_to in product(*ways):
        left = [count * UNITS for count in nodes]
        for (each, _), parts in zip(with_counts(reservations), given_to, strict=True):
            left[kind_of(each)] -= parts
        if min(left) < 0:
            continue
        for planned in product(*(range(each + 1) for each in left)) if plan else [(0, 0, 0)]:
            discounts = [plan.discount_of(kind) if plan else None for kind in KINDS]
            if any(parts and discount is None for parts, discount in zip(planned, discounts, strict=True)):
                continue
            rate = sum(
                parts / UNITS * price * (1 - (discount or 0.0))
                for parts, price, discount in zip(planned, PRICES, discounts, strict=True)
            )
            if plan is None or rate <= plan.dollars_per_hour + 1e-9:
                rest = sum(
                    (all_ - some) / UNITS * price for all_, some, price in zip(left, planned, PRICES, strict=True)
                )
                least = min(least, committed + rest)
    return least


def kind_of(reservation):
    return KINDS.index(reservation.instance_type)


def with_counts(reservations):
    return [(each, each.count) for each in reservations]


@st.composite
def cases(draw):
    """Discounts and amounts such that a plan ends at a quarter of a node: what brute force can try."""
    nodes = draw(st.tuples(*[st.integers(0, 2)] * 3))
    discounts = draw(st.tuples(*[st.sampled_from([0.0, 0.25, 0.5])] * 3))
    families = draw(st.sampled_from([(), ("a",), ("b",)]))
    plan = draw(st.one_of(st.none(), st.integers(0, 40).map(lambda parts: SavingsPlan(
        dollars_per_hour=parts / 8, discount=0.0, discounts=dict(zip(KINDS, discounts, strict=True)), families=families,
    ))))  # fmt: skip
    reservations = draw(st.lists(st.builds(
        Reservation, instance_type=st.sampled_from(KINDS), count=st.integers(0, 2), dollars_per_hour=st.just(0.5),
    ), max_size=2))  # fmt: skip
    return nodes, plan, tuple(reservations)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_with_one_plan_no_other_way_to_use_commitments_pays_less(case):
    """Reservations first, then the highest discount, is AWS's order: for a single plan it is the best one too."""
    nodes, plan, reservations = case
    pools = [Pool(kind, "", price) for kind, price in zip(KINDS, PRICES, strict=True)]
    found = settled(nodes, pools, savings_plans=(plan,) if plan else (), reservations=reservations).total
    least = cheapest(nodes, plan, reservations)
    # Brute force tries quarters of nodes only, so it may leave less than a quarter of the dearest node to the plan.
    assert found.paid <= least + 1e-9
    assert found.paid >= least - (PRICES[-1] / UNITS if plan else 1e-9)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(0, 5), min_size=4, max_size=4),
    st.lists(st.tuples(st.floats(0, 20), st.floats(0, 0.9), st.booleans()), max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["r5.4xlarge", "m5.24xlarge"])), max_size=2),
    st.floats(0.1, 1.0),
)
def test_every_dollar_is_accounted_for(nodes, plans, reserved, hours):
    committed = Commitments(
        savings_plans=tuple(
            SavingsPlan(dollars_per_hour=dollars, discount=discount, families=("r5",) if narrow else ())
            for dollars, discount, narrow in plans
        ),
        reservations=tuple(
            Reservation(instance_type=kind, count=count, dollars_per_hour=0.3) for count, kind in reserved
        ),
    )
    book = committed.over(POOLS)
    found = book.settled(nodes, hours)
    price = float(np.dot(nodes, book.prices))
    assert found.total.covered + found.total.on_demand == pytest.approx(price), "each node is paid for once"
    assert found.total.committed == pytest.approx(book.fixed * hours)
    assert (found.used <= found.committed + 1e-9).all()
    assert (found.on_demand >= 0.0).all()
    assert found.costs.sum() + found.total.unused == pytest.approx(found.total.paid), "owners' parts add up"
    more = book.settled([*nodes[:-1], nodes[-1] + 1.0], hours).total.paid
    assert -1e-9 <= more - found.total.paid <= book.prices[-1] + 1e-9, "a node adds its price at most"
    # Compiled, it is the same to the bit.
    memory = [(np.zeros(len(POOLS)), np.zeros(len(book.amounts)), np.zeros(len(book.steps))) for _ in range(2)]
    for rule, arrays in zip((settle, interpreted(settle)), memory, strict=True):
        rule(book.amounts, book.steps, book.prices, np.array(nodes), hours, *arrays)
    assert all(np.array_equal(one, other) for one, other in zip(*memory, strict=True))


# ---- by the clock hour -----------------------------------------------------------------------------------------------


def test_nodes_after_one_another_in_an_hour_use_one_reservation():
    """AWS's own example (Reserved Instances and Other Reservation Models, "Usage billing"), m4.xlarge."""
    pool = Pool("m4.xlarge", "a", 1.0)
    one = Commitments(reservations=(Reservation(instance_type="m4.xlarge", count=1, dollars_per_hour=0.6),))

    def total(*spans):
        usage = Usage()
        usage.observe(7 * HOUR, 8 * HOUR)
        for since_s, until_s in spans:
            usage.add(pool, 7 * HOUR + since_s, 7 * HOUR + until_s)
        return usage.by_hour(one).total

    assert total(*[(0, 3600)] * 4).on_demand == pytest.approx(3.0), "four for an hour: three hours on demand"
    assert total(*[(0, 900)] * 4).on_demand == 0.0, "four for a quarter, at once: one hour of the reservation"
    assert total((0, 900), (900, 1800)).unused == pytest.approx(0.3)


def test_an_hour_is_settled_by_itself():
    pool, usage = Pool("m", "a", 1.0), Usage()
    usage.observe(0.0, 2.5 * HOUR)
    usage.add(pool, 0.5 * HOUR, 1.5 * HOUR)
    usage.add(pool, 1.0 * HOUR, 2.0 * HOUR)
    plan = SavingsPlan(dollars_per_hour=0.5, discount=0.5)
    found = usage.by_hour(Commitments(savings_plans=(plan,))).settled()
    # Node-hours 0.5, 1.5 and 0; the plan pays for one node-hour an hour, and the last hour was half looked at.
    assert [each.total for each in found] == [
        Covered(0.5, 0.25, 0.5, 0.0), Covered(0.5, 0.0, 1.0, 0.5), Covered(0.25, 0.25, 0.0, 0.0),
    ]  # fmt: skip


# ---- the file --------------------------------------------------------------------------------------------------------

FILE = """
apiVersion: aaml.dev/v1
kind: Commitments
spec:
  savingsPlans:
    - {dollarsPerHour: 1.5, discount: 0.28, discounts: {c5: 0.31}}
    - {name: ours, dollarsPerHour: 2, discount: 0.41, families: [m5]}
  reservations:
    - {instanceType: c5.xlarge, zone: us-east-1a, count: 3, dollarsPerHour: 0.107}
"""


def written(path, text=FILE):
    path.write_text(text)
    return path


def test_a_file_is_read(tmp_path):
    found = read_commitments(written(tmp_path / "c.yaml"), ["m5.large", "c5.xlarge"])
    assert found.names == ("3 reserved c5.xlarge in us-east-1a", "savings plan 1: all types", "ours")
    assert found.amounts.tolist() == [3.0, 1.5, 2.0]
    assert found.unit_dollars.tolist() == [0.107, 1.0, 1.0]
    assert [found.savings_plans[0].discount_of(kind) for kind in ("c5.xlarge", "m5.large")] == [0.31, 0.28]
    assert [found.savings_plans[1].discount_of(kind) for kind in ("c5.xlarge", "m5.large")] == [None, 0.41]
    assert hash(found.reservations[0])


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("discount: 0.28", "discount: 28", r"spec\.savingsPlans\[0\]\.discount: .*< 1.*28"),
        ("discount: 0.28", "discount: -0.1", r"spec\.savingsPlans\[0\]\.discount: .*-0\.1"),
        ("dollarsPerHour: 1.5", "dollarsPerHour: -1", r"savingsPlans\[0\]\.dollarsPerHour: .*-1"),
        ("dollarsPerHour: 1.5", "dollarsPerHour: .nan", "finite"),
        ("dollarsPerHour: 1.5", "dollarsPerHour: true", r"dollarsPerHour: .*True"),
        ("dollarsPerHour: 1.5, ", "", "missing required field `dollarsPerHour`"),
        ("count: 3", "count: 2.5", r"reservations\[0\]\.count"),
        ("count: 3", "counts: 3", "unknown field `counts`; did you mean count"),
        ("families: [m5]", "families: [m6]", r"savingsPlans\[1\]\.families: 'm6' is not accepted.*m5"),
        ("instanceType: c5.xlarge", "instanceType: c5.xlrge", "did you mean c5.xlarge"),
        ("discounts: {c5: 0.31}", "discounts: {c6: 0.31}", r"discounts: 'c6' is not accepted"),
        ("discount: 0.41,", "discount: 0.41, discounts: {c5: 0.2},", r"savingsPlans\[1\]\.discounts: 'c5'.*m5"),
        ("kind: Commitments", "kind: Commitment", "a YAML file with a Commitments of aaml.dev/v1"),
    ],
)
def test_a_wrong_file_is_told_in_a_line(tmp_path, old, new, told):
    assert old in FILE
    with pytest.raises(UserError, match=told) as caught:
        read_commitments(written(tmp_path / "c.yaml", FILE.replace(old, new)), ["m5.large", "c5.xlarge"])
    assert "\n" not in str(caught.value)


def test_a_file_without_a_commitment_is_refused(tmp_path):
    with pytest.raises(UserError, match="savingsPlans or reservations"):
        read_commitments(written(tmp_path / "c.yaml", "{apiVersion: aaml.dev/v1, kind: Commitments, spec: {}}"))


def test_commands_tell_a_wrong_file_before_a_cluster_is_asked(tmp_path, capsys):
    path = written(tmp_path / "c.yaml", FILE.replace("dollarsPerHour: 2", "dollarsPerHour: two"))
    for name in ("bill", "autoscale"):
        assert command(name, ["--commitments", str(path)]) == 2
        told = capsys.readouterr().err
        assert "spec.savingsPlans[1].dollarsPerHour" in told
        assert "'two'" in told
