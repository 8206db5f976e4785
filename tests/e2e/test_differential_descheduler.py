"""Our HighNodeUtilization against the descheduler's own plugin: the same pods, evicted in the same order.

The descheduler's packages decide, in a program above objects in memory (`tests/support/descheduler`), built when it is
first needed. `AAML_DESCHEDULER_SCENES` sets how many scenes are drawn (400), `AAML_DESCHEDULER_SEED` the first one's.
"""

import os

import pytest

from support.real_descheduler import EvictionScene, RealDescheduler

SCENES = int(os.environ.get("AAML_DESCHEDULER_SCENES", "400"))
FIRST_SEED = int(os.environ.get("AAML_DESCHEDULER_SEED", "1"))
_SHOWN = 5


@pytest.mark.timeout(1200 + SCENES)
def test_the_pods_are_evicted_that_the_descheduler_evicts(capsys):
    different, acted, evicted, tied = [], 0, 0, 0
    with RealDescheduler() as real:
        for seed in range(FIRST_SEED, FIRST_SEED + SCENES):
            scene = EvictionScene.drawn(seed)
            if scene.tied:
                tied += 1
                continue
            ours, theirs = scene.ours(), real.evicted(scene.question())
            acted, evicted = acted + bool(theirs), evicted + len(theirs)
            if ours != theirs:
                different.append(f"scene {seed}: ours {ours}, the descheduler's {theirs}")
    with capsys.disabled():
        print(f"\n{SCENES} scenes, {tied} ties, {acted} with evictions, {evicted} pods: {len(different)} differences")
    assert not different, "\n".join(different[:_SHOWN])
    assert acted > SCENES // 4
