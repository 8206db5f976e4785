"""The offline packing and the LP relaxation of a bill, by hand, and as rows beside those of policies."""

import csv

import numpy as np
import pytest

from aaml.cli import run
from aaml.evaluation.bound_bill import bound_bill
from aaml.evaluation.results import Results
from aaml.nodes.catalogue import Catalogue
from aaml.optimum.clairvoyant import intervals_of, offline_bill, offline_packing
from aaml.optimum.packing import MOST_PODS, best_packing
from aaml.optimum.relaxation import fluid_bill
from aaml.sim.bill import BILL_TASKS
from support.nodes_to_buy import CATALOGUE, LARGE, MEDIUM, SMALL, partitions, pod

HOUR_S = 3600.0


def runs(name, cores, from_h, hours):
    return pod(name, cores, gib=4 * cores, created_s=from_h * HOUR_S, lifetime_s=hours * HOUR_S)


def test_pods_that_run_at_once_share_a_node_of_the_cheapest_type_with_room():
    assert offline_bill([runs("p", 1, 0, 1), runs("q", 1, 0, 1)], CATALOGUE, HOUR_S) == pytest.approx(1.0)
    assert offline_bill([runs("p", 2, 0, 1), runs("q", 2, 0, 1)], CATALOGUE, HOUR_S) == pytest.approx(1.9)
    assert offline_bill([runs("p", 2, 0, 1), runs("q", 2, 1, 1)], CATALOGUE, 2 * HOUR_S) == pytest.approx(2.0)


def test_a_short_pod_does_not_prolong_a_dear_node():
    # The large node (3.6) is paid for one hour; the two-core pod that begins in its middle and lasts ten hours would
    # make that ten and a half: a small node of its own costs 10.
    pods = [runs("p", 6, 0, 1), runs("q", 2, 0.5, 10)]
    assert offline_bill(pods, Catalogue((SMALL, LARGE)), 20 * HOUR_S) == pytest.approx(3.6 + 10.0)


def test_what_lies_beyond_the_end_is_not_paid_and_what_fits_nothing_is_left_out():
    assert offline_bill([runs("p", 4, 1, 9), pod("endless", 4, created_s=0.0)], Catalogue((MEDIUM,)), 2 * HOUR_S) == (
        pytest.approx(1.9 * 3)
    )
    assert offline_bill([runs("huge", 9, 0, 1), runs("p", 1, 0, 1)], CATALOGUE, HOUR_S) == pytest.approx(1.0)


def test_the_fluid_bill_pays_each_second_what_is_requested_then():
    # A core and 4 GiB cost 3.6 / 8 dollars an hour. One core for two hours, three more for the second of them.
    assert fluid_bill([runs("p", 1, 0, 2), runs("q", 3, 1, 5)], CATALOGUE, 2 * HOUR_S) == pytest.approx(0.45 * 5)


def cheapest_of_all(pods, catalogue):
    """Return what the best of all partitions of the pods into nodes costs, each of its cheapest type."""

    def node(group):
        most = max(
            sum(each.requests["cpu"] for each in group if each.created_s <= at < each.created_s + each.lifetime_s)
            for at in (each.created_s for each in group)
        )
        prices = [kind.cheapest.price for kind in catalogue.types if dict(kind.allocatable)["cpu"] >= most]
        length_s = max(each.created_s + each.lifetime_s for each in group) - min(each.created_s for each in group)
        return min(prices, default=float("inf")) * length_s / HOUR_S

    return min(sum(map(node, part)) for part in partitions(pods))


@pytest.mark.parametrize("seed", range(4))
def test_the_solver_finds_the_cheapest_of_all_packings_of_few_pods(seed):
    pytest.importorskip("ortools", reason="the extra `solver`")
    rng = np.random.default_rng(seed)
    pods = [runs(f"p{i}", int(rng.integers(1, 8)) / 2, rng.random(), 0.2 + rng.random()) for i in range(6)]
    intervals, until_s = intervals_of(pods, CATALOGUE, 10 * HOUR_S), 10 * HOUR_S
    known = offline_packing(intervals, CATALOGUE)
    found = best_packing(intervals, CATALOGUE, known, fluid_bill(pods, CATALOGUE, until_s))
    assert found.proven
    assert found.dollars == pytest.approx(cheapest_of_all(pods, CATALOGUE), rel=1e-3)
    assert found.bound == pytest.approx(found.dollars, rel=1e-3)
    assert found.dollars <= known.dollars


def test_where_some_seeds_have_too_many_pods_for_the_solver_all_are_compared():
    pytest.importorskip("ortools", reason="the extra `solver`")
    rows = list(bound_bill(BILL_TASKS["bill"], (1, 2), 3, limit_s=0.2))
    bills = {(row["policy"], row["seed"]): row["bill"] for row in rows}
    assert len(bills) == len(rows) == 6
    assert len(intervals(1)) > MOST_PODS >= len(intervals(2))
    assert bills["fluid-bound", 1] <= bills["cp-sat-bound", 1] <= bills["offline-packing", 1]
    (ranking,) = Results.of(rows).compare("offline-packing", "bill").rankings
    assert {line.policy for line in ranking.lines} == {"offline-packing", "cp-sat-bound", "fluid-bound"}


def intervals(seed):
    task = BILL_TASKS["bill"]
    cluster = task.build(seed, 3)
    return intervals_of(cluster.workload, task.drawn_catalogue(seed), cluster.until_s)


@pytest.mark.slow
def test_the_command_writes_both_as_rows_beside_those_of_policies(tmp_path, capsys):
    pytest.importorskip("ortools", reason="the extra `solver`")
    bill = ["--task", "bill", "--nodes", "3", "--bound", "--workers", "1"]
    arguments = [*bill, "--pods", "50", "--seeds", "1..2", "--limit-s", "1", "--policies", "kube-scheduler-packing"]
    assert run("evaluate", [*arguments, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "of the LP relaxation, packed by CP-SAT, bound " in said
    assert run("evaluate", [*bill, "--policies", "--pods", "70", "--seeds", "1", "--out", str(tmp_path / "more")]) == 0
    assert "of the LP relaxation, packed by the heuristic" in capsys.readouterr().out
    with (tmp_path / "results.csv").open() as file:
        bills = {(row["policy"], row["seed"]): float(row["bill"]) for row in csv.DictReader(file)}
    assert len(bills) == 8
    for seed in ("1", "2"):
        assert bills["fluid-bound", seed] <= bills["cp-sat-bound", seed] <= bills["offline-packing", seed]
        assert bills["fluid-bound", seed] < bills["kube-scheduler-packing", seed]
    assert run("evaluate", ["--task", "balance", "--bound", "--seeds", "1", "--out", str(tmp_path)]) == 2
    assert "task: 'balance' is not accepted; did you mean balance-batch? Expected one of" in capsys.readouterr().err
