"""Where work runs: what the flag means, results in this process and in others, and an end without leftovers."""

import multiprocessing
import os
import sys
import time

import pytest

from aaml.errors import UserError
from aaml.experiment.workers import Workers, open_pool, parse_workers


@pytest.mark.parametrize(
    ("value", "workers"),
    [
        (1, Workers()), ("4", Workers(4)), ("ray", Workers(ray="local")),
        ("ray:10.0.0.5:6379", Workers(ray="10.0.0.5:6379")), ("ray:a.head:6379", Workers(ray="a.head:6379")),
    ],
)  # fmt: skip
def test_workers_are_processes_or_a_ray_cluster(value, workers, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert parse_workers(value) == workers


def test_rays_own_variable_names_the_cluster(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.5:6379")
    assert parse_workers("ray") == Workers(ray="10.0.0.5:6379")
    assert parse_workers("ray:10.0.0.6:6379") == Workers(ray="10.0.0.6:6379")


@pytest.mark.parametrize(
    "value",
    ["", 0, "-1", "two", "2.5", "ray:", "ray:head", "ray:head:", "ray::6379", "ray:head:99999", "ray://head:1", "4:1"],
)
def test_anything_else_is_told_in_one_line(value):
    with pytest.raises(UserError, match=r"workers: .* a number of processes from 1, ray, or ray:HOST:PORT") as told:
        parse_workers(value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("workers", [1, "2"])
def test_jobs_come_back_with_their_positions(workers):
    with open_pool(workers) as pool:
        assert pool.size == int(workers)
        assert dict(pool.run(pow, [(2, exponent) for exponent in range(6)])) == {0: 1, 1: 2, 2: 4, 3: 8, 4: 16, 5: 32}
        (_, where), *_ = pool.run(os.getpid, [()])
    assert (where == os.getpid()) == (workers == 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_mistake_in_a_job_is_raised_as_it_was(workers):
    with open_pool(workers) as pool, pytest.raises(UserError, match="workers: 'many' is not accepted"):
        list(pool.run(parse_workers, [("many",)]))


def test_an_interruption_ends_the_processes_and_drops_what_waits():
    def interrupted():
        with open_pool(2) as pool:
            for _ in pool.run(time.sleep, [(0.0,), *[(3600.0,)] * 8]):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    deadline = time.monotonic() + 60.0
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not multiprocessing.active_children()


def test_missing_ray_is_told_with_the_way_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'aaml\[ray\]'"), open_pool("ray"):
        pass


def test_a_cluster_that_does_not_answer_is_told_at_once():
    pytest.importorskip("ray", reason="the extra ray is not installed: pip install 'aaml[ray]'")
    with pytest.raises(UserError, match=r"workers: 'ray:127.0.0.1:1' .*refused"), open_pool("ray:127.0.0.1:1"):
        pass
