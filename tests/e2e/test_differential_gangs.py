"""Pod groups as AAML places them against the real kube-scheduler, on clusters and groups drawn at random.

`AAML_DIFFERENTIAL_GROUPS` sets how many groups are decided on, `AAML_DIFFERENTIAL_GROUP_PREEMPTIONS` how many of them
have to preempt, and `AAML_DIFFERENTIAL_SEED` the first cluster's seed; `make differential` runs many. A mismatch names
the seed of its cluster.
"""

import os

import pytest

from aaml.kube.provision import binaries, end_orphans
from support.differential import Bench, Tally
from support.group_cases import GroupCases
from support.group_differential import compare_group, compare_group_preemption, create_groups, know_groups
from support.real_scheduler import RealScheduler

GROUPS = int(os.environ.get("AAML_DIFFERENTIAL_GROUPS", "30"))
PREEMPTIONS = int(os.environ.get("AAML_DIFFERENTIAL_GROUP_PREEMPTIONS", "8"))
FIRST_SEED = int(os.environ.get("AAML_DIFFERENTIAL_SEED", "1"))
GROUPS_PER_EPISODE = 10


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    if not binaries.built():
        pytest.fail("the programs of the KWOK cluster are not built: run `aaml cluster build` (about 11 minutes, once)")
    end_orphans()
    directory = tmp_path_factory.mktemp("scheduler")
    with RealScheduler(f"groups-{os.getpid()}", directory, extender=False, gates="gangs") as real:
        yield Bench(real)


@pytest.mark.timeout(120 + 2 * GROUPS)
def test_groups_go_where_kube_scheduler_puts_them(bench, capsys):
    tally, kinds = Tally(), set()
    for seed in range(FIRST_SEED + 4_000_000, FIRST_SEED + 4_000_000 + -(-GROUPS // GROUPS_PER_EPISODE)):
        cases = GroupCases(seed)
        nodes = cases.nodes()
        demanding = cases.rng.choice([0.0, 0.0, 0.05, 0.15])
        placed = cases.placed(nodes, cases.rng.randint(0, 12))
        state = bench.reset(cases, nodes, placed)
        for number in range(GROUPS_PER_EPISODE):
            group, pods = cases.group(f"{cases.prefix}-g{number}", demanding)
            verdict = compare_group(bench, state, group, pods, tally, seed)
            kinds.add(verdict.scheduled)
    tally.report("pod groups", capsys)
    assert tally.counts["groups"] >= GROUPS
    assert kinds == {True, False}  # the draw must leave choices


@pytest.mark.timeout(120 + 10 * PREEMPTIONS)
def test_a_group_preempts_whom_kube_scheduler_preempts_for_it(bench, capsys):
    tally, seed = Tally(), FIRST_SEED + 5_000_000
    while tally.counts.get("victims", 0) < PREEMPTIONS:
        cases = GroupCases(seed)
        nodes, budgets = cases.nodes(), cases.budgets()
        groups, running = cases.running_groups(nodes, 10 * len(nodes))
        create_groups(bench, groups)
        state = bench.reset(cases, nodes, running, budgets)
        know_groups(bench, state)
        for number in range(GROUPS_PER_EPISODE):
            priority = cases.rng.choice(["middle", "top", "top", "top-never"])
            name = f"{cases.prefix}-g{number}"
            # Its default is filled in before the class is looked at, and then refused where that says otherwise.
            policy = {"preemptionPolicy": "Never"} if priority == "top-never" else {}
            group, pods = cases.group(name, cases.rng.choice([0.0, 0.05]), priorityClassName=priority, **policy)
            compare_group_preemption(bench, state, group, pods, budgets, tally, seed)
        seed += 1
    tally.report("preemption by pod groups", capsys)
    assert tally.counts["victims of groups that leave as a whole"] > 0
