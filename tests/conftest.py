"""The real cluster that live tests share: started once a session, healed and emptied between tests."""

import os
import re
import secrets
import time
from collections.abc import Iterator

import pytest

from aaml.kube.provision import Api, ApiError, ClusterOptions, KwokCluster, binaries, records

KWOK_NODES = 10


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
    until(lambda: answers(api, f"/api/v1/namespaces/{name}/serviceaccounts/default"), "its service account")
    try:
        yield name
    finally:
        heal(kwok)
        api = kwok.api()
        # Grace 0 takes a pod out at once; a graceful deletion takes KWOK tens of seconds for a thousand pods.
        api.send("DELETE", f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")
        api.send("DELETE", f"/api/v1/namespaces/{name}")


def heal(cluster: KwokCluster) -> None:
    """Start again what a failed test left stopped."""
    for name, component in cluster.components().items():
        if component.pid() is None:
            cluster.start_component(name)


def answers(api: Api, path: str) -> bool:
    """Say whether an object exists."""
    try:
        api.send("GET", path)
    except ApiError:
        return False
    return True


def until(condition, what: str, wait_s: float = 60.0) -> None:
    """Wait for a condition; fail with its name when it does not come true."""
    deadline = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come in {wait_s:g} s")
        time.sleep(0.05)


def remove_leftovers() -> None:
    """Take down the clusters of test sessions that were killed before they could."""
    for name in records.names():
        match = re.fullmatch(r"test-(\d+)", name)
        if match and not alive(int(match[1])):
            KwokCluster(name).down()


def alive(pid: int) -> bool:
    """Say whether a process of that id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
