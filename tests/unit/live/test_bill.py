"""The running bill: what nodes cost by their labels, for whose pods, and what they have cost since a time."""

import json
import re
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aaml.cli import run as command
from aaml.cluster.objects import (
    ARCH_LABEL,
    CAPACITY_TYPE_LABEL,
    CONTROL_PLANE_LABEL,
    OS_LABEL,
    PRICE_LABEL,
    TYPE_LABEL,
    ZONE_LABEL,
)
from aaml.commands.bill import _since
from aaml.errors import UserError
from aaml.kube.transport import Transport
from aaml.kube.watcher import ClusterWatch
from aaml.live.bill import RunningBill, follow
from aaml.nodes.catalogue_file import read_types
from aaml.nodes.commitments import Commitments, Covered, Reservation, SavingsPlan
from aaml.nodes.prices import PriceList, usd
from support import make
from support.make import GIB
from support.scripted_api import one_node

HOUR = 3600.0


def typed(name, kind, bought="on-demand", created_s=0.0, **more):
    labels = {TYPE_LABEL: kind, CAPACITY_TYPE_LABEL: bought, **more}
    return make.node(name, labels=labels, created_s=created_s)  # four cores, 8 GiB


def offering(price, bought, zone):
    return {"Price": price, "Requirements": [
        {"key": CAPACITY_TYPE_LABEL, "operator": "In", "values": [bought]},
        {"key": ZONE_LABEL, "operator": "In", "values": [zone]}]}  # fmt: skip


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "types.json"
    offers = [offering(0.16, "on-demand", "a"), offering(0.20, "on-demand", "b"), offering(0.05, "spot", "a")]
    path.write_text(json.dumps([
        {"name": "m4", "architecture": "arm64", "resources": {"cpu": "4", "memory": "8Gi"}, "offerings": offers},
        {"name": "m4", "operatingSystems": ["windows"], "resources": {"cpu": "4", "memory": "8Gi"},
         "offerings": [offering(0.3, "on-demand", "a")]},
    ]))  # fmt: skip
    return path


@pytest.fixture
def prices(file):
    return PriceList.read(file)


def test_a_node_costs_what_its_offering_does(prices):
    assert prices.price(typed("n", "m4", **{ZONE_LABEL: "a"})) == 0.16
    assert prices.price(typed("n", "m4", "spot", **{ZONE_LABEL: "a"})) == 0.05
    assert prices.price(typed("n", "m4")) == 0.20, "where the zone is not told, the dearest"
    assert prices.price(typed("n", "m4", **{ZONE_LABEL: "a", OS_LABEL: "windows"})) == 0.3
    on_eks = make.node("n", labels={TYPE_LABEL: "m4", "eks.amazonaws.com/capacityType": "SPOT"})
    assert prices.price(on_eks) == 0.05, "a cloud's own label says spot too"


def test_a_node_costs_what_its_offering_does_also_where_that_is_not_available_any_more(tmp_path):
    path = tmp_path / "types.json"
    gone = {**offering(0.16, "on-demand", "a"), "Available": False}
    path.write_text(json.dumps([{"name": "m4", "resources": {"cpu": "4", "memory": "8Gi"}, "offerings": [gone]}]))
    assert PriceList.read(path).price(typed("n", "m4", **{ZONE_LABEL: "a"})) == 0.16


def test_a_node_costs_what_its_architecture_does(tmp_path):
    entries = [
        {"name": "x", "architecture": arch, "resources": {"cpu": "4", "memory": "8Gi"}, "offerings": [{"Price": price}]}
        for arch, price in (("amd64", 1.0), ("arm64", 5.0))
    ]
    (path := tmp_path / "types.json").write_text(json.dumps(entries))
    prices = PriceList.read(path)
    found = [prices.price(typed("n", "x", **{ARCH_LABEL: arch})) for arch in ("amd64", "arm64", "riscv64")]
    assert found == [1.0, 5.0, 5.0], "the dearest where its own is not listed"


def test_a_type_that_is_not_listed_costs_what_its_node_says(prices):
    assert prices.price(typed("n", "x9", **{PRICE_LABEL: "1.250000"})) == 1.25
    assert prices.price(typed("n", "x9", **{PRICE_LABEL: "dear"})) is None
    assert prices.price(typed("n", "m4", "reserved")) is None, "it is not offered so"
    assert prices.price(make.node("n")) is None


