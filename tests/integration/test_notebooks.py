"""The notebooks run from top to bottom, in an empty folder, with `import aaml` alone; those on a cluster: tests/e2e.

The longest trainings are shorter, unless `AAML_WHOLE_NOTEBOOKS` is set; `make differential` runs them whole.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import nbformat
import pytest

from support.notebook import NOTEBOOKS, execute_alone

ALL = sorted(NOTEBOOKS.glob("0*.ipynb"))
HERE = [path for path in ALL if path.stem[:2] not in {"07", "08"}]
SHORTER = {
    "02-train-and-compare": {
        "STEPS = 2_000_000": "STEPS = 20_000",
        "    validate_every=250_000,": "    validate_every=10_000,",
    },
    "03-study": {"TRIALS = 6": "TRIALS = 4", "    for seed in (1, 2):": "    for seed in (1,):"},
    "04-q-table": {
        'table = aaml.train("qtable", task, steps=10_000, out=runs / "table", seed=0, progress=False)':
        'table = aaml.train("qtable", task, steps=2_000, out=runs / "table", seed=0, progress=False)',
        'wide = aaml.train("qtable", ten, steps=4_000, out=runs / "wide", seed=0, progress=False)':
        'wide = aaml.train("qtable", ten, steps=1_000, out=runs / "wide", seed=0, progress=False)',
        'network = aaml.train("dqn", ten, steps=20_000, out=runs / "network", **short)':
        'network = aaml.train("dqn", ten, steps=1_000, out=runs / "network", **short)',
    },
}  # fmt: skip
if os.environ.get("AAML_WHOLE_NOTEBOOKS"):
    SHORTER = {}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Future[nbformat.NotebookNode]]]:
    """Every notebook, executed two at a time: each waits for its kernel most of the time."""
    with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}), ThreadPoolExecutor(2) as pool:
        yield {
            path: pool.submit(execute_alone, path, tmp_path_factory.mktemp(path.stem), SHORTER.get(path.stem))
            for path in HERE
        }


@pytest.mark.parametrize("path", HERE, ids=lambda path: path.stem)
def test_it_runs_and_shows_what_the_documents_show(path: Path, runs: dict[Path, Future[nbformat.NotebookNode]]) -> None:
    runs[path].result()


def test_they_use_the_public_door_and_no_path_tricks() -> None:
    assert ALL
    for path in ALL:
        code = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
        assert "import aaml" in code
        assert "sys.path" not in code
        assert "chdir" not in code
