"""Whoever waits for the first compilation at a terminal is told so, once; a log and quick kernels hear nothing."""

import io
from types import SimpleNamespace

import pytest

from aaml.cluster import kernels


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
