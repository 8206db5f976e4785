"""The real cluster that live tests share: started once a session, healed and emptied between tests."""

import os
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aaml.kube.provision import ClusterOptions, KwokCluster, Owner, binaries, end_orphans
from support.kwok import answers, heal, until

KWOK_NODES = 10
UNIT = Path(__file__).parent / "unit"
HOME = Path(__file__).parents[1]
SHARED = HOME.parent / "shared"  # traces and published tables where a checkout has them beside it


def pytest_configure() -> None:
    """Say where the tests' data is, and let the tests interrupt their processes.

    A shell's background jobs ignore SIGINT, and so would the processes that tests start. A worker of pytest-xdist
    inherits the size of a terminal that it does not have, which pytest's readline left in the environment.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        for variable in ("COLUMNS", "LINES"):
            os.environ.pop(variable, None)
    for variable, folder in (("AAML_TRACES", SHARED / "openb"), ("AAML_EXPECTED", SHARED / "expected")):
        if folder.is_dir():
            os.environ.setdefault(variable, str(folder))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> list[str]:
    """Say before half an hour of tests, not after it, that those of the GPU-sharing benchmark lack their data."""
    lacking = []
    if "AAML_TRACES" not in os.environ and not (HOME / "data/openb").is_dir():
        lacking.append("no openb traces, without which their tests fail: `aaml trace fetch openb`, or set AAML_TRACES")
    if "AAML_EXPECTED" not in os.environ and not (HOME / "data/expected").is_dir():
        lacking.append("no published tables of openb, without which theirs fail: see docs/benchmark/gpu-sharing.md")
    return lacking


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the real cluster, so that `-m "not kwok"` leaves it out.

    What plays with real processes is tried a second time when it fails, as Kubernetes' own tests are: a busy machine
    may be late where a test waits. The report names what was tried again (R); the unit tests have one try.
    """
    for item in items:
        if not item.path.is_relative_to(UNIT):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if "kwok" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kwok)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Draw the weights that a test names no seed for as every other run draws them."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Fail a test that lowers the priority of the tests after it: only root could raise it again."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    assert os.getpriority(os.PRIO_PROCESS, 0) == before, "the test changed this process's niceness"


@pytest.fixture(scope="session")
def kwok() -> Iterator[KwokCluster]:
    """Start a real KWOK cluster: kube-scheduler, a tainted control plane, 10 workers of 64 CPU, 256Gi and 110 pods.

    Its programs are built ahead: that takes longer than a test may. The clusters of test runs that were killed before
    they could take them down are ended first.
    """
    if not binaries.built():
        pytest.fail("the programs of the KWOK cluster are not built: run `aaml cluster build` (about 11 minutes, once)")
    end_orphans()
    cluster = KwokCluster(f"test-{os.getpid()}")
    cluster.up(ClusterOptions(nodes=KWOK_NODES, owner=Owner.this_process()), progress=False)
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
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    until(
        lambda: answers(api, f"/api/v1/namespaces/{name}/serviceaccounts/default"),
        "the service account of a new namespace",
        120.0,  # the controllers try again after up to a minute when the API server was away in the test before
    )
    try:
        yield name
    finally:
        heal(kwok)
        api = kwok.api()
        # Grace 0 takes a pod out at once; a graceful deletion takes KWOK tens of seconds for a thousand pods.
        api.request("DELETE", f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")
        api.request("DELETE", f"/api/v1/namespaces/{name}")
