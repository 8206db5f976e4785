"""The real cluster that live tests share: started once a session, healed and emptied between tests."""

import gc
import os
import secrets
import signal
import sys
from collections.abc import Generator, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from aaml.kube.provision import ClusterOptions, KwokCluster, Owner, binaries, end_orphans
from support.kwok import answers, heal, until

KWOK_NODES = 10
TESTS = Path(__file__).parent
UNIT = TESTS / "unit"
HOME = TESTS.parent
SHARED = HOME.parent / "shared"  # traces and published tables where a checkout has them beside it
DATA = {"AAML_TRACES": "openb", "AAML_EXPECTED": "expected", "AAML_SPOT": "spot", "AAML_PHILLY": "philly"}
LIVE = ("contract/", "e2e/")
LONGEST = {  # files that take a minute and more
    "e2e/test_chaos.py", "e2e/test_cluster_lifecycle.py", "e2e/test_differential_kube_scheduler.py",
    "e2e/test_differential_gangs.py", "e2e/test_four_agents_live.py", "e2e/test_karpenter_live.py",
    "e2e/test_kubernetes_benchmark.py",
    "e2e/test_live_failures.py", "e2e/test_notebook.py", "e2e/test_plugin_live.py", "e2e/test_soak.py",
    "integration/test_notebooks.py", "integration/test_plugin_states.py", "integration/test_ray_workers.py",
    "integration/test_shipped_scorers.py", "integration/test_sweep_trains.py", "integration/test_wheel.py",
    "unit/episodes/test_compiled_bills.py", "unit/episodes/test_compiled_learned_nodes.py",
    "unit/evaluation/test_choices.py", "unit/evaluation/test_default_spreading.py", "unit/test_writing_commands.py",
    "unit/training/test_sweep.py", "unit/tuning/test_tune_nodes.py",
}  # fmt: skip
LONG_AS = 10  # others
APART = {  # long files whose tests share nothing and compile little: they come last, and keep all workers busy
    "unit/episodes/test_batch.py", "unit/evaluation/test_evaluate.py", "unit/learning/test_group_rollouts.py",
}  # fmt: skip


class FileScheduling(LoadFileScheduling):
    """Gives a worker whole files, so that what a file's tests share is made once; of those `APART` a test at a time."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return nodeid if file.removeprefix(f"{TESTS.name}/") in APART else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Deal the tests out to several workers."""
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_configure() -> None:
    """Say where the tests' data is, and let the tests interrupt their processes.

    A shell's background jobs ignore SIGINT, and so would the processes that tests start. A worker of pytest-xdist
    inherits the size of a terminal that it does not have, which pytest's readline left in the environment.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        for variable in ("COLUMNS", "LINES"):
            os.environ.pop(variable, None)
    for variable, folder in DATA.items():
        if (SHARED / folder).is_dir():
            os.environ.setdefault(variable, str(SHARED / folder))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among what all tests share: it lives to the end, and there are a million objects of it."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()
    return result


def pytest_report_header() -> list[str]:
    """Say before half an hour of tests, not after it, that those of published benchmarks lack their data."""
    lacking = []
    if "AAML_TRACES" not in os.environ and not (HOME / "data/openb").is_dir():
        lacking.append("no openb traces, without which their tests fail: `aaml trace fetch openb`, or set AAML_TRACES")
    if "AAML_SPOT" not in os.environ and not (HOME / "data/spot").is_dir():
        lacking.append("no spot traces, without which their tests fail: `aaml trace fetch spot`, or set AAML_SPOT")
    if "AAML_PHILLY" not in os.environ and not (HOME / "data/philly").is_dir():
        lacking.append("no jobs of Philly, without which their tests fail: `aaml trace fetch philly`")
    if "AAML_EXPECTED" not in os.environ and not (HOME / "data/expected").is_dir():
        lacking.append("no published tables of openb, without which theirs fail: see docs/benchmark/gpu-sharing.md")
    return lacking


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the real cluster, so that `-m "not kwok"` leaves it out; order the files for several workers.

    What plays with real processes is tried a second time when it fails, as Kubernetes' own tests are: a busy machine
    may be late where a test waits. The report names what was tried again (R); the unit tests have one try.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = mixed(items)
    for item in items:
        if not item.path.is_relative_to(UNIT):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if "kwok" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kwok)


def mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests file by file, in the order in which workers take the files.

    Live tests wait, the others compute: beside one another they keep all cores busy. Of each kind the `LONGEST` files
    come first, and those `APART` last, so that short ones even out the end. The live ones are dealt out over the first
    three quarters.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path.relative_to(TESTS).as_posix(), []).append(item)
    order: list[tuple[float, str]] = []
    for live, end in ((True, 0.75), (False, 1.0)):
        names = sorted(
            (name for name in files if name.startswith(LIVE) is live),
            key=lambda name: (name in APART, name not in LONGEST),
        )
        weights = [LONG_AS if name in LONGEST else 1 for name in names]
        before = accumulate(weights, initial=0)
        order += [(end * start / sum(weights), name) for start, name in zip(before, names, strict=False)]
    return [item for _, name in sorted(order) for item in files[name]]


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
