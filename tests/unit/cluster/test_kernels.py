"""Whoever waits for the first compilation at a terminal is told so, once; a log and quick kernels hear nothing."""

import errno
import fcntl
import io
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from aaml.cluster import kernel_cache, kernels


@kernels.compiled
def _scaled(values, factor):
    return values[0] * factor


@kernels.compiled
def _scaled_thrice(values):
    return _scaled(values, 2) + _scaled(values, 3) + _scaled(values, len(values))


def test_constants_of_a_call_make_no_kernels_of_their_own():
    compiled_anew = numba.njit(_scaled_thrice.py_func)  # one from the cache would not ask for its parts
    assert compiled_anew(np.array([1.0, 2.0])) == 7.0
    assert len(_scaled.signatures) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "seconds", "told"),
    [(Terminal(), (0.0, 0.5, 1.5, 30.0), 1), (Terminal(), (0.0, 0.5, 0.9), 0), (io.StringIO(), (0.0, 1.5, 30.0), 0)],
    ids=["a terminal", "quick", "a log"],
)
def test_a_long_compilation_is_told_once(monkeypatch, stream, seconds, told):
    clock = iter(seconds)
    monkeypatch.setattr(kernels, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(kernels, "sys", SimpleNamespace(stderr=stream))
    announcer = kernels._Announcer()
    for _ in seconds:
        announcer.on_start(None)
        announcer.on_end(None)
    assert stream.getvalue().count("the first run compiles") == told


def test_a_worker_that_waits_for_another_one_to_compile_tells_it_too(monkeypatch, tmp_path):
    """A command waits for its first worker, and that one for the second, which came first to what both need."""
    stream, seconds = Terminal(), iter((0.0, 1.5))
    monkeypatch.setattr(kernels._announcer, "_told", False)
    monkeypatch.setattr(kernels._announcer, "_since", None)
    monkeypatch.setattr(kernels, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(kernels, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.setattr(kernel_cache, "_LOOK_S", 0.0)
    monkeypatch.setattr(kernel_cache, "fcntl", held_by_another(2))
    with (tmp_path / "locks").open("w") as file:
        assert kernel_cache._lock(file.fileno(), 7)
    assert stream.getvalue().count("the first run compiles") == 1


def held_by_another(times):
    """Return a module of locks that are held by another process for so many looks."""
    answers = iter([BlockingIOError(errno.EAGAIN, "held")] * times + [None])

    def lockf(*_):
        if (answer := next(answers)) is not None:
            raise answer

    return SimpleNamespace(lockf=lockf, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB)
