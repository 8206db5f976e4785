"""Our Karpenter against the real one: which nodes it provisions for waiting pods, and which it terminates or replaces.

Karpenter's own packages decide, in a program above objects in memory (`deploy/kwok/karpenter/decide`), built when it
is first needed. `AAML_KARPENTER_SCENES` sets how many scenes are drawn for each test (60), `AAML_KARPENTER_SEED` the
first one's seed, `AAML_KARPENTER_EPISODES` how many simulated episodes are taken apart (1) and `AAML_KARPENTER_STEP`
that every so-manyth of their scenes counts (8). `AAML_KARPENTER_REPORT` names a CSV file for the counts.
"""

import csv
import os
from pathlib import Path

import pytest

import aaml
from support.karpenter_differential import Tally, compare_look, compare_purchase
from support.karpenter_scenes import Scenes, scenes_of
from support.real_karpenter import RealKarpenter

SCENES = int(os.environ.get("AAML_KARPENTER_SCENES", "60"))
FIRST_SEED = int(os.environ.get("AAML_KARPENTER_SEED", "1"))
EPISODES = int(os.environ.get("AAML_KARPENTER_EPISODES", "1"))
STEP = int(os.environ.get("AAML_KARPENTER_STEP", "8"))
REPORT = os.environ.get("AAML_KARPENTER_REPORT", "")
EPISODE_NODES = 8
_SHOWN = 10
_COLUMNS = ("scenes", "decision", "decisions", "same", "tie", "different")


DRAWN = {"plain": {}, "alike": {"ties": True}, "gpus": {"gpus": True}, "bound": {"bound": True}}
"""Scenes of each kind: where nothing is worth the same, types and nodes that are alike, whole GPUs, and pods that ask
for zones, labels, each other's company or absence, host ports and volumes."""


@pytest.fixture(scope="module")
def real():
    with RealKarpenter() as running:
        yield running


def report(what, tally, capsys):
    rows = [
        (what, kind, number, tally.agreed[kind], tally.tied[kind], number - tally.agreed[kind] - tally.tied[kind])
        for kind, number in sorted(tally.decisions.items())
    ]
    with capsys.disabled():
        print(f"\n{what}: {len(tally.mismatches)} differences in {tally.total} decisions")
        for _, kind, number, agreed, tied, _ in rows:
            print(f"  {number:6} {kind}, {agreed} the same, {tied} ties that Karpenter breaks at random")
    if REPORT:
        new = not Path(REPORT).exists()
        with Path(REPORT).open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([_COLUMNS, *rows] if new else rows)
    assert not tally.mismatches, "\n".join(tally.mismatches[:_SHOWN])


@pytest.mark.timeout(900 + SCENES)
@pytest.mark.parametrize("kind", DRAWN)
def test_the_nodes_are_bought_that_karpenter_buys(real, capsys, kind):
    """Types of every claim, how many pods it has, what it is launched as, and which nodes take the other pods."""
    tally = Tally()
    for seed in range(FIRST_SEED, FIRST_SEED + SCENES // (1 if kind == "plain" else 2)):
        compare_purchase(real, Scenes(seed, **DRAWN[kind]).to_buy(), tally)
    report(f"drawn, {kind}", tally, capsys)
    assert tally.decisions.get("several nodes provisioned", 0) > tally.total // 10


@pytest.mark.timeout(300 + 3 * SCENES)
@pytest.mark.parametrize("kind", DRAWN)
def test_the_nodes_go_that_karpenter_gives_back_or_replaces(real, capsys, kind):
    """The method, the nodes, the types of a replacement and what it is launched as, whom the pods are meant for.

    The cluster may change while Karpenter waits 15 s to look at its plan once more.
    """
    tally = Tally()
    for seed in range(FIRST_SEED, FIRST_SEED + SCENES // (1 if kind == "plain" else 2)):
        compare_look(real, Scenes(seed, **DRAWN[kind]).to_sell(), tally)
    report(f"drawn, {kind}", tally, capsys)
    assert tally.decisions.get("no node goes", 0) < 0.8 * tally.total


@pytest.mark.timeout(300 + 5 * SCENES)
def test_a_cluster_that_stays_as_it_is_is_looked_at_again_as_often_as_karpenter_does(real, capsys):
    """Karpenter skips a method that has found nothing until something happens, even if a node might go by then."""
    tally = Tally()
    for seed in range(FIRST_SEED, FIRST_SEED + SCENES // 2):
        compare_look(real, Scenes(seed).to_wait_for(), tally)
    report("drawn, five looks at a cluster that stays", tally, capsys)
    assert tally.decisions.get("no node goes", 0) < 0.9 * tally.total


@pytest.mark.timeout(300 + 600 * EPISODES)
def test_in_simulated_episodes_the_decisions_are_karpenters(real, capsys):
    tally = Tally()
    for seed in range(FIRST_SEED, FIRST_SEED + EPISODES):
        for policy in ("kube-scheduler", "kube-scheduler-packing"):
            bought, looked = scenes_of(aaml.task("bill"), seed, policy, EPISODE_NODES)
            for scene in bought[::STEP]:
                compare_purchase(real, scene, tally)
            for scene in looked[::STEP]:
                compare_look(real, scene, tally)
    report("of simulated episodes", tally, capsys)
    assert tally.total > EPISODES * 100 // STEP
