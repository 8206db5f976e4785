"""Metrics: every number of a result says its unit and which way is better."""

import pickle

import pytest

from aaml.errors import UserError
from aaml.sim.metrics import BILLED, METRICS, OF_JOBS, find_metric
from aaml.sim.tasks import ALL_TASKS, TASKS

MEASURED = {"decisions", "latency_p50_ms", "latency_p99_ms"}  # of the run, beside those of the cluster


def test_every_number_of_a_cluster_is_in_the_table() -> None:
    assert set(TASKS["balance"].build(1, 3).metrics()) | MEASURED | set(BILLED) | set(OF_JOBS) == set(METRICS)
    assert set(ALL_TASKS["bill"].build(1, 3).metrics()) | MEASURED | set(OF_JOBS) == set(METRICS)


@pytest.mark.parametrize(
    ("task", "higher"), [("balance", False), ("compress", True), ("fragmentation", True), ("waiting", False)]
)
def test_a_task_is_better_the_way_its_metric_is(task: str, higher: bool) -> None:
    assert TASKS[task].higher_is_better == higher


def test_an_unknown_metric_is_answered_with_the_list() -> None:
    with pytest.raises(UserError, match="metric: 'speed' is not accepted; expected one of mean_variance"):
        find_metric("speed")


@pytest.mark.parametrize("name", ALL_TASKS)
def test_a_task_can_be_sent_to_another_process(name: str) -> None:
    task = pickle.loads(pickle.dumps(ALL_TASKS[name]))
    assert task == ALL_TASKS[name]
    assert hash(task) == hash(ALL_TASKS[name])
