"""`aaml soak` in short: two minutes of pods that come and go, with an agent that learns."""

import os

import numpy as np
import pytest

from aaml.chaos.soak import SoakSettings, soak
from aaml.chaos.workload import shape_for
from aaml.kube.provision import ClusterOptions, KwokCluster, Owner, binaries

SETTINGS = SoakSettings(minutes=2.0, rate=15.0, nodes=10, scheduler="dqn", lifetime_s=10.0)
AT_A_TIME = 400  # pods, those that wait to be deleted included


@pytest.fixture
def cluster():
    if not binaries.built():
        pytest.fail("the programs of the KWOK cluster are not built: run `aaml cluster build` (about 11 minutes, once)")
    cluster = KwokCluster(f"soak-{os.getpid()}")
    shape = shape_for(AT_A_TIME, SETTINGS.nodes)
    try:
        cluster.up(ClusterOptions(SETTINGS.nodes, shape, scheduler=False, owner=Owner.this_process()), progress=False)
        yield cluster
    finally:
        cluster.down()


def test_pods_come_and_go_for_two_minutes_and_nothing_is_lost_or_grows(cluster):
    told = []
    samples, waiting = soak(cluster, SETTINGS, told.append)
    assert told == samples
    assert waiting == samples[-1].restarts == 0
    assert samples[-1].created >= 300  # 1,800 on a machine with nothing else to do
    assert samples[-1].bound >= 0.8 * samples[-1].created  # the others were on their way at that moment
    assert max(each.handles for each in samples) < 200
    assert max(each.memory_mib for each in samples[len(samples) // 2 :]) < 3_000
    losses = [each.loss for each in samples if each.loss is not None]
    assert losses
    assert np.isfinite(losses).all()
