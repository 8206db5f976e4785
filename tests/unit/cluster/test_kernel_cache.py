"""A compiled kernel is taken from the cache as long as all is the same that it is made of, and no longer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aaml.cluster import kernel_cache

SOURCES = {
    "lowest": "from aaml.cluster.kernels import compiled\nSTEP = 1\n\n@compiled\ndef lowest(x):\n    return x + STEP\n",
    "middle": "from aaml.cluster.kernels import compiled\nfrom lowest import lowest\nADDED = 0\n\n"
    "@compiled\ndef middle(x):\n    return 2 * lowest(x)\n",
    "constants": "FACTOR = (10, 20)\n",
    "by_module": "from aaml.cluster.kernels import compiled\nimport middle as rules\n\n"
    "@compiled\ndef by_module(x):\n    return rules.middle(x) + rules.ADDED\n",
    "highest": "from aaml.cluster.kernels import compiled\nfrom constants import FACTOR\n"
    "from by_module import by_module\n\n"
    "@compiled\ndef highest(x):\n    return FACTOR[0] * by_module(x)\n",
}
ASK = "from highest import highest; print(highest(1), *highest.stats.cache_hits.values())"


FORKS = """
import os, sys, json, numba.core.caching, numpy
for asked in map(json.loads, sys.stdin):
    child = os.fork()
    if not child:
        try:
            os.chdir(asked["folder"])
            sys.path.insert(0, asked["folder"])
            os.environ["AAML_CACHE"] = asked["cache"]
            exec(asked["line"], {"__name__": "__main__"})
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
    print(flush=True)
"""


@pytest.fixture(scope="module")
def forks():
    """A process that has imported numba, and forks for each line of Python that it is to run."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    with subprocess.Popen(
        [sys.executable, "-B", "-c", FORKS], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()


def checkout(folder):
    folder.mkdir()
    for name, text in SOURCES.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture
def top(forks):
    """What the kernel on top gives for 1 in a process of its own, and how often it was found in the cache."""

    def asked(folder, cache):
        forks.stdin.write(json.dumps({"folder": str(folder), "line": ASK, "cache": str(cache)}) + "\n")
        forks.stdin.flush()
        value, *hits = iter(forks.stdout.readline().split())
        assert forks.stdout.readline() == "\n"
        return int(value), sum(map(int, hits))

    return asked


@pytest.fixture
def ask(tmp_path, top):
    """The same after a change of a file."""
    folder = checkout(tmp_path / "checkout")

    def asked(name=None, old="", new=""):
        if name is not None:
            file = Path(folder / f"{name}.py")
            text = file.read_text()
            assert old in text
            file.write_text(text.replace(old, new))
        return top(folder, tmp_path / "cache")

    return asked


@pytest.mark.slow
def test_a_change_in_any_file_that_a_kernel_is_made_of_is_seen_and_nothing_else_compiles_again(ask):
    assert ask() == (40, 0)
    assert ask() == (40, 1)
    assert ask("lowest", "x + STEP", "x - STEP") == (0, 0)  # two files below
    assert ask("lowest", "STEP = 1", "STEP = 3") == (-40, 0)
    assert ask("constants", "(10, 20)", "(5, 20)") == (-20, 0)  # a file that holds no kernel
    assert ask() == (-20, 1)
    assert ask("constants", "(5, 20)", "(10, 20)") == (-40, 1)  # as it was before
    assert ask("middle", "2 * lowest", "3 * lowest") == (-60, 0)  # a kernel that is called by its module
    assert ask("middle", "ADDED = 0", "ADDED = 1") == (-50, 0)  # a constant of a module that is known by its name


@pytest.mark.slow
def test_another_checkout_with_the_same_sources_finds_what_was_compiled(tmp_path, top):
    assert top(checkout(tmp_path / "one"), tmp_path / "cache") == (40, 0)
    assert top(checkout(tmp_path / "two"), tmp_path / "cache") == (40, 1)
    assert not list(tmp_path.glob("*/__pycache__/*.nb?"))


@pytest.mark.slow
def test_where_the_users_cache_cannot_be_made_kernels_are_kept_beside_their_sources(tmp_path, top):
    (tmp_path / "file").write_text("")
    folder = checkout(tmp_path / "one")
    assert top(folder, tmp_path / "file" / "cache") == (40, 0)
    assert top(folder, tmp_path / "file" / "cache") == (40, 1)
    assert list(folder.glob("__pycache__/highest.*.nbi"))


def function(number):
    return number


def index(folder, made="a"):
    return kernel_cache._SharedIndex(folder, function, made)


