"""Whoever waits for the first compilation at a terminal is told so, once; a log and quick kernels hear nothing."""

import io
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from aaml.cluster import kernels


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