def test_without_a_file_the_types_that_ship_have_their_prices():
    kind = read_types(None)[0]
    assert PriceList.read(None).price(kind.node("n", kind.offerings[1])) == kind.offerings[1].price
    assert PriceList.read(None).price(typed("n", kind.name)) == kind.offerings[0].price
    assert PriceList.read(None).price(typed("n", kind.name, **{PRICE_LABEL: "9.5"})) == 9.5, "it is somebody's own type"


def test_a_file_counts_before_what_a_node_says(prices):
    assert prices.price(typed("n", "m4", **{PRICE_LABEL: "9.5"})) == 0.20


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(0.0, "0.0000"), (-0.0, "0.0000"), (1e-17, "0.0000"), (0.16, "0.1600"), (12.34567, "12.3457"),
     (0.000949, "0.00095"), (0.00004, "0.000040"), (-0.0000123, "-0.000012")],
)  # fmt: skip
def test_a_price_shows_two_digits_at_least(amount, shown):
    assert usd(amount) == shown


def test_prices_are_divided_among_owners_and_what_is_idle(prices):
    web = make.pod("w1", 2000, 4 * GIB, owner="ReplicaSet/web-7d9", labels={"pod-template-hash": "7d9"})
    again = replace(web, name="w2", uid="w2")
    job = make.pod("j", 1000, 0, owner="Job/sums")
    other = make.pod("o", 1000, 0)
    state = make.cluster(
        [typed("a", "m4", **{ZONE_LABEL: "a"}), typed("b", "m4", "spot", **{ZONE_LABEL: "a"}), typed("c", "x9")],
        a=[web, again], b=[job], c=[other],
    )  # fmt: skip
    bill = RunningBill("here", prices, 0.0).look(state, 0.0)
    assert (bill.nodes, bill.per_hour) == (2, pytest.approx(0.21))
    lines = {(each.owner, each.pods): each for each in bill.by_owner}
    # w1 and w2 take all of node a. A core of node b is 0.031611 of 4 x 0.031611 + 8 x 0.004237 = 0.16034.
    assert lines["Deployment/web", 2].per_hour == pytest.approx(0.16)
    assert lines["Job/sums", 1].per_hour == pytest.approx(0.05 * 0.031611 / 0.16034)
    assert bill.idle_per_hour == pytest.approx(0.05 - 0.05 * 0.031611 / 0.16034)
    assert bill.per_core_hour == pytest.approx(0.21 / 5.0)
    assert [(each.type, each.capacity_type, each.nodes) for each in bill.by_type] == [
        ("m4", "on-demand", 1), ("m4", "spot", 1),
    ]  # fmt: skip
    assert (bill.by_type[0].cpu_share, bill.by_type[0].memory_share) == (1.0, 1.0)
    assert bill.unpriced == {"x9": 1}
    text = bill.text()
    assert "here: 2 nodes, $0.2100 an hour, $0.0420 for an hour of a requested core" in text
    assert "1 of 3 nodes has no price and is left out: x9 (1)" in text
    assert "--instance-types FILE" in text
    assert PRICE_LABEL in text
    assert "pods without an owner" not in text, "its node has no price"


def test_a_gpu_is_most_of_what_its_node_costs():
    node = replace(make.node("g", gpus=1), labels={TYPE_LABEL: "g1", PRICE_LABEL: "1.0"})
    sharing = make.pod("p", 0, 0, owner="Job/train")
    sharing = replace(sharing, gpu=replace(sharing.gpu, count=1, milli=500))
    bill = RunningBill("here", PriceList(()), 0.0).look(make.cluster([node], g=[sharing]), 0.0)
    # Half of 0.95, of 0.95 + 0.16034.
    assert bill.by_owner[0].per_hour == pytest.approx(0.475 / 1.11034)
    assert bill.by_owner[0].gpus == 0.5


def test_owners_beyond_the_rows_are_one_line(prices):
    pods = [make.pod(f"p{i}", 100 * (i + 1), 0, owner=f"Job/j{i}") for i in range(4)]
    text = RunningBill("here", prices, 0.0).look(make.cluster([typed("a", "m4")], a=pods), 0.0).text(rows=2)
    assert "Job/j3" in text
    assert "Job/j1" not in text
    assert "2 other owners" in text


