"""What a scheduler process answers to probes, and options that elect nobody."""

import urllib.error
import urllib.request

import pytest

from aaml.errors import UserError
from aaml.experiment.duty import DutyOptions, on_duty
from aaml.scheduling.loop import Attempt
from support.processes import free_port


def answer(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Cluster:
    def waiting_by_queue(self):
        return {"active": 3}


def test_probes_and_metrics_follow_the_process() -> None:
    port = free_port()
    with on_duty(DutyOptions(health_port=port), lambda: None, kubeconfig=None, profile="mine") as duty:
        assert duty.acquire(lambda: False)
        assert answer(port, "/readyz") == (503, "the cluster's objects are not known yet")
        duty.begin(Cluster())
        duty.on_attempt(Attempt("assumed", 0.01, 0.005))
        duty.on_attempt(Attempt("unschedulable", 0.01))
        assert not duty.beat(False)
        assert duty.beat(True)
        assert answer(port, "/readyz") == answer(port, "/healthz") == (200, "ok")
        metrics = answer(port, "/metrics")[1]
        assert 'scheduler_schedule_attempts_total{profile="mine",result="scheduled"} 1.0' in metrics
        assert 'scheduler_schedule_attempts_total{profile="mine",result="unschedulable"} 1.0' in metrics
        assert "scheduler_scheduling_algorithm_duration_seconds_count 1.0" in metrics
        assert 'scheduler_pending_pods{queue="active"} 3.0' in metrics
        duty.lost = True
        assert answer(port, "/healthz") == (503, "the lease was lost")
        assert duty.beat(False), "a process that lost its lease stops"


def test_a_stopped_process_does_not_begin() -> None:
    with on_duty(DutyOptions(), lambda: None, kubeconfig=None, profile="mine") as duty:
        assert not duty.acquire(lambda: True)


@pytest.mark.parametrize(
    "options",
    [
        DutyOptions(lease_duration_s=5.0),
        DutyOptions(retry_period_s=0.0),
        DutyOptions(renew_deadline_s=1.0),
        DutyOptions(lease_duration_s=15.5),
    ],
)
def test_times_that_elect_nobody(options: DutyOptions) -> None:
    with (
        pytest.raises(UserError, match="lease-duration-s"),
        on_duty(options, lambda: None, kubeconfig=None, profile="mine"),
    ):
        pass
