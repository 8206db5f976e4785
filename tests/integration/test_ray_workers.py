"""A Ray cluster of two nodes on one machine gives the results of one process, even when workers and nodes are lost."""

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from aaml.evaluation.evaluate import evaluate
from aaml.learning.config import Dqn
from aaml.parallel.pool import open_pool
from aaml.parallel.ray_cluster import open_ray
from aaml.training.settings import TrainConfig
from aaml.training.sweep import sweep
from aaml.training.sweep_space import SweepConfig
from support.training import assert_equal
from support.training import train as train_in

AGENT = Dqn(batch_size=32, update_frequency=32)
pytest.importorskip("ray", reason="the extra ray is not installed: pip install 'aaml[ray]'")
NODE = {
    "num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False, "include_log_monitor": False,
    "no_monitor": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def two_nodes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # listens on loopback alone
        from ray._private import ray_constants, utils
        from ray.cluster_utils import Cluster

        patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
        # Ray gives a node's agents 15 s to start, which those of the dashboard would take on a busy machine.
        patch.setattr(utils, "get_dashboard_dependency_error", lambda: ImportError("not wanted"))
        with ExitStack() as stack:
            yield start(Cluster, stack)


def start(cluster_type, stack, attempts=3):
    """Start two nodes and connect; again, when Ray's own processes were too slow for its patience."""
    for attempt in range(1, attempts + 1):
        with ExitStack() as trial:
            try:
                cluster = cluster_type()
                trial.callback(cluster.shutdown)
                cluster.add_node(**NODE)
                cluster.add_node(**NODE)
                trial.enter_context(open_ray(cluster.address))  # once: to connect takes Ray half a minute
            except Exception:
                if attempt == attempts:
                    raise
                continue
            stack.push(trial.pop_all())
            return cluster
    raise AssertionError


def kill_worker(title: str) -> None:
    """Kill one of our Ray workers by its title."""

    def ours(pid: int) -> bool:
        while pid > 1 and pid != os.getpid():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return pid == os.getpid()

    workers: list[int] = []
    deadline = time.monotonic() + 30.0
    while not workers and time.monotonic() < deadline:  # the title is there while it works
        titles: dict[int, bytes] = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                titles[int(path.parent.name)] = path.read_bytes()
        workers = [pid for pid, text in titles.items() if text.startswith(f"ray::{title}".encode()) and ours(pid)]
    assert workers
    os.kill(workers[0], signal.SIGKILL)


def train(path, workers, meanwhile=lambda chunk: None):
    """Train briefly; `meanwhile` is called before each chunk. Returns (weights, curve)."""
    config = TrainConfig(
        agent=AGENT, task="seedc", pods=40, envs=4, chunk=8, steps=192, teacher="none", validate_every=96,
        validation_episodes=1, seed=3, workers=workers, method="rewards",
    )  # fmt: skip
    chunks = []

    def stop():
        chunks.append(0)
        meanwhile(len(chunks))
        return False

    trainer, curve = train_in(config, path, stop=stop)
    return trainer.weights, curve


def test_a_sweep_is_the_same_though_a_worker_is_killed(two_nodes, tmp_path):
    base = TrainConfig(
        agent=AGENT, task="seedc", pods=40, envs=2, chunk=8, steps=96, teacher="none",
        validation_episodes=1, seed=3, method="rewards",
    )  # fmt: skip
    space = ("learning_rate=1e-4..1e-2:log", "hidden_size=8,16")
    config = SweepConfig(base, space, trials=4, batch=2, rungs=1)

    def run(workers, out):
        with open_pool(workers) as pool:
            study = sweep(config, out, pool, progress=False)
        return [(trial.number, trial.state.name, trial.params, trial.value) for trial in study.trials]

    expected = run(1, tmp_path / "here")
    with ThreadPoolExecutor(1) as beside:
        killed = beside.submit(kill_worker, "Desk.answer")
        assert run(f"ray:{two_nodes.address}", tmp_path / "ray") == expected
        killed.result()  # there was one to kill
    assert len(expected) == 4


def test_training_is_the_same_though_a_worker_is_killed_and_a_node_is_removed(two_nodes, tmp_path):
    expected, curve = train(tmp_path / "here", "1")
    address = f"ray:{two_nodes.address}"
    (second,) = two_nodes.worker_nodes

    def lose(chunk):
        if chunk == 3:
            kill_worker("Desk")
        if chunk == 5:
            two_nodes.remove_node(second, allow_graceful=False)

    weights, other = train(tmp_path / "ray", address, lose)  # two quiet chunks, then the losses
    assert other == curve
    assert_equal(weights, expected)
    assert len(curve) > 10


def test_evaluation_is_the_same_though_a_worker_is_killed(two_nodes):
    def run(workers, on_row=None):
        results = evaluate(
            ("least-variance", "random"), "balance", range(6), 4, pods=400, workers=workers, progress=False,
            on_row=on_row,
        )  # fmt: skip
        return results.frame().drop(columns=["latency_p50_ms", "latency_p99_ms"])

    rows = []

    def kill_at_the_first(row):
        if not rows:
            kill_worker("Desk.answer")
        rows.append(row)

    assert run(f"ray:{two_nodes.address}", kill_at_the_first).equals(run(1))
    assert len(rows) == 12
