"""What commitments have paid for on a recording's nodes, and what one more would have saved: by hand and by search."""

import json

import numpy as np
import pytest
from msgspec import structs

from aaml.cli import run as command
from aaml.cluster.objects import CAPACITY_TYPE_LABEL, CONTROL_PLANE_LABEL, PRICE_LABEL, TYPE_LABEL
from aaml.errors import UserError
from aaml.evaluation.recorded_commitments import evaluate_commitments
from aaml.evaluation.statistics import mean_interval
from aaml.nodes.commitments import Commitments, Covered, Reservation, SavingsPlan
from aaml.nodes.prices import PriceList
from aaml.workload.trace.events import Began, Listed, Lost, NodeGone, NodeSeen, Watched
from aaml.workload.trace.store import TraceWriter
from aaml.workload.trace.trace import Trace
from support import make

HOUR = 3600.0
BEGAN = 1_000_000 * HOUR


def node(name, price=1.0, kind="m", bought="on-demand", **more):
    label = {} if price is None else {PRICE_LABEL: str(price)}
    return make.node(name, labels={TYPE_LABEL: kind, CAPACITY_TYPE_LABEL: bought, **label, **more})


def recorded(*spans, until=4.0, began=BEGAN, gaps=()):
    """A trace of nodes, each with the hours from and until which it was there."""
    events = [Began(at=began), Listed(at=began)]
    for each, since, to in spans:
        events.append(NodeSeen(at=began + since * HOUR, node=each))
        if to is not None:
            events.append(NodeGone(at=began + to * HOUR, name=each.name))
    events += [Lost(at=began + to * HOUR, since=began + since * HOUR) for since, to in gaps]
    events.append(Watched(at=began + until * HOUR))
    return sorted(events, key=lambda event: event.at)


def evaluated(*committed, **trace):
    spans = trace.pop("spans")
    plans = tuple(each for each in committed if isinstance(each, SavingsPlan))
    reserved = tuple(each for each in committed if isinstance(each, Reservation))
    events = recorded(*spans, **trace)
    return evaluate_commitments(
        Trace.of(events), PriceList(()), Commitments(savings_plans=plans, reservations=reserved)
    )


def test_an_hour_more_or_less_by_hand():
    plan = SavingsPlan(dollars_per_hour=0.5, discount=0.5)
    # Node-hours of a dollar: 2, 1, 1, 0.5. The plan pays for one an hour; in the last hour half of it is unused.
    found = evaluated(plan, spans=[(node("a"), 0, 3.5), (node("b"), 0, 1)])
    assert found.hours == pytest.approx(4.0)
    assert found.per_hour == Covered(*map(pytest.approx, (0.5, 0.25 / 4, 3.5 / 4, 1.0 / 4)))
    assert found.alone_per_hour == pytest.approx(4.5 / 4)
    line = found.lines[0]
    assert line.used_per_hour == pytest.approx(1.75 / 4)
    # Another dollar an hour pays for two node-hours more: a dollar of demand in the first hour, nothing in the others.
    assert line.one_more.mean == pytest.approx((1.0 - 4 * 1.0) / 4)
    assert (line.best, line.best_saves.mean) == (0.5, 0.0)
    assert "4 clock hours" in found.blocks
    text = found.text()
    assert "4 h recorded, $0.7500 an hour; without commitments $1.1250" in text
    assert "88% used" in text


def test_a_short_recording_of_a_cheap_node_is_told_in_the_singular_and_with_digits():
    found = evaluated(SavingsPlan(dollars_per_hour=0.0, discount=0.5), spans=[(node("a"), 0, 1)], until=1.0)
    assert found.blocks.startswith("1 clock hour: under 5 days")
    found = evaluated(SavingsPlan(dollars_per_hour=0.0000125, discount=0.5), spans=[(node("a"), 0, None)])
    assert "commitments $0.000013 an hour" in found.text()
    assert "0.000013" in found.text().split("commitment ")[1], "in the table too"


