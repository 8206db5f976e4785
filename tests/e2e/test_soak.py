"""`aaml bench soak` in short: half a minute of pods that come and go, with an agent that learns."""

import os
from dataclasses import replace

import numpy as np
import pytest

from aaml.chaos.settings import SoakSettings
from aaml.chaos.soak import soak
from aaml.chaos.workload import shape_for
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner, binaries

SETTINGS = SoakSettings(minutes=0.5, rate=15.0, nodes=10, scheduler="dqn", lifetime_s=10.0)
AT_A_TIME = 400  # pods, those that wait to be deleted included


@pytest.fixture(scope="module")
def cluster():
    if not binaries.built():
        pytest.fail("the programs of the KWOK cluster are not built: run `aaml cluster build` (about 11 minutes, once)")
    cluster = KwokCluster(f"soak-{os.getpid()}")  # with kube-scheduler, which the idle extender is beside
    options = ClusterOptions(SETTINGS.nodes, shape_for(AT_A_TIME, SETTINGS.nodes), owner=Owner.this_process())
    try:
        cluster.up(options, progress=False)
        yield cluster
    finally:
        cluster.down()


@pytest.mark.parametrize("run", ["without-learner", "idle-extender"])
def test_an_agent_without_a_learner_and_an_extender_that_nobody_asks_keep_no_more_from_minute_to_minute(cluster, run):
    """The memory that defects of these two took grew with each decision and each event."""
    samples, waiting = soak(cluster, replace(SETTINGS, run=run, every_s=5.0), lambda _sample: None)
    assert waiting == samples[-1].restarts == 0
    assert samples[-1].bound >= 0.8 * samples[-1].created
    assert max(each.handles for each in samples) < 200
    assert samples[-1].memory_mib < 1.3 * samples[len(samples) // 2].memory_mib


def test_pods_come_and_go_for_half_a_minute_and_nothing_is_lost_or_grows(cluster):
    told = []
    samples, waiting = soak(cluster, SETTINGS, told.append)
    assert told == samples
    assert waiting == samples[-1].restarts == 0
    assert samples[-1].created >= 80  # 450 on a machine with nothing else to do
    assert samples[-1].bound >= 0.8 * samples[-1].created  # the others were on their way at that moment
    assert max(each.handles for each in samples) < 200
    assert max(each.memory_mib for each in samples[len(samples) // 2 :]) < 3_000
    losses = [each.loss for each in samples if each.loss is not None]
    assert losses
    assert np.isfinite(losses).all()
