"""The player against a made-up cluster whose clock it moves itself: rounds, loads, pacing, lifetimes, pending pods."""

import csv

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.files import RowWriter
from aaml.workload.deployments import COLUMNS, Deployment, DeploymentShape, RandomDeployments, read_deployments
from aaml.workload.player import Load, PlaySettings, WorkloadPlayer


class FakeCluster:
    """Places pods at once while there is room for `capacity` pods."""

    def __init__(self, capacity=100):
        self.capacity, self.clock, self.log, self.interrupted = capacity, 0.0, [], False
        self.there, self.placed = {}, {}

    def now_s(self):
        return self.clock

    def create(self, deployments):
        for each in deployments:
            self.log.append(("create", each.name, self.clock))
            self.there[each.name] = each
            self.placed[each.name] = 0
        self._place()

    def _place(self):
        for name, each in self.there.items():
            room = self.capacity - sum(self.placed.values())
            self.placed[name] += min(room, each.pod_count - self.placed[name])

    def delete(self, names):
        for name in names:
            self.log.append(("delete", name, self.clock))
            del self.there[name], self.placed[name]
        self._place()

    def wait_placed(self, names, timeout_s):
        waiting = {name: self.there[name].pod_count - self.placed[name] for name in names}
        waiting = {name: count for name, count in waiting.items() if count}
        if waiting:
            self.clock += timeout_s
        return waiting

    def sleep(self, duration_s):
        self.clock += duration_s

    def load(self):
        return Load(0.0, 0.0, sum(self.placed.values()) / self.capacity)

    def interrupt(self):
        self.interrupted = True

    def close(self):
        pass


def source(pods=10, lifetime_s=None):
    return RandomDeployments(
        np.random.default_rng(0), [DeploymentShape(replicas=(pods, pods))], lifetime_s=lifetime_s, tag="t"
    )


def test_it_stops_at_the_load():
    cluster = FakeCluster(100)
    (only,) = WorkloadPlayer(cluster, PlaySettings(pod_load=0.25), source=source()).run()
    assert only.pods == 30  # 20 pods are below 25 %, the third deployment reaches it
    assert only.ended == "pods reached 25%"
    assert only.load.pods == 0.3


def test_each_round_begins_empty_and_the_last_stays():
    cluster = FakeCluster(100)
    rounds = WorkloadPlayer(cluster, PlaySettings(pod_load=0.2, rounds=3, hold_s=5.0), source=source()).run()
    assert [each.pods for each in rounds] == [20, 20, 20]
    assert len(cluster.there) == 2
    assert cluster.clock == 10.0


def test_the_interval_is_kept_between_deployments():
    cluster = FakeCluster(100)
    WorkloadPlayer(cluster, PlaySettings(pod_load=0.3, interval_s=7.0), source=source()).run()
    assert [at for _, _, at in cluster.log] == [0.0, 7.0, 14.0]


def test_several_at_once():
    cluster = FakeCluster(100)
    settings = PlaySettings(pod_load=1.0, at_once=3, interval_s=1.0, max_deployments=7)
    (only,) = WorkloadPlayer(cluster, settings, source=source()).run()
    assert [at for _, _, at in cluster.log] == [0.0] * 3 + [1.0] * 3 + [2.0]
    assert only.ended == "7 deployments, as configured"


def test_what_stays_pending_ends_the_round_and_is_told():
    cluster = FakeCluster(15)
    (only,) = WorkloadPlayer(cluster, PlaySettings(pod_load=1.0, wait_s=20.0), source=source()).run()
    assert only.pending == {"web-t-2": 5}
    assert only.ended.startswith("pods had no node after 20 s")
    assert "5 pods pending (web-t-2 5)" in str(only)
    assert cluster.clock == 20.0


def test_a_deployment_that_ends_makes_room_for_one_that_waits():
    cluster = FakeCluster(15)
    settings = PlaySettings(pod_load=1.0, wait_s=60.0, max_deployments=2)
    (only,) = WorkloadPlayer(cluster, settings, source=source(lifetime_s=30.0)).run()
    assert only.pending == {}
    assert [(what, at) for what, _, at in cluster.log] == [("create", 0.0), ("create", 0.0), ("delete", 30.0)]


def test_lifetimes_end_in_time_while_it_rests():
    cluster = FakeCluster(1000)
    settings = PlaySettings(pod_load=1.0, interval_s=10.0, max_deployments=3)
    WorkloadPlayer(cluster, settings, source=source(lifetime_s=15.0)).run()
    assert [(what, at) for what, _, at in cluster.log] == [
        ("create", 0.0), ("create", 10.0), ("delete", 15.0), ("create", 20.0), ("delete", 25.0),
    ]  # fmt: skip


def test_a_run_that_was_written_plays_back_in_the_same_order(tmp_path):
    first, again = FakeCluster(100), FakeCluster(100)
    writer = RowWriter(tmp_path / "data.csv", COLUMNS)
    WorkloadPlayer(first, PlaySettings(pod_load=0.2, rounds=2), source=source(), writer=writer).run()
    writer.close()
    with (tmp_path / "data.csv").open() as file:
        assert [row["action"] for row in csv.DictReader(file)] == ["create", "create", "delete", "delete"] + [
            "create"
        ] * 2
    (only,) = WorkloadPlayer(again, PlaySettings(), steps=read_deployments(tmp_path / "data.csv")).run()
    assert [(what, name) for what, name, _ in again.log] == [(what, name) for what, name, _ in first.log]
    assert only.ended == "all of the file was played"


def test_playback_ignores_the_loads():
    cluster = FakeCluster(100)
    steps = [(Deployment(f"d{i}", 10, 1, 1), "create") for i in range(5)]
    (only,) = WorkloadPlayer(cluster, PlaySettings(pod_load=0.1), steps=steps).run()
    assert only.pods == 50


def test_stop_ends_it_and_leaves_what_is_there():
    cluster = FakeCluster(1000)
    player = WorkloadPlayer(
        cluster, PlaySettings(pod_load=1.0), source=source(), on_wave=lambda _pods, current: player.stop()
    )
    (only,) = player.run()
    assert only.ended == "stopped"
    assert only.pods == 10
    assert len(cluster.there) == 1
    assert cluster.interrupted


@pytest.mark.parametrize(
    "wrong", [{"cpu_load": 0.0}, {"pod_load": 1.5}, {"interval_s": -1.0}, {"rounds": 0}, {"at_once": 0}, {"wait_s": 0}]
)
def test_impossible_settings_are_refused_by_name(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        PlaySettings(**wrong)
