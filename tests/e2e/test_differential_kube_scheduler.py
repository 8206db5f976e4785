"""AAML's filters, scores and preemption against the real kube-scheduler, on clusters and pods drawn at random.

`AAML_DIFFERENTIAL_EPISODES` sets how many clusters are drawn (40 by default, 1,000 decisions),
`AAML_DIFFERENTIAL_STRANGE` how many of strange nodes and pods (3, about 240 objects), `AAML_DIFFERENTIAL_VOLUMES` how
many whose pods have claims (3; kube-scheduler looks once a second whether a volume is bound), and
`AAML_DIFFERENTIAL_SEED` the first one's seed; `make differential` runs many, and some against the older releases of
Kubernetes that `AAML_DIFFERENTIAL_RELEASES` names. A mismatch names the seed of its cluster.
"""

import os

import pytest

from aaml.kube.provision import binaries, end_orphans
from support.differential import Bench, Tally, compare_decision, compare_preemption
from support.real_scheduler import RealScheduler
from support.scheduling_cases import DRIVER, Cases
from support.strange_cases import StrangeCases
from support.volume_cases import TRACKED, VolumeCases
from support.volume_differential import BARRIER_DRIVER, VolumeBench, compare_volumes
from support.volumes import Provisioner

EPISODES = int(os.environ.get("AAML_DIFFERENTIAL_EPISODES", "40"))
FIRST_SEED = int(os.environ.get("AAML_DIFFERENTIAL_SEED", "1"))
STRANGE_EPISODES = int(os.environ.get("AAML_DIFFERENTIAL_STRANGE", "3"))
VOLUME_EPISODES = int(os.environ.get("AAML_DIFFERENTIAL_VOLUMES", "3"))
RELEASES = os.environ.get("AAML_DIFFERENTIAL_RELEASES", "").split()
RELEASE_EPISODES = 8
PODS_PER_EPISODE = 25
STRANGE_PODS = 60
VOLUME_PODS = 10


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    if not binaries.built():
        pytest.fail("the programs of the KWOK cluster are not built: run `aaml cluster build` (about 11 minutes, once)")
    end_orphans()
    with RealScheduler(f"differential-{os.getpid()}", tmp_path_factory.mktemp("scheduler")) as real:
        yield Bench(real)


@pytest.fixture(scope="module")
def volumes(bench):
    with Provisioner(bench.api, DRIVER, TRACKED, BARRIER_DRIVER, binds=True):
        yield VolumeBench(bench)


@pytest.mark.timeout(60 + 10 * EPISODES)
def test_filters_and_scores_are_those_of_kube_scheduler(bench, capsys):
    decide(bench, EPISODES, "filters and scores", capsys)


@pytest.mark.timeout(1200)  # with the first build of its programs
@pytest.mark.parametrize("release", RELEASES)
def test_filters_and_scores_are_those_of_older_releases(release, tmp_path, capsys):
    with RealScheduler(f"older-{os.getpid()}", tmp_path, kubernetes=release) as real:
        decide(Bench(real), RELEASE_EPISODES, f"Kubernetes {release}", capsys, newest=False)


def without_rules(pod):
    """Return a pod without rules of restarting, of which releases before 1.36 know fewer."""
    for container in pod["spec"]["containers"]:
        container.pop("restartPolicyRules", None)
    return pod


def decide(bench, episodes, what, capsys, *, newest=True):
    tally = Tally()
    for seed in range(FIRST_SEED, FIRST_SEED + episodes):
        cases = Cases(seed)
        nodes = cases.nodes()
        demanding = cases.rng.choice([0.05, 0.15, 0.25, 0.35])
        placed = cases.placed(nodes, cases.rng.randint(0, 20))
        state = bench.reset(cases, nodes, placed if newest else [without_rules(each) for each in placed])
        for _ in range(PODS_PER_EPISODE):
            pod = cases.pod(demanding=demanding)
            compare_decision(bench, state, pod if newest else without_rules(pod), tally, seed)
    tally.report(what, capsys)
    assert tally.counts["feasible nodes"] == episodes * PODS_PER_EPISODE
    assert tally.counts["total score"] > episodes  # the draw must leave choices, or nothing was scored


@pytest.mark.timeout(60 + 30 * STRANGE_EPISODES)
def test_strange_nodes_and_pods_are_judged_as_by_kube_scheduler(bench, capsys):
    """Amounts, names, labels, selectors and numbers of things that an API server takes and nobody expects."""
    tally, objects = Tally(), 0
    for seed in range(FIRST_SEED + 2_000_000, FIRST_SEED + 2_000_000 + STRANGE_EPISODES):
        cases = StrangeCases(seed)
        nodes = cases.nodes()
        state = bench.reset(cases, nodes, placed := cases.placed(nodes, cases.rng.randint(0, 12)))
        for _ in range(STRANGE_PODS):
            compare_decision(bench, state, cases.pod(demanding=0.1), tally, seed, huge=cases.huge)
        objects += len(nodes) + len(placed) + STRANGE_PODS
    tally.report(f"{objects} strange nodes and pods", capsys)
    assert tally.counts["total score"] > STRANGE_EPISODES


@pytest.mark.timeout(60 + 30 * VOLUME_EPISODES)
def test_claims_get_the_volumes_that_kube_scheduler_gives_them(volumes, capsys):
    """Volumes that are there and new ones; a provisioner and a controller of volumes are played."""
    tally = Tally()
    for seed in range(FIRST_SEED + 3_000_000, FIRST_SEED + 3_000_000 + VOLUME_EPISODES):
        cases = VolumeCases(seed)
        volumes.reset(cases)
        for _ in range(VOLUME_PODS):
            compare_volumes(volumes, cases.pod(), tally, seed)
    tally.report("claims and volumes", capsys)
    assert tally.counts["feasible nodes"] == VOLUME_EPISODES * VOLUME_PODS
    assert tally.counts["volumes of the claims"] >= VOLUME_EPISODES  # the draw must leave choices
    assert tally.counts["message"] >= VOLUME_EPISODES


@pytest.mark.timeout(60 + 5 * EPISODES)
def test_preemption_is_that_of_kube_scheduler(bench, capsys):
    tally = Tally()
    episodes = max(EPISODES // 5, 1)
    for seed in range(FIRST_SEED + 1_000_000, FIRST_SEED + 1_000_000 + episodes):
        cases = Cases(seed)
        nodes = cases.nodes()[:6]
        budgets = cases.budgets()
        leaving = cases.chance(0.5)
        state = bench.reset(cases, nodes, cases.running(nodes, 14 * len(nodes), leaving=leaving), budgets)
        for _ in range(PODS_PER_EPISODE):
            nominated = cases.nomination(nodes, leaving=leaving)
            compare_preemption(bench, state, cases.important(leaving=leaving), budgets, tally, seed, nominated)
    tally.report("preemption", capsys)
    assert tally.counts["victims"] > episodes
    assert tally.counts["stays nominated"] > 0
