"""A lease that is held: what a leader does while the server answers nonsense, late, or not at all."""

import threading
import time

import pytest

from aaml.errors import UserError
from aaml.kube.lease import LeaderLease, LeaseOptions
from aaml.kube.transport import Transport
from support.scripted_api import ScriptedApi, status

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
LEASE = f"{LEASES}/aaml-scheduler"
TIMES = LeaseOptions(duration_s=2.0, renew_deadline_s=0.6, retry_s=0.05)


def held(by: str, renewed: str = "2026-01-01T00:00:00.000000Z") -> dict:
    return {
        "metadata": {"name": "aaml-scheduler", "resourceVersion": "1"},
        "spec": {"holderIdentity": by, "leaseDurationSeconds": 2, "renewTime": renewed},
    }


@pytest.fixture
def api():
    with ScriptedApi() as server:
        server.on_list(LEASE, held("me"))
        server.on("PUT", LEASE, (200, {}))
        yield server


@pytest.fixture
def leader(api):
    """A leader, and what is set when it is told that it leads no more."""
    lost = threading.Event()
    lease = LeaderLease(Transport(server=api.server), "me", TIMES)
    assert lease.acquire(lambda: False, lost.set)
    yield lease, lost
    lease.release()


NONSENSE = {
    "no JSON": b"<html>a proxy's page</html>",
    "no object": [1, 2],
    "a specification that is none": {"metadata": {}, "spec": "held"},
    "a duration that is none": held("other") | {"spec": {"holderIdentity": "other", "leaseDurationSeconds": "long"}},
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
def test_a_leader_that_hears_only_nonsense_is_told_that_it_leads_no_more(api, leader, answer):
    api.on_list(LEASE, (200, answer))
    assert leader[1].wait(10)


def test_a_leader_that_hears_nonsense_for_a_moment_goes_on(api, leader):
    _, lost = leader
    api.on_list(LEASE, (200, b"no JSON"), held("me"))
    renewed = len(api.bodies("PUT", LEASE))
    deadline_s = time.monotonic() + 10
    while len(api.bodies("PUT", LEASE)) < renewed + 20 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not lost.is_set()
    assert len(api.bodies("PUT", LEASE)) >= renewed + 20


def test_a_leader_is_told_in_time_while_a_renewal_still_hangs(api):
    """A renewal may take as long as it likes; the lease runs out meanwhile, and others take it."""
    lost, go_on = threading.Event(), threading.Event()

    def hang(_body):
        go_on.wait(60)
        return 200, {}

    lease = LeaderLease(Transport(server=api.server, timeout_s=60.0), "me", TIMES)
    assert lease.acquire(lambda: False, lost.set)
    api.on("PUT", LEASE, hang)
    assert lost.wait(10)
    assert not go_on.is_set()
    go_on.set()
    lease.release()


def test_whatever_ends_the_renewing_ends_the_leading(api, monkeypatch):
    lost = threading.Event()
    lease = LeaderLease(Transport(server=api.server), "me", TIMES)
    assert lease.acquire(lambda: False, lost.set)

    def strange():
        raise MemoryError("no room")

    monkeypatch.setattr(lease, "attempt", strange)
    assert lost.wait(10)
    lease.release()


def test_a_candidate_that_hears_nonsense_stands_by_and_leads_later(api):
    api.on_list(LEASE, (200, b"no JSON"), (200, {"metadata": {}, "spec": 7}), held("me"))
    lease = LeaderLease(Transport(server=api.server), "me", TIMES)
    assert lease.acquire(lambda: False, lambda: None)
    lease.release()


def test_a_candidate_without_permission_is_told_so(api):
    api.on_list(LEASE, (403, status(403, "Forbidden", "no leases for you")))
    lease = LeaderLease(Transport(server=api.server), "me", TIMES)
    with pytest.raises(UserError, match="no leases for you"):
        lease.acquire(lambda: False, lambda: None)