def test_processes_that_keep_a_kernel_for_different_types_at_once_never_take_each_others_code(tmp_path, monkeypatch):
    one, other = index(tmp_path), index(tmp_path)
    listed = one._load_index()
    other.save("an integer", "code for an integer")
    monkeypatch.setattr(one, "_load_index", lambda: listed)  # read before the other wrote
    one.save("an array", "code for an array")
    found = index(tmp_path)
    assert found.load("an array") == "code for an array"
    assert found.load("an integer") in {None, "code for an integer"}
    assert other.load("an array") == "code for an array"


def test_of_a_kernels_versions_the_last_eight_stay(tmp_path):
    for number in range(12):
        kept = index(tmp_path, f"{number:x}")
        kept.save("an integer", number)
        os.utime(kept._index_path, (number, number))
    assert [index(tmp_path, f"{number:x}").load("an integer") for number in range(12)] == [None] * 4 + list(
        range(4, 12)
    )
    assert len(list(tmp_path.iterdir())) == 16  # a list and a file of code each


@pytest.mark.slow
def test_a_kernel_compiles_again_where_the_type_of_its_argument_has_another_name_now(tmp_path):
    """The cache names the types that a kernel was compiled for: who updates the sources has not to clear it."""
    (tmp_path / "shapes.py").write_text("from typing import NamedTuple\nclass Old(NamedTuple):\n    x: int\n")
    (tmp_path / "kernel.py").write_text(
        "import shapes\nfrom aaml.cluster.kernels import compiled\n\n\n@compiled\ndef kernel(a):\n    return a.x + 1\n"
        "\n\nif __name__ == '__main__':\n    import kernel as kept\n    print(kept.kernel(shapes.Old(4)))\n"
    )
    run, environment = [sys.executable, "-B", "kernel.py"], os.environ | {"AAML_CACHE": str(tmp_path / "cache")}
    for old, new in (("Old", "Old"), ("Old", "New")):
        for name in ("shapes.py", "kernel.py"):
            path = tmp_path / name
            path.write_text(path.read_text().replace(old, new))
        said = subprocess.run(
            run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert said.stdout == "5\n", said.stderr


@pytest.mark.slow
def test_of_processes_that_need_a_kernel_at_once_one_compiles_it(tmp_path):
    (tmp_path / "kernel.py").write_text(
        "import time\nfrom numba.core import event\nfrom aaml.cluster.kernels import compiled\n\n"
        "class Slow(event.Listener):\n    def on_start(self, event):\n        time.sleep(2.0)\n\n"
        "    def on_end(self, event):\n        pass\n\n"
        "event.register('numba:compile', Slow())\n\n@compiled\ndef kernel(x):\n    return x + 1\n"
    )
    line = (
        "import sys; from kernel import kernel; print(flush=True); input();"
        " print(kernel(1), sum(kernel.stats.cache_misses.values()))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    several = [
        subprocess.Popen(
            [sys.executable, "-B", "-c", line], cwd=tmp_path, env=environment | {"AAML_CACHE": str(tmp_path / "cache")},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    try:
        for each in several:
            assert each.stdout.readline() == "\n", "it has loaded all that it needs"
        for each in several:
            each.stdin.write("\n")
            each.stdin.flush()
        said = [each.communicate(timeout=120)[0].split() for each in several]
    finally:
        for each in several:
            each.kill()
            each.wait()
    assert [value for value, _ in said] == ["2"] * 3
    assert sorted(misses for _, misses in said) == ["0", "0", "1"]


def cut_off(file):
    return file.read_bytes()[: len(file.stem) % 2 * 100]


def one_bit_is_another(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    return bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "damage"), [("nbi", cut_off), ("nbc", cut_off), ("nbc", one_bit_is_another)])
def test_what_is_damaged_is_compiled_again(ask, tmp_path, ending, damage):
    assert ask() == (40, 0)
    for file in (tmp_path / "cache").rglob(f"*.{ending}"):
        file.write_bytes(damage(file))
    assert ask() == (40, 0)
    assert ask() == (40, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "factors"), [("(np.int64(10),)", "(np.int64(5),)", (10, 5)),
                                                          ('b"a"', 'b"b"', (97, 98))])  # fmt: skip
def test_a_change_of_a_constant_of_any_kind_is_seen(ask, before, after, factors):
    assert ask("constants", "FACTOR = (10, 20)", f"import numpy as np\nFACTOR = {before}") == (4 * factors[0], 0)
    assert ask("constants", before, after) == (4 * factors[1], 0)
