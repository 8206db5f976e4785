"""Runs notebooks from top to bottom, each in a folder of its own."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"


def execute_alone(path: Path, folder: Path, shorter: Mapping[str, str] | None = None) -> nbformat.NotebookNode:
    """Execute a notebook that needs no other file in a folder, and check that it still shows what the documents show.

    `shorter` has lines of the notebook and those that take less time. Returns it with its new outputs; raises what a
    cell raises.
    """
    book = nbformat.read(path, as_version=4)
    shown = [kinds(cell) for cell in book.cells]
    for line, other in (shorter or {}).items():
        (cell,) = (cell for cell in book.cells if cell.cell_type == "code" and line in cell.source.splitlines())
        cell.source = cell.source.replace(line, other)
    NotebookClient(book, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    assert [kinds(cell) for cell in book.cells] == shown, "run the notebook again and keep what it shows"
    return book


def kinds(cell: nbformat.NotebookNode) -> list[str]:
    """Return which kinds of results a cell shows (text, a table, a picture), without what it said on the way."""
    return [kind for output in cell.get("outputs", ()) for kind in sorted(output.get("data", {}))]


def printed(book: nbformat.NotebookNode) -> str:
    """Return all that a notebook's cells show, as text."""
    outputs = (output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs)
    return "\n".join(output.get("text", "") or str(output.get("data", "")) for output in outputs)


def execute(folder: Path, environment: dict[str, str]) -> str:
    """Execute ProjectNotebook in a copy of what it needs; returns all that it printed, raises what a cell raises."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    shutil.copytree(ROOT / "data", folder / "data")
    (folder / "notebooks").mkdir()
    book = nbformat.read(NOTEBOOKS / "ProjectNotebook.ipynb", as_version=4)
    with mock.patch.dict(os.environ, {**environment, "OMP_NUM_THREADS": "1"}):
        client = NotebookClient(
            book, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(folder / "notebooks")}}
        )
        client.execute()
    return printed(book)
