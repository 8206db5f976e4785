"""Statistics of a choice: gains by chance are seldom told, and no result is told by what a search has seen."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from aaml.cli import run
from aaml.cluster.objects import Node, Pod
from aaml.errors import UserError
from aaml.evaluation.held_out import check_held_out
from aaml.evaluation.results import Results
from aaml.evaluation.statistics import mean_bounds, mean_interval, paired, together
from aaml.evolve.cases import check, validation
from aaml.evolve.copies import Copy, Distilled
from aaml.evolve.front import Evaluated, not_better
from aaml.evolve.settings import EvolveConfig
from aaml.policies.kube_scores import KubeSchedulerConfig
from aaml.sim.tasks import find_task
from aaml.study.held_out import on_held_out
from aaml.study.looks import Look
from aaml.study.problem import Limit
from aaml.study.samplers import CmaEs
from aaml.study.study import Study, looked
from aaml.study.trial import Trial
from aaml.training.rollouts import EnvConfig, EnvFactory
from aaml.training.validation import Validation, by_playing
from aaml.tuning.bill import BillTuning
from aaml.tuning.bill import tune as tune_bill
from aaml.tuning.kube_scheduler import Gain, KubeSchedulerTuning, Tuned
from aaml.tuning.kube_scheduler import tune as tune_kube_scheduler
from aaml.tuning.nodes import NodePolicyTuning
from aaml.tuning.nodes import tune as tune_nodes
from aaml.workload.trace.events import Began, Listed, NodeGone, NodeSeen, PodBound, PodEnded, PodSeen
from aaml.workload.trace.store import TraceWriter
from aaml.workload.trace.trace import Trace
from aaml.workload.trace.windows import make_split, read_windows, write_split

FloatArray = npt.NDArray[np.float64]
SEARCHES = 4000
MOST = 0.05 + 4.0 * math.sqrt(0.05 * 0.95 / SEARCHES)  # four standard errors: one run in 30,000 is above by chance


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return 100.0 + rng.normal(0.0, 5.0, shape)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return rng.lognormal(0.0, 1.0, shape)


def heavy_tailed(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return np.exp(np.clip(rng.standard_t(1.5, shape), -50.0, 50.0))


NOISE = pytest.mark.parametrize("noise", [normal, skewed, heavy_tailed])


@NOISE
@pytest.mark.parametrize("episodes", [5, 20])
@pytest.mark.parametrize("compared", [1, 3, 30])
def test_equal_policies_seldom_gain_however_many_are_compared(noise, episodes: int, compared: int) -> None:
    """Three sizes, two metrics and a front of five are 30; ratios count by their logarithm."""
    rng = np.random.default_rng(7)
    a, b = (noise(rng, (SEARCHES, compared, episodes)) for _ in "ab")
    for difference in (a - b, np.log(a) - np.log(b)):
        _, high = mean_bounds(difference.reshape(-1, episodes), confidence=together(compared))
        false = (high < 0.0).reshape(SEARCHES, compared).any(axis=1).mean()
        assert false < MOST, "better by chance"


def test_without_a_correction_thirty_comparisons_are_half_of_the_time_a_gain_by_chance() -> None:
    rng = np.random.default_rng(7)
    _, high = mean_bounds(rng.normal(size=(SEARCHES * 30, 20)))
    assert (high < 0.0).reshape(SEARCHES, 30).any(axis=1).mean() > 0.4


def test_intervals_that_hold_together_are_bonferronis() -> None:
    assert together(1) == pytest.approx(0.95)
    assert together(30) == pytest.approx(1.0 - 0.05 / 30)
    assert together(10, confidence=0.9) == pytest.approx(0.99)


# ---- each search judges so -------------------------------------------------------------------------------------------

FEW = 100  # searches of a kind: so many that every second one would be seen
SELDOM = 0.05 + 4.0 * math.sqrt(0.05 * 0.95 / FEW)


@pytest.mark.slow
@NOISE
def test_a_front_of_kube_schedulers_configurations_seldom_gains_by_chance(noise) -> None:
    rng, false = np.random.default_rng(1), 0
    for _ in range(FEW):
        values = noise(rng, (5, 3, 2, 2, 20))
        front = [
            Tuned(KubeSchedulerConfig(), tuple(
                Gain.of(size, "mean_variance", *values[member, size, metric], relative=True, comparisons=30)
                for size in range(3) for metric in range(2)
            ))
            for member in range(5)
        ]  # fmt: skip
        false += any(each.better for each in front)
    assert false / FEW < SELDOM


def bills(values: FloatArray, **other: float) -> Results:
    """Return results of [sizes, policies, episodes]: values are dollars."""
    names = ("tuned", "kube-scheduler", "kube-scheduler-packing")
    rows = [
        {"task": "bill", "nodes": 10 * (size + 1), "policy": name, "seed": seed}
        | dict.fromkeys(("bill", "cost", "bill_per_core_hour"), value)
        | {"waiting_p99_s": 40.0, "waiting_mean_s": 1.0, "evicted": 10.0}
        | (other if name == "tuned" else {})
        for size, policies in enumerate(values.tolist())
        for name, episodes in zip(names, policies, strict=True)
        for seed, value in enumerate(episodes)
    ]
    return Results(pd.DataFrame(rows), frozenset())


@pytest.mark.slow
@NOISE
def test_a_bill_at_three_sizes_seldom_gains_by_chance(noise) -> None:
    rng = np.random.default_rng(2)
    false = sum(on_held_out(bills(noise(rng, (3, 3, 20))), "bill_per_core_hour", ()).gained for _ in range(FEW))
    assert false / FEW < SELDOM


@pytest.mark.slow
@NOISE
def test_a_search_that_is_gone_on_with_until_it_gains_seldom_gains_by_chance(noise, tmp_path: Path) -> None:
    """Five looks, at new candidates each, and the first gain that is told is believed."""
    rng, false = np.random.default_rng(6), 0
    for number in range(FEW):
        with Study(tmp_path / str(number), {}, {}) as study:
            for candidate in range(5):
                look = study.look([candidate])
                assert (look.number, look.looks) == (candidate + 1, candidate + 1)
                if on_held_out(bills(noise(rng, (1, 3, 20))), "bill_per_core_hour", (), look).gained:
                    false += 1
                    break
    assert false / FEW < SELDOM


def test_a_table_of_a_search_says_better_where_the_search_does() -> None:
    rng, differ = np.random.default_rng(9), 0
    for number in range(1, 40):
        results = bills(normal(rng, (1, 3, 20)) - rng.uniform(0.0, 5.0) * np.array([[[1.0], [0.0], [0.0]]]))
        found = on_held_out(results, "bill_per_core_hour", (), Look(number, number, number))
        (told,) = results.compare(metric="bill_per_core_hour", confidence=found.confidence)
        verdicts = {line.policy: line.against and line.against.verdict for line in told.lines}
        (usual,) = results.compare(metric="bill_per_core_hour")
        differ += verdicts != {line.policy: line.against and line.against.verdict for line in usual.lines}
        assert (verdicts["tuned"] == "better") == found.gained
    assert differ, "with intervals of one comparison it would say more"


def test_five_looks_gain_by_chance_no_more_often_than_one_and_without_a_correction_they_do() -> None:
    rng = np.random.default_rng(8)
    noise = rng.normal(size=(5, SEARCHES, 20))

    def told(confidences: list[float]) -> float:
        """Return the share of searches of which a gain is told in one of five looks."""
        gains = [
            mean_bounds(each, confidence=confidence)[1] < 0.0
            for each, confidence in zip(noise, confidences, strict=True)
        ]
        return float(np.any(gains, axis=0).mean())

    assert told([together(Look(k, k, k).comparisons(1)) for k in range(1, 6)]) < MOST
    assert told([together(1)] * 5) > 0.1


def test_all_looks_together_have_the_error_of_one() -> None:
    share = [1.0 - together(Look(k, k, k).comparisons(1)) for k in range(1, 2000)]
    assert sum(share) == pytest.approx(0.05, rel=1e-3)
    assert sum(share) < 0.05


def test_a_study_counts_looks_at_other_candidates_or_episodes_alone(tmp_path: Path) -> None:
    with Study(tmp_path, {}, {}) as study:
        study.optimize(CmaEs(np.zeros(2), population=4, deviation=1.0, seed=0), zeros, 1, name="", progress=False)
        assert study.look(["a"]) == Look(1, 1, 1)
    with Study(tmp_path, {}, {}, resume=True) as study:
        assert study.look(["a"]) == Look(1, 1, 1), "the same tells nothing new"
        assert study.look(["b", "c"]) == Look(2, 2, 3)
        assert study.look(["b", "c"], (5, 6)) == Look(3, 3, 5)
        assert study.look(["a"]) == Look(1, 3, 5)
    assert looked(tmp_path) == Look(3, 3, 5)
    assert str(Look(1, 3, 5)) == (
        "the held-out episodes were looked at 3 times (this is look 1), at 5 candidates; "
        "intervals hold together over all looks"
    )


def zeros(asked: Any, *_: Any) -> list[Trial[Any]]:
    return [Trial(each, (0.0,)) for each in asked]


@NOISE
def test_formulas_of_a_search_and_of_a_network_seldom_gain_by_chance(noise) -> None:
    rng, false, copied = np.random.default_rng(3), 0, 0
    for _ in range(FEW):
        losses = np.log(noise(rng, (12, 64))) - np.log(noise(rng, (12, 64)))
        front = [Evaluated("node.cpu_used", 0.0, tuple(each), compared=12) for each in losses.tolist()]
        false += not not_better(front, "least-variance")
        copies = [Copy("node.cpu_used", 1.0, tuple(each), compared=12) for each in losses[1:].tolist()]
        network = Distilled(tuple(losses[0].tolist()), copies)
        copied += any(each.interval.high < 0.0 for each in (network, *copies))
    assert false / FEW < SELDOM
    assert copied / FEW < SELDOM


def test_what_is_gained_is_told_as_a_gain_and_what_is_broken_or_lost_comes_first() -> None:
    rng = np.random.default_rng(4)
    values = 10.0 + rng.normal(0.0, 0.1, (2, 3, 20))
    values[:, 0] *= 0.9
    good = on_held_out(bills(values), "bill_per_core_hour", (Limit("waiting_p99_s", slack=10.0), Limit("evicted")))
    assert (good.gained, good.first) == (True, ())
    bad = on_held_out(bills(values, waiting_p99_s=60.0), "bill", (Limit("waiting_p99_s", slack=10.0), Limit("evicted")))
    assert bad.gained
    assert bad.first == tuple(
        f"{nodes} nodes: a limit is broken: waiting_p99_s is 60, where 50 is allowed (kube-scheduler's is 40)"
        for nodes in (10, 20)
    )
    values[0, 0] *= 1.5
    values[1, 0] = values[1, 1]
    worse = on_held_out(bills(values), "bill_per_core_hour", ())
    assert not worse.gained
    assert worse.first[0].startswith("10 nodes: worse than kube-scheduler, bill_per_core_hour 1.3")
    assert worse.first[-1] == "nothing was gained on bill_per_core_hour on held-out episodes"


def test_a_front_that_is_worse_than_the_reference_is_told_so() -> None:
    losses = 0.1 + np.random.default_rng(5).normal(0.0, 0.01, 64)
    (worse, better, level) = (
        [Evaluated("node.cpu_used", 0.0, tuple((losses + shift).tolist()))] for shift in (0.0, -0.2, -0.1)
    )
    assert "worse than fgd" in not_better(worse, "fgd")
    assert "not known to be better than fgd" in not_better(level, "fgd")
    assert not_better(better, "fgd") == ""


# ---- what is held out ------------------------------------------------------------------------------------------------

TRAINING, VALIDATION = 1 << 31, 1 << 30


@pytest.mark.parametrize(
    ("command", "field"),
    [
        ("search nodes --nodes 5 5", "nodes"), ("search bill --nodes 5 5", "nodes"),
        ("search scheduler --nodes 5 5", "nodes"), ("search scheduler --metrics evicted evicted", "metrics"),
        ("search formula --nodes 5 5", "nodes"), ("search network balance-gnn --nodes 5 5", "nodes"),
        ("search gpu --traces default default", "traces"), ("evaluate --nodes 5 5", "nodes"),
        ("bench leaderboard --nodes 10 10", "nodes"),
    ],
)  # fmt: skip
def test_what_would_count_twice_is_refused_before_anything_is_played(
    command: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    group, *flags = command.split()
    assert run(group, flags) == 2
    assert re.search(rf"error: {field}: .* is not accepted; expected each.* once", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"nodes: \[5, 5\] is not accepted; expected each size once"):
        replace(find_task("bill"), sizes=(5, 5))


def test_seeds_that_a_search_plays_are_named_and_refused() -> None:
    check_held_out(range(1000, 1020), {"training": range(TRAINING, TRAINING + 64)})
    with pytest.raises(UserError, match=r"seeds: '7, 9' is not accepted; .*held out: the search plays these for valid"):
        check_held_out((5, 7, 9), {"training": [1], "validation": [7, 8, 9]})
    with pytest.raises(UserError, match=r"seeds: '9, 7' is not accepted; .* plays these for training and validation"):
        check_held_out((5, 7, 9), {"training": [9], "validation": [7]})
    with pytest.raises(UserError, match="'0, 1, 2, 3, 4 and 5 more'"):
        check_held_out(range(10), {"training": range(1 << 62)})


@pytest.mark.parametrize("seed", [TRAINING, TRAINING + 3, VALIDATION + 1])
@pytest.mark.parametrize(
    ("tune", "asked"),
    [(tune_kube_scheduler, KubeSchedulerTuning), (tune_bill, BillTuning), (tune_nodes, NodePolicyTuning)],
)
def test_no_search_is_judged_on_episodes_that_it_plays(tune: Any, asked: Any, seed: int, tmp_path: Path) -> None:
    search = asked(replace(find_task("bill"), sizes=(2,)), tmp_path / "out.yaml", episodes=4, seeds=(1000, seed))
    with pytest.raises(UserError, match=rf"seeds: '{seed}' is not accepted; expected episodes that are held out"):
        tune(search)
    assert not list(tmp_path.iterdir()), "it is told before anything is played or written"


def test_formulas_are_validated_and_looked_at_on_episodes_of_their_own() -> None:
    check(EvolveConfig(), {"look": range(50_000, 50_030)})
    with pytest.raises(UserError, match=r"validation seeds: '900000.* the search plays these for training"):
        check(EvolveConfig(task=("openb",), seed=700))
    with pytest.raises(UserError, match=r"look: seeds: '1073741824.* the search plays these for validation"):
        check(EvolveConfig(), {"look": range(VALIDATION, VALIDATION + 2)})


# ---- intervals of what cannot be negative ----------------------------------------------------------------------------


def test_an_interval_of_waits_does_not_begin_below_zero() -> None:
    waits = [0.0, 0.0, 0.1, 0.0, 4.0, 0.2]
    assert mean_interval(waits).low < 0.0 == mean_interval(waits, least=0.0).low
    assert mean_interval([-1.0, *waits], least=0.0) == mean_interval([-1.0, *waits]), (
        "values below are told as they are"
    )
    assert not mean_interval([1.0], least=0.0).known
    assert paired(waits, [0.0] * 6, "lower").difference.low < 0.0, "a difference may be"


def test_a_window_of_a_trace_counts_once_however_many_episodes_are_asked_for(tmp_path: Path) -> None:
    """Four validation windows are four cases: as sixteen their intervals would have half the width."""
    arrivals(tmp_path / "trace", pods=60, until_s=2000.0)
    config = EvolveConfig(task=(f"bill@{tmp_path / 'trace'}",), episodes=64, validation_episodes=16)
    windows = read_windows(tmp_path / "trace")
    check(config)
    assert validation(config).count == len(windows.part("validation")) == 4
    write_split(tmp_path / "short", make_split(arrivals(tmp_path / "short", pods=4, until_s=200.0), 100.0, 0.5))
    with pytest.raises(UserError, match=r"validation seeds: '1073741824.* the search plays these for training"):
        check(replace(config, task=(f"bill@{tmp_path / 'short'}",)))


def arrivals(folder: Path, pods: int, until_s: float) -> Trace:
    """Write a trace of pods that come evenly and run for half of the time between two."""
    node = Node("a", {"cpu": 4000, "memory": 8 << 30, "pods": 50})
    between_s = until_s / pods
    with TraceWriter(folder) as writer:
        for event in (Began(at=0.0), NodeSeen(at=0.0, node=node), Listed(at=0.0)):
            writer.write(event)
        for number in range(pods):
            at, pod = number * between_s, Pod(f"p{number}", requests={"cpu": 500, "memory": 1 << 30})
            writer.write(PodSeen(at=at, pod=pod))
            writer.write(PodBound(at=at, uid=pod.uid, node_name="a"))
            writer.write(PodEnded(at=at + between_s / 2, uid=pod.uid, how="succeeded"))
        writer.write(NodeGone(at=until_s, name="a"))
    return Trace.read(folder)


def test_a_training_is_validated_on_each_window_of_a_trace_once(tmp_path: Path) -> None:
    arrivals(tmp_path / "trace", pods=60, until_s=2000.0)
    factory, played = EnvFactory(EnvConfig(str(tmp_path / "trace"), (1,))), []

    def evaluate(seeds: Any, nodes: int, snapshot: Any) -> Any:
        played.append(list(seeds))
        return by_playing(factory, factory.policy("first-fit"), seeds, nodes, snapshot)

    Validation(factory, (1,), 16, "first-fit")(factory.policy("first-fit"), evaluate)
    assert played == [list(range(VALIDATION, VALIDATION + 4))]
