"""The real cluster that live tests share: started once a session, healed and emptied between tests."""

import os
import secrets
import signal
from collections.abc import Iterator

import pytest

from aaml.kube.provision import ClusterOptions, KwokCluster, binaries
from support.kwok import answers, heal, remove_leftovers, until

KWOK_NODES = 10


def pytest_configure() -> None:
    """Let the tests interrupt their processes: a shell's background jobs ignore SIGINT, and so would theirs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the real cluster, so that `-m "not kwok"` leaves it out."""
    for item in items:
        if "kwok" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kwok)


@pytest.fixture(scope="session")
def kwok() -> Iterator[KwokCluster]:
    """Start a real KWOK cluster: kube-scheduler, a tainted control plane, 10 workers of 64 CPU, 256Gi and 110 pods.

    Its programs are built ahead: that takes longer than a test may.
    """
    if not binaries.built():
        pytest.fail("the programs of the KWOK cluster are not built: run `aaml cluster build` (about 11 minutes, once)")
    remove_leftovers()
    cluster = KwokCluster(f"test-{os.getpid()}")
    cluster.up(ClusterOptions(nodes=KWOK_NODES), progress=False)
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def namespace(kwok: KwokCluster) -> Iterator[str]:
    """A fresh namespace that takes pods, on a cluster whose parts all run; its pods are gone after the test."""
    heal(kwok)
    api = kwok.api()
    name = f"t-{secrets.token_hex(4)}"
    api.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    until(
        lambda: answers(api, f"/api/v1/namespaces/{name}/serviceaccounts/default"),
        "the service account of a new namespace",
    )
    try:
        yield name
    finally:
        heal(kwok)
        api = kwok.api()
        # Grace 0 takes a pod out at once; a graceful deletion takes KWOK tens of seconds for a thousand pods.
        api.send("DELETE", f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")
        api.send("DELETE", f"/api/v1/namespaces/{name}")
