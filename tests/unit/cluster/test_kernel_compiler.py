"""Kernels that only kernels call have no machine code; those that call them are the same, made anew or kept."""

import subprocess
import sys

import numba

from aaml.cluster.kernel_compiler import Part
from aaml.cluster.kernels import inlined, outlined, without_refcount

SOURCE = """
from aaml.cluster.kernels import compiled, inlined, outlined, without_refcount

@inlined
def least(x):
    if x > 3:
        raise ValueError("more than three")
    return 2 * x

@outlined
def twice(x):
    return 2 * least(x)

@without_refcount
def one(x):
    return twice(x)

@compiled
def other(x):
    return twice(x) + least(x)

def tried(kernel):
    try:
        return kernel(5)
    except ValueError as error:
        return error
"""
MORE = """
from aaml.cluster.kernels import compiled
from rules import twice

@compiled
def more(x):
    return x + twice(x)
"""


@inlined
def least(x):
    return x + 1


@outlined
def middle(x):
    return 2 * least(x)


@without_refcount
def highest(x):
    return middle(x) - least(x)


def test_a_kernel_that_only_kernels_call_is_a_part_of_these():
    assert highest(3) == 4
    for kernel in (least, middle):
        kernel.compile((numba.int64,))  # or take it from the cache
        (result,) = kernel.overloads.values()
        assert isinstance(result.library, Part)
        assert result.library.get_pointer_to_function(result.fndesc.llvm_func_name) == 0
    (result,) = highest.overloads.values()
    assert result.library.get_pointer_to_function(result.fndesc.llvm_func_name) != 0


def test_parts_are_kept_for_callers_to_come_and_what_they_raise_is_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("AAML_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    (tmp_path / "rules.py").write_text(SOURCE)
    (tmp_path / "more.py").write_text(MORE)

    def said(line):
        return subprocess.run(
            [sys.executable, "-B", "-c", f"from rules import *; {line}"],
            cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
        ).stdout.strip()  # fmt: skip

    line = "print(one(2), other(2), tried(one), tried(other), sum(one.stats.cache_hits.values()))"
    assert said(line) == "8 12 more than three more than three 0"
    assert said(line) == "8 12 more than three more than three 1"
    line = "from more import more; print(more(2), tried(more), sum(twice.stats.cache_hits.values()))"
    assert said(line) == "10 more than three 1"
