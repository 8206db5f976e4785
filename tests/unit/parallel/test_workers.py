"""Where work runs: what the flag means, results in this process and in others, and an end without leftovers."""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from aaml.errors import StoppedError, UserError
from aaml.parallel.pool import Keeper, KeptElsewhere, open_pool
from aaml.parallel.worker import Desk, WorkerLostError
from aaml.parallel.workers import Workers, parse_workers


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


def test_a_stop_does_not_wait_for_jobs_that_run():
    asked = []

    def stopped():
        asked.append(1)
        return len(asked) > 1

    with open_pool(2) as pool, pytest.raises(StoppedError):
        list(pool.run(time.sleep, [(3600,), (3600,)], stopped))
    with open_pool(1) as pool, pytest.raises(StoppedError):
        list(pool.run(pow, [(2, 2), (2, 3)], stopped))


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


class _EndsWithin:
    """Is told to end where Python cannot raise, as in a callback of a library."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


class _Broken:
    def __del__(self):
        raise ValueError("a defect")


def _drop(kind):
    kind()


@pytest.mark.parametrize(("kind", "told"), [(_EndsWithin, False), (_Broken, True)])
def test_an_end_within_a_callback_is_no_traceback_and_a_defect_is_one(kind, told, capfd):
    with open_pool(2) as pool:
        list(pool.run(_drop, [(kind,)]))
    assert ("Traceback" in capfd.readouterr().err) == told


def test_missing_ray_is_told_with_the_way_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'aaml\[ray\]'"), open_pool("ray"):
        pass


def test_a_cluster_that_does_not_answer_is_told_at_once():
    pytest.importorskip("ray", reason="the extra ray is not installed: pip install 'aaml[ray]'")
    with pytest.raises(UserError, match=r"workers: 'ray:127.0.0.1:1' .*refused"), open_pool("ray:127.0.0.1:1"):
        pass


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def killed_the_first_time(marker):
    """Die at the first call, return this process at the next."""
    if not marker.exists():
        marker.touch()
        killed()
    return os.getpid()


def test_a_job_whose_process_is_killed_is_done_by_another(tmp_path):
    jobs = [(tmp_path / name,) for name in "abc"]
    with open_pool(2) as pool:
        done = dict(pool.run(killed_the_first_time, jobs))
    assert sorted(done) == [0, 1, 2]
    assert os.getpid() not in done.values()


def test_a_job_that_kills_every_process_ends_the_run():
    with open_pool(2) as pool, pytest.raises(RuntimeError, match=r"lost again and again: process \d+ has died"):
        list(pool.run(killed, [()]))


class Sum:
    """Adds up what it is told."""

    def __init__(self, start):
        self.total = start

    def add(self, value):
        if value < 0:
            raise UserError("value: less than 0")
        self.total += value
        return self.total

    def state(self):
        return self.total

    def restore(self, state):
        self.total = state


def ask(kept, *call):
    kept.send(*call)
    return kept.receive()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_kept_remembers_from_call_to_call(workers):
    with open_pool(workers) as pool:
        one, other = pool.keep(Sum, 10), pool.keep(Sum, 20)
        assert [ask(one, "add", 1), ask(other, "add", 1), ask(one, "add", 5)] == [11, 21, 16]
        with pytest.raises(UserError, match="less than 0"):
            ask(one, "add", -1)
        assert ask(one, "add", 0) == 16
    assert not multiprocessing.active_children()


class Nearby:
    """A worker in this process; the next `lost` answers never come, though the work may be done already."""

    def __init__(self, target):
        self.desk, self.lost = Desk(".", target), 0

    def send(self, request):
        self.request = request

    def receive(self):
        answer = self.desk.answer(self.request)
        if self.lost:
            self.lost -= 1
            raise WorkerLostError("out of memory")
        return answer

    def close(self):
        pass


def test_what_a_lost_worker_kept_goes_on_from_its_last_state():
    opened = []

    def start(replaces):
        assert replaces == bool(opened)
        opened.append(Nearby(Keeper(Sum, (10,))))
        return opened[-1]

    kept = KeptElsewhere(start)
    opened[-1].lost = 1  # before there is a state
    assert ask(kept, "add", 1) == 11
    opened[-1].lost = 1
    assert ask(kept, "add", 2) == 13
    assert ask(kept, "add", 3) == 16
    assert len(opened) == 3


def test_workers_that_are_lost_again_and_again_end_the_run():
    opened = []

    def start(_replaces):
        opened.append(Nearby(Keeper(Sum, (10,))))
        opened[-1].lost = 1
        return opened[-1]

    with pytest.raises(RuntimeError, match="lost again and again: out of memory"):
        ask(KeptElsewhere(start), "add", 1)
    assert len(opened) == 1 + 3


def test_nobody_waits_while_a_result_is_looked_at(tmp_path):
    marks = [tmp_path / str(number) for number in range(3)]
    with open_pool(2) as pool:
        results = pool.run(Path.touch, [(mark,) for mark in marks])
        next(results)
        deadline = time.monotonic() + 60.0
        while not all(mark.exists() for mark in marks) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert all(mark.exists() for mark in marks)