def test_spent_counts_from_creation_and_nodes_that_went_until_then(prices):
    zone = {ZONE_LABEL: "a"}
    old, young = typed("old", "m4", created_s=1 * HOUR, **zone), typed("young", "m4", created_s=9 * HOUR, **zone)
    running = RunningBill("here", prices, 8 * HOUR)
    state = make.cluster([old, young])
    # At ten o'clock the old one has two hours since eight, the young one one.
    assert running.look(state, 10 * HOUR).spent == pytest.approx(0.16 * 3)
    state.remove_node("old")
    later = running.look(state, 10.5 * HOUR)
    assert later.spent == pytest.approx(0.16 * (2.5 + 1.5))
    assert later.gone == 1
    assert running.look(state, 11.5 * HOUR).spent == pytest.approx(0.16 * (2.5 + 2.5))
    assert json.loads(later.to_json())["spent"] == pytest.approx(0.64)


def test_the_control_plane_is_not_missed_where_it_has_no_instance_type(prices):
    ours = make.node("control-plane", labels={CONTROL_PLANE_LABEL: ""})
    bought = typed("own", "x9", **{CONTROL_PLANE_LABEL: ""})
    look = RunningBill("here", prices, 0.0).look
    assert look(make.cluster([typed("a", "m4"), ours]), 0.0).unpriced == {}
    assert look(make.cluster([typed("a", "m4"), ours, bought]), 0.0).unpriced == {"x9": 1}, "somebody pays for it"


def priced(price, name="n", created_s=0.0):
    label = {} if price is None else {PRICE_LABEL: repr(price)}
    return make.node(name, labels={TYPE_LABEL: "any", **label}, created_s=created_s)


def spent(*prices, since_s=0.0):
    """What one node has cost that shows these prices, an hour from one look to the next."""
    running, bill = RunningBill("here", PriceList(()), since_s), None
    for hour, price in enumerate(prices, 1):
        bill = running.look(make.cluster([priced(price, created_s=HOUR)]), hour * HOUR)
    return bill.spent


def test_a_price_counts_from_when_it_is_seen():
    assert spent(1.0, 1.0, 2.0, 2.0) == pytest.approx(1 + 1 + 2)
    assert spent(10.0, 1.0, 1.0) == pytest.approx(10 + 1)


def test_a_node_that_shows_no_price_for_a_while_goes_on_at_its_last_one():
    assert spent(1.0, None, 1.0, 1.0) == pytest.approx(3)
    assert spent(None, None, 2.0) == pytest.approx(4), "a first price counts from the node's creation"
    assert spent(None, None) == 0


def test_a_new_node_of_an_old_name_is_another_node():
    running = RunningBill("here", PriceList(()), 0.0)
    running.look(make.cluster([priced(1.0, created_s=HOUR)]), 2 * HOUR)
    bill = running.look(make.cluster([priced(4.0, created_s=2.5 * HOUR)]), 3 * HOUR)
    assert (bill.spent, bill.gone) == (pytest.approx(2 * 1.0 + 0.5 * 4.0), 1)


def test_a_node_that_a_look_misses_is_counted_once():
    running, node = RunningBill("here", PriceList(()), 0.0), priced(1.0, created_s=HOUR)
    looks = [[node], [], [node], [node]]
    bills = [running.look(make.cluster(nodes), hour * HOUR) for hour, nodes in enumerate(looks, 2)]
    assert [each.spent for each in bills] == pytest.approx([1, 2, 3, 4])
    assert [each.gone for each in bills] == [0, 1, 0, 0]


# A node's life in minutes: from, for how long, and its price in each of the ten minutes of an hour from when on.
LIVES = st.lists(
    st.tuples(
        st.integers(0, 40), st.integers(1, 40), st.lists(st.sampled_from([None, 0.0, 0.5, 3.0]), min_size=6, max_size=6)
    ),
    max_size=4,
)  # fmt: skip


