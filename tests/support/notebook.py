"""Runs a notebook from top to bottom in a folder of its own."""

import os
import shutil
from pathlib import Path
from unittest import mock

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]


def execute(folder: Path, environment: dict[str, str]) -> str:
    """Execute the notebook in a copy of what it needs; returns all that it printed, raises what a cell raises."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    shutil.copytree(ROOT / "data", folder / "data")
    (folder / "notebooks").mkdir()
    book = nbformat.read(ROOT / "notebooks" / "ProjectNotebook.ipynb", as_version=4)
    with mock.patch.dict(os.environ, {**environment, "OMP_NUM_THREADS": "1"}):
        client = NotebookClient(
            book, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(folder / "notebooks")}}
        )
        client.execute()
    outputs = (output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs)
    return "\n".join(output.get("text", "") or str(output.get("data", "")) for output in outputs)