def test_one_more_instance_is_what_it_pays_for_less_its_price():
    reserved = Reservation(instance_type="m", count=1, dollars_per_hour=0.6)
    found = evaluated(reserved, spans=[(node("a"), 0, None), (node("b"), 0, 3), (node("c"), 0, 1)])
    assert found.lines[0].one_more.mean == pytest.approx(3 * 1.0 / 4 - 0.6), "b is there in three hours of four"
    assert found.lines[0].best == 2.0


def test_spot_nodes_control_planes_and_nodes_without_a_price_are_in_no_commitment():
    plan = SavingsPlan(dollars_per_hour=1.0, discount=0.5)
    found = evaluated(plan, spans=[
        (node("s", 0.3, bought="spot"), 0, None), (node("x", None, "odd"), 0, None),
        (node("cp", **{CONTROL_PLANE_LABEL: ""}), 0, None),
    ])  # fmt: skip
    assert found.per_hour == Covered(1.0, 1.0, 0.0, 0.0)
    assert found.spot_per_hour == pytest.approx(0.3)
    assert found.unpriced == {"odd": 1}
    assert "left out, without a price: odd (1)" in found.text()


def test_what_was_not_recorded_is_not_judged():
    plan = SavingsPlan(dollars_per_hour=0.5, discount=0.5)
    found = evaluated(plan, spans=[(node("a"), 0, None)], gaps=[(1.0, 3.0)])
    assert (found.hours, found.per_hour.unused) == (pytest.approx(2.0), pytest.approx(0.0))


def test_a_price_that_changes_counts_from_then_on():
    plan = SavingsPlan(dollars_per_hour=0.0, discount=0.5)
    found = evaluated(plan, spans=[(node("a", 1.0), 0, None), (node("a", 3.0), 2, None)])
    assert found.per_hour.on_demand == pytest.approx((2 * 1.0 + 2 * 3.0) / 4)


def test_a_trace_without_a_price_is_refused():
    with pytest.raises(UserError, match="none of its nodes has a price"):
        evaluated(SavingsPlan(dollars_per_hour=1.0, discount=0.5), spans=[(node("a", None), 0, None)])


def weeks(rng, days, mean=6.0):
    """Nodes by the hour: a rhythm of the day, and days that differ."""
    counts = []
    for _ in range(days):
        level = rng.normal(mean, 1.5)
        counts += [max(0, round(level + 3 * np.sin(2 * np.pi * hour / 24) + rng.normal(0, 0.7))) for hour in range(24)]
    return counts


def spans_of(counts):
    found = []
    for number in range(max(counts)):
        since = None
        for hour, count in enumerate([*counts, 0]):
            if count > number and since is None:
                since = hour
            elif count <= number and since is not None:
                found.append((node(f"n{number}"), since, hour))
                since = None
    return found


@pytest.mark.parametrize("discount", [0.2, 0.5, 0.7])
def test_the_best_amount_is_the_quantile_that_the_derivative_says(discount):
    """P(spend > x / (1 - d)) / (1 - d) - 1 is what a dollar more saves: it is 0 where that share is 1 - d."""
    counts = np.array(weeks(np.random.default_rng(3), 7))
    plan = SavingsPlan(dollars_per_hour=0.0, discount=discount)
    line = evaluated(plan, spans=spans_of(counts.tolist()), until=168.0).lines[0]
    covered = line.best / (1.0 - discount)
    assert np.mean(counts > covered + 1e-9) <= 1.0 - discount + 1e-9 <= np.mean(counts >= covered - 1e-9) + 2e-9
    # A search over amounts finds none better: dollars without the plan, and with each of them.
    costs = {x: np.maximum(counts - x / (1.0 - discount), 0.0).mean() + x for x in np.arange(0.0, 12.0, 0.01)}
    assert counts.mean() - line.best_saves.mean <= min(costs.values()) + 1e-9
    one = np.minimum(counts, 1.0 / (1.0 - discount)).mean() - 1.0
    assert line.one_more.mean == pytest.approx(one)


