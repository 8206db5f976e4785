"""Leases on a real API server: one leader at a time, quick handover, and no leader that cannot renew."""

import threading
import time

import pytest

from aaml.kube.lease import LeaderLease, LeaseOptions
from aaml.kube.provision import KwokCluster
from aaml.kube.transport import Transport


@pytest.fixture
def candidates(kwok: KwokCluster, namespace: str):
    made: list[LeaderLease] = []

    def make(identity: str, **times: float) -> LeaderLease:
        settings = {"duration_s": 2.0, "renew_deadline_s": 1.5, "retry_s": 0.2} | times
        transport = Transport(kwok.kubeconfig, connections=2)
        made.append(LeaderLease(transport, identity, LeaseOptions("scheduler", namespace, **settings)))
        return made[-1]

    yield make
    for lease in made:
        lease.release()


def nobody_lost() -> None:
    raise AssertionError("the lease was lost")


def test_the_first_leads_and_the_second_takes_over_when_it_is_given_up(candidates) -> None:
    first, second = candidates("one"), candidates("two")
    assert first.acquire(lambda: False, nobody_lost)
    assert second.attempt() == "one"
    assert not second.acquire(lambda: True, nobody_lost)
    first.release()
    assert second.acquire(lambda: False, nobody_lost)
    assert first.attempt() == "two"


def test_a_leader_that_dies_is_followed_when_its_lease_runs_out(candidates) -> None:
    dead, heir = candidates("dead"), candidates("heir")
    assert dead.attempt() == "dead"  # takes the lease and never renews it
    assert heir.attempt() == "dead"
    waited = time.monotonic()
    assert heir.acquire(lambda: time.monotonic() - waited > 30, nobody_lost)
    assert dead.attempt() == "heir"


def test_a_leader_that_keeps_renewing_is_not_followed(candidates) -> None:
    leader, other = candidates("leader"), candidates("other")
    assert leader.acquire(lambda: False, nobody_lost)
    until = time.monotonic() + 4.0  # twice the lease's duration
    assert not other.acquire(lambda: time.monotonic() > until, nobody_lost)


def test_a_leader_that_cannot_renew_is_told_so(candidates, kwok: KwokCluster) -> None:
    lost = threading.Event()
    leader = candidates("cut-off")
    assert leader.acquire(lambda: False, lost.set)
    kwok.stop_component("kube-apiserver")
    try:
        assert lost.wait(60)
    finally:
        kwok.start_component("kube-apiserver")


def test_of_many_at_once_exactly_one_leads(candidates) -> None:
    rivals = [candidates(f"rival-{i}") for i in range(6)]
    start, holders = threading.Barrier(6), []

    def race(lease: LeaderLease) -> None:
        start.wait()
        holders.append((lease.identity, lease.attempt()))

    threads = [threading.Thread(target=race, args=(lease,)) for lease in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([identity for identity, holder in holders if identity == holder]) == 1
