"""Workloads as AAML's rules admit them against the real Kueue, in queues and on clusters drawn at random.

`AAML_KUEUE_ADMISSIONS` sets how many admissions are compared (none without it: compiling Kueue takes twenty minutes),
and `AAML_DIFFERENTIAL_SEED` the first world's seed; `make differential` runs many. A mismatch names its world's seed.
"""

import os

import pytest

from support.differential import Tally
from support.kueue_cases import World
from support.kueue_differential import Differential
from support.real_kueue import ADMISSIONS, kueue_cluster, needs_kueue, of_this_process

pytestmark = needs_kueue
FIRST_SEED = int(os.environ.get("AAML_DIFFERENTIAL_SEED", "1"))
WORLDS, STEPS = 12, 24


@pytest.mark.timeout(300 + 2 * ADMISSIONS)
def test_workloads_are_admitted_as_kueue_admits_them(capsys):
    tally, seed = Tally(), FIRST_SEED + 6_000_000
    with kueue_cluster(f"kueue-{os.getpid()}", of_this_process(nodes=1, scheduler=False)) as cluster:
        differential = Differential(cluster.api(), tally)
        while tally.counts.get("admissions", 0) < ADMISSIONS:
            differential.play([World(seed + number, f"w{seed + number}") for number in range(WORLDS)], STEPS)
            seed += WORLDS
    tally.report("admissions by Kueue", capsys)
    assert tally.counts["domains"] > ADMISSIONS / 2


@pytest.mark.timeout(300 + ADMISSIONS)
def test_balanced_placement_is_as_even_as_kueues(capsys):
    """Which of equally good domains Kueue takes is drawn: they are followed where they are as many and as full."""
    tally, seed = Tally(), FIRST_SEED + 7_000_000
    options = of_this_process(nodes=1, scheduler=False)
    with kueue_cluster(f"balanced-{os.getpid()}", options, TASBalancedPlacement=True) as cluster:
        differential = Differential(cluster.api(), tally)
        while tally.counts.get("pod sets, preferred", 0) < ADMISSIONS // 20:
            worlds = [World(seed + number, f"w{seed + number}", balanced=True) for number in range(WORLDS)]
            differential.play(worlds, STEPS)
            seed += WORLDS
    tally.report("balanced placement by Kueue", capsys)
