"""What a scheduler process answers to probes, and options that elect nobody."""

import time

import pytest

from aaml.cluster.objects import Pod
from aaml.errors import UserError
from aaml.live.scheduler_replica import scheduler_replica
from aaml.live.settings import ReplicaSettings
from aaml.scheduling.ports import Attempt, Outcome
from support.processes import free_port, probe
from support.scripted_api import ScriptedApi, write_kubeconfig


class Cluster:
    revoked = ""

    def waiting_by_queue(self):
        return {"active": 3}

    def revoke(self, why):
        self.revoked = why


def test_probes_and_metrics_follow_the_process() -> None:
    port = free_port()
    with scheduler_replica(ReplicaSettings(health_port=port), lambda: None, kubeconfig=None, profile="mine") as replica:
        assert replica.acquire(lambda: False)
        assert probe(port, "/readyz") == (503, "the cluster's objects are not known yet")
        replica.begin(Cluster())
        assert probe(port, "/readyz") == (503, "what decides is not ready yet")
        begun = probe(port, "/metrics")[1]
        for line in ('attempts_total{profile="mine",result="error"} 0.0', 'replaced_total{reason="handed-over"} 0.0'):
            assert line in begun, "what is counted begins at 0"
        replica.set_ready()
        replica.on_attempt(Attempt(Pod("p"), Outcome("assumed"), 0.01, policy_s=0.005))
        replica.on_attempt(Attempt(Pod("p"), Outcome("unschedulable"), 0.01))
        replica.replaced("deadline")
        assert probe(port, "/readyz") == probe(port, "/healthz") == (200, "ok")
        metrics = probe(port, "/metrics")[1]
        assert 'scheduler_schedule_attempts_total{profile="mine",result="scheduled"} 1.0' in metrics
        assert 'scheduler_schedule_attempts_total{profile="mine",result="unschedulable"} 1.0' in metrics
        assert "scheduler_scheduling_algorithm_duration_seconds_count 1.0" in metrics
        assert 'scheduler_pending_pods{queue="active"} 3.0' in metrics
        assert 'aaml_policy_replaced_total{reason="deadline"} 1.0' in metrics
        replica.lost = True
        assert probe(port, "/healthz") == (503, "the lease was lost")


def test_a_loop_that_does_not_turn_is_not_healthy(monkeypatch) -> None:
    with scheduler_replica(ReplicaSettings(), lambda: None, kubeconfig=None, profile="mine") as replica:
        assert replica.acquire(lambda: False)
        now_s = time.monotonic()
        monkeypatch.setattr("time.monotonic", lambda: now_s + 130.0)
        assert replica.healthy() == "the loop has not turned for 130 s"
        replica.on_turn()
        assert replica.healthy() == ""


def test_a_stopped_process_does_not_begin() -> None:
    with scheduler_replica(ReplicaSettings(), lambda: None, kubeconfig=None, profile="mine") as replica:
        assert not replica.acquire(lambda: True)


@pytest.mark.parametrize(
    "options",
    [
        ReplicaSettings(lease_duration_s=5.0),
        ReplicaSettings(retry_period_s=0.0),
        ReplicaSettings(renew_deadline_s=1.0),
        ReplicaSettings(lease_duration_s=15.5),
    ],
)
def test_times_that_elect_nobody(options: ReplicaSettings) -> None:
    with (
        pytest.raises(UserError, match="lease-duration-s"),
        scheduler_replica(options, lambda: None, kubeconfig=None, profile="mine"),
    ):
        pass


LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/aaml-scheduler"


def test_a_metric_says_which_replica_leads_by_kube_schedulers_name(tmp_path) -> None:
    port = free_port()
    options = ReplicaSettings(health_port=port, leader_elect=True, lease_duration_s=15.0)
    lease = {"metadata": {"name": "aaml-scheduler", "resourceVersion": "1"}, "spec": {}}

    def leads() -> str:
        metric = 'leader_election_master_status{name="aaml-scheduler"} '
        return next(line for line in probe(port, "/metrics")[1].splitlines() if line.startswith(metric))[len(metric) :]

    with ScriptedApi() as api:
        api.on_list(LEASE, lease)
        api.on("PUT", LEASE, (200, {}))
        kubeconfig = write_kubeconfig(tmp_path, api.server)
        with scheduler_replica(options, lambda: None, kubeconfig=kubeconfig, profile="mine") as replica:
            assert leads() == "0.0", "it stands by"
            assert replica.acquire(lambda: False)
            assert leads() == "1.0"
            replica._on_lost()
            assert leads() == "0.0"


def test_a_process_that_stood_still_may_not_write_before_anybody_has_noticed(tmp_path, monkeypatch) -> None:
    lease = {"metadata": {"name": "aaml-scheduler", "resourceVersion": "1"}, "spec": {}}
    with ScriptedApi() as api:
        api.on_list(LEASE, lease)
        api.on("PUT", LEASE, (200, {}))
        kubeconfig = write_kubeconfig(tmp_path, api.server)
        options = ReplicaSettings(leader_elect=True)
        with scheduler_replica(options, lambda: None, kubeconfig=kubeconfig, profile="mine") as replica:
            assert not replica.holds_lease, "it stands by"
            assert replica.acquire(lambda: False)
            assert replica.holds_lease
            now_s = time.monotonic()
            monkeypatch.setattr("time.monotonic", lambda: now_s + options.renew_deadline_s + 0.1)
            assert not replica.holds_lease, "another one may lead by now"


def test_without_election_no_metric_speaks_of_a_leader() -> None:
    port = free_port()
    with scheduler_replica(ReplicaSettings(health_port=port), lambda: None, kubeconfig=None, profile="mine") as replica:
        assert replica.acquire(lambda: False)
        assert "leader_election_master_status{" not in probe(port, "/metrics")[1]


def test_who_loses_the_lease_binds_nothing_more() -> None:
    cluster, stopped = Cluster(), []
    with scheduler_replica(ReplicaSettings(), lambda: stopped.append(True), kubeconfig=None, profile="mine") as replica:
        assert replica.acquire(lambda: False)
        replica.begin(cluster)
        assert not cluster.revoked
        replica._on_lost()
        assert (cluster.revoked, stopped) == ("the lease was lost", [True])
        connected_since = Cluster()  # while it was connecting, the lease was lost
        replica.begin(connected_since)
        assert connected_since.revoked == "the lease was lost"