def test_the_best_amount_leaves_to_other_commitments_what_they_pay_for():
    """Of a node of $10 each plan pays for a half: more of the first would leave the second without use."""
    plans = [SavingsPlan(dollars_per_hour=3.5, discount=0.3, families=each) for each in (("m",), ())]
    found = evaluated(*plans, spans=[(node("a", 10.0), 0, None)])
    assert [line.best for line in found.lines] == [3.5, 3.5]
    less = [structs.replace(each, dollars_per_hour=2.8) for each in plans]
    found = evaluated(*less, spans=[(node("a", 10.0), 0, None)])
    assert [line.best for line in found.lines] == [pytest.approx(4.2), pytest.approx(4.2)]
    reserved = Reservation(instance_type="m", count=0, dollars_per_hour=0.6)
    found = evaluated(reserved, plans[1], spans=[(node(name), 0, None) for name in "abcdefgh"])
    assert found.lines[0].best == 3.0, "the plan pays for five nodes of eight"


@pytest.mark.slow
def test_days_are_the_blocks_of_intervals_that_hold():
    """The mean of all is in 95% of the intervals of 200 recordings of ten days, less three standard errors of that."""
    rng, plan = np.random.default_rng(5), SavingsPlan(dollars_per_hour=3.0, discount=0.4)
    days, hours = [], []
    for _ in range(200):
        counts = weeks(rng, 10)
        found = evaluated(plan, spans=spans_of(counts), until=240.0)
        assert found.blocks == "10 blocks of 24 hours"
        days.append(found.lines[0].one_more)
        # What the dollar beyond the five nodes that the plan pays for saves in each hour: by hour all are alike.
        hours.append(mean_interval(np.clip(np.array(counts) - 5.0, 0.0, 1.0 / 0.6) - 1.0))
    truth = np.mean([one.mean for one in days])
    assert [one.mean for one in hours] == pytest.approx([one.mean for one in days])
    held = [np.mean([one.low <= truth <= one.high for one in found]) for found in (days, hours)]
    assert held[0] >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 200)
    assert held[1] < 0.7, "so hours are not what intervals are over"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "trace"
    with TraceWriter(folder) as writer:
        for event in recorded((node("a"), 0, None), (node("b"), 0, 2)):
            writer.write(event)
    return folder


FILE = "{apiVersion: aaml.dev/v1, kind: Commitments, spec: {savingsPlans: [{dollarsPerHour: 0.5, discount: 0.5}]}}"


def test_the_command_says_what_was_paid_for(folder, tmp_path, capsys):
    (path := tmp_path / "c.yaml").write_text(FILE)
    assert command("bill", ["--recorded", str(folder), "--commitments", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "4 h recorded, $1.0000 an hour; without commitments $1.5000" in shown
    assert "savings plan 1: all types" in shown
    assert command("bill", ["--recorded", str(folder), "--commitments", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["per_hour"] == {"committed": 0.5, "unused": 0.0, "covered": 1.0, "on_demand": 0.5}
    # Another dollar pays for two nodes more: for one in two of the four hours.
    assert told["lines"][0]["one_more"]["mean"] == -0.5


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--recorded", "TRACE"], "recorded: goes with --commitments FILE"),
        (["--recorded", "TRACE", "--commitments", "C", "--watch"], "watch: goes without --recorded"),
        (["--recorded", "nowhere", "--commitments", "C"], "nowhere"),
        (["--recorded", "TRACE", "--commitments", "nowhere.yaml"], "commitments: 'nowhere.yaml' is not accepted"),
    ],
)
def test_wrong_flags_are_told_in_a_line(folder, tmp_path, capsys, flags, told):
    (path := tmp_path / "c.yaml").write_text(FILE)
    words = {"TRACE": str(folder), "C": str(path)}
    assert command("bill", [*(words.get(each, each) for each in flags)]) == 2
    assert told in capsys.readouterr().err