def shown(life, minute):
    """The price that a node shows in a minute; "gone" where it is not there."""
    begins, lasts, prices = life
    return prices[min(minute // 10, 5)] if begins <= minute < begins + lasts else "gone"


def minute_by_minute(life, looks, since):
    """What a node costs, added up a minute at a time: each minute costs what the last look before it saw."""
    seen = [shown(life, look) for look in looks]
    known = next((index for index, price in enumerate(seen) if price not in {None, "gone"}), None)
    if known is None:
        return 0.0
    dollars, here = 0.0, [index for index, price in enumerate(seen) if price != "gone"]
    last = looks[min(here[-1] + 1, len(looks) - 1)]
    for minute in range(max(life[0], since), last):
        before = [index for index in here if looks[index] <= minute and seen[index] is not None]
        dollars += seen[before[-1] if before else known] / 60
    return dollars


@settings(max_examples=100, deadline=None)
@given(LIVES, st.sets(st.integers(0, 59), min_size=1, max_size=12), st.integers(0, 30))
def test_what_was_spent_is_each_minute_at_the_price_last_seen(lives, looks, since):
    looks = sorted(looks)
    running, bill = RunningBill("here", PriceList(()), since * 60.0), None
    for look in looks:
        there = [(index, shown(life, look)) for index, life in enumerate(lives)]
        nodes = [priced(price, f"n{i}", (lives[i][0] or 0.001) * 60.0) for i, price in there if price != "gone"]
        bill = running.look(make.cluster(nodes), look * 60.0)
    assert bill.spent == pytest.approx(sum(minute_by_minute(life, looks, since) for life in lives), abs=1e-4)


# ---- commitments -----------------------------------------------------------------------------------------------------


def test_commitments_pay_for_nodes_and_what_they_do_not_use_is_paid_too(prices):
    web, job = make.pod("w", 4000, 8 * GIB, owner="Job/web"), make.pod("j", 4000, 8 * GIB, owner="Job/sums")
    state = make.cluster(
        [typed(name, "m4", bought, **{ZONE_LABEL: "a"})
         for name, bought in (("a", "on-demand"), ("b", "on-demand"), ("c", "spot"))],
        a=[web], c=[job],
    )  # fmt: skip
    # 0.16 on demand. One is reserved at 0.10; a plan of 0.06 at half price pays for 0.12 of the other.
    committed = Commitments(
        reservations=(Reservation(instance_type="m4", count=1, dollars_per_hour=0.10),),
        savings_plans=(SavingsPlan(dollars_per_hour=0.06, discount=0.5),),
    )
    bill = RunningBill("here", prices, 0.0, committed).look(state, 0.0)
    assert bill.commitments.now == Covered(
        pytest.approx(0.16), pytest.approx(0.0), pytest.approx(0.28), pytest.approx(0.04)
    )
    assert bill.per_hour == pytest.approx(0.10 + 0.06 + 0.04 + 0.05), "and a spot node at its own price"
    lines = {each.owner: each.per_hour for each in bill.by_owner}
    # Both nodes on demand share what they cost: nobody says which one is reserved.
    assert lines == {"Job/web": pytest.approx(0.10), "Job/sums": pytest.approx(0.05)}
    assert bill.idle_per_hour == pytest.approx(0.10)
    assert sum(each.per_hour for each in bill.by_type) == pytest.approx(0.25)

    state.remove_node("b")
    later = RunningBill("here", prices, 0.0, committed).look(state, 0.0)
    assert later.commitments.now.unused == pytest.approx(0.06), "the reservation is used first"
    assert later.per_hour == pytest.approx(0.16 + 0.05)
    parts = sum(each.per_hour for each in later.by_owner) + later.idle_per_hour + later.commitments.now.unused
    assert parts == pytest.approx(later.per_hour)
    text = later.text()
    assert (
        "commitments: $0.1600 an hour, 62% used, for nodes of $0.1600; unused $0.0600; nodes on demand $0.0000" in text
    )
    assert "unused: commitments without a node" in text
    assert "1 reserved m4" in text
    assert "pods request 100% of it" not in text
    told = json.loads(later.to_json())["commitments"]
    assert told["lines"][1] == {"name": "savings plan 1: all types", "per_hour": 0.06, "used_per_hour": 0.0}
    assert RunningBill("here", prices, 0.0).look(state, 0.0).commitments is None
    nothing = RunningBill("here", prices, 0.0, committed).look(make.cluster([]), 0.0).text()
    assert "the cluster has no node to pay for" in nothing
    assert "1 reserved m4" in nothing, "what is paid without a node is told"


def test_what_was_spent_is_settled_by_the_clock_hour(prices):
    plan = Commitments(savings_plans=(SavingsPlan(dollars_per_hour=0.08, discount=0.5),))
    zone = {ZONE_LABEL: "a"}
    first, second = typed("x", "m4", created_s=8 * HOUR, **zone), typed("y", "m4", created_s=8.5 * HOUR, **zone)
    running = RunningBill("here", prices, 8 * HOUR, plan)
    state = make.cluster([first])
    running.look(state, 8.25 * HOUR)
    state.remove_node("x")
    state.upsert_node(second)
    running.look(state, 8.5 * HOUR)
    bill = running.look(state, 9 * HOUR)
    # One after the other, half an hour each: in the hour from eight the plan pays for both.
    assert (bill.spent, bill.commitments.since.unused) == (pytest.approx(0.08), pytest.approx(0.0))
    state.upsert_node(typed("z", "m4", "spot", created_s=9 * HOUR, **zone))
    state.remove_node("y")
    running.look(state, 9 * HOUR)
    bill = running.look(state, 10 * HOUR)
    assert bill.commitments.since == Covered(*map(pytest.approx, (0.16, 0.08, 0.16, 0.0))), "a spot node is not for it"
    assert bill.spent == pytest.approx(2 * 0.08 + 0.05)


def test_without_commitments_that_cost_anything_the_bill_is_the_same(prices):
    free = Commitments(savings_plans=(SavingsPlan(dollars_per_hour=0.0, discount=0.5),))
    state = make.cluster([typed("a", "m4", created_s=HOUR), typed("b", "m4", "spot", created_s=HOUR)])
    for committed in (None, free):
        bill = RunningBill("here", prices, 0.0, committed).look(state, 3.25 * HOUR)
        assert (bill.per_hour, bill.spent) == (pytest.approx(0.25), pytest.approx(0.25 * 2.25))


def test_a_bill_says_when_the_api_server_is_not_heard(tmp_path, prices):
    with one_node() as api, closing(ClusterWatch(Transport(server=api.server))) as watch:
        watch.start()
        told = []
        follow(watch, prices, told.append, since_s=0.0)
        api.down()
        follow(
            watch, prices, told.append, since_s=0.0, every_s=0.05, stopped=lambda: len(told) > 200 or told[-1].silent
        )
    assert [told[0].silent, told[-1].silent] == [False, True]
    line = "the API server does not answer: nodes and pods are as last seen"
    assert [line in each.text() for each in (told[0], told[-1])] == [False, True]


def test_since_is_a_time_or_how_long_ago():
    assert _since("90s", 1000.0) == 910.0
    assert _since("1.5h", 6000.0) == 600.0
    assert _since("1970-01-01T00:10:00+00:00", 3600.0) == 600.0
    with pytest.raises(UserError, match="since: 'yesterday' is not accepted"):
        _since("yesterday", 0.0)
    for text in ("99999999d", "0001-01-01", "1970-01-02T00:00:00+00:00", "-0001-01-01"):
        with pytest.raises(UserError, match=f"since: '{re.escape(text)}' is not accepted; expected a time"):
            _since(text, 3600.0)


def test_mistakes_are_told_before_a_cluster_is_asked(tmp_path, capsys):
    assert command("bill", ["--instance-types", str(tmp_path / "none.json")]) == 2
    assert "instance types" in capsys.readouterr().err


def test_the_command_takes_a_file_of_commitments(tmp_path, capsys):
    file = "{apiVersion: aaml.dev/v1, kind: Commitments, spec: {savingsPlans: [{dollarsPerHour: 0.5, discount: 0.5}]}}"
    (path := tmp_path / "commitments.yaml").write_text(file)
    with one_node() as api:
        cluster = f"{{name: c, cluster: {{server: '{api.server}'}}}}"
        (config := tmp_path / "config").write_text(
            f"{{apiVersion: v1, kind: Config, clusters: [{cluster}], users: [{{name: u, user: {{}}}}], "
            "contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}"
        )
        assert command("bill", ["--kubeconfig", str(config), "--commitments", str(path)]) == 0
    assert "commitments: $0.5000 an hour, 0% used, for nodes of $0.0000; unused $0.5000" in capsys.readouterr().out
