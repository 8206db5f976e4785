"""A compiled kernel is taken from the cache as long as all is the same that it is made of, and no longer."""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = {
    "lowest": "from aaml.cluster.kernels import compiled\nSTEP = 1\n\n@compiled\ndef lowest(x):\n    return x + STEP\n",
    "middle": "from aaml.cluster.kernels import compiled\nfrom lowest import lowest\n\n"
    "@compiled\ndef middle(x):\n    return 2 * lowest(x)\n",
    "constants": "FACTOR = (10, 20)\n",
    "highest": "from aaml.cluster.kernels import compiled\nfrom constants import FACTOR\nfrom middle import middle\n\n"
    "@compiled\ndef highest(x):\n    return FACTOR[0] * middle(x)\n",
}
ASK = "from highest import highest; print(highest(1), *highest.stats.cache_hits.values())"


@pytest.fixture
def ask(tmp_path):
    """Return what the kernel on top gives for 1 in a fresh process, and how often it was found in the cache."""
    for name, text in SOURCES.items():
        (tmp_path / f"{name}.py").write_text(text)

    def asked(name=None, old="", new=""):
        if name is not None:
            file = Path(tmp_path / f"{name}.py")
            text = file.read_text()
            assert old in text
            file.write_text(text.replace(old, new))
        said = subprocess.run(
            [sys.executable, "-B", "-c", ASK], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
        )
        value, *hits = said.stdout.split()
        return int(value), sum(map(int, hits))

    return asked


def test_a_change_in_any_file_that_a_kernel_is_made_of_is_seen_and_nothing_else_compiles_again(ask):
    assert ask() == (40, 0)
    assert ask() == (40, 1)
    assert ask("lowest", "x + STEP", "x - STEP") == (0, 0)  # two files below
    assert ask("lowest", "STEP = 1", "STEP = 3") == (-40, 0)
    assert ask("constants", "(10, 20)", "(5, 20)") == (-20, 0)  # a file that holds no kernel
    assert ask() == (-20, 1)


def test_a_kernel_compiles_again_where_the_type_of_its_argument_has_another_name_now(tmp_path):
    """The cache names the types that a kernel was compiled for: who updates the sources has not to clear it."""
    (tmp_path / "shapes.py").write_text("from typing import NamedTuple\nclass Old(NamedTuple):\n    x: int\n")
    (tmp_path / "kernel.py").write_text(
        "import shapes\nfrom aaml.cluster.kernels import compiled\n\n\n@compiled\ndef kernel(a):\n    return a.x + 1\n"
        "\n\nif __name__ == '__main__':\n    import kernel as kept\n    print(kept.kernel(shapes.Old(4)))\n"
    )
    run = [sys.executable, "-B", "kernel.py"]
    for old, new in (("Old", "Old"), ("Old", "New")):
        for name in ("shapes.py", "kernel.py"):
            path = tmp_path / name
            path.write_text(path.read_text().replace(old, new))
        said = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        assert said.stdout == "5\n", said.stderr
