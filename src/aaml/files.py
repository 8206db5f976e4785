"""The one way to write files.

Results are written whole or not at all, so that no reader, and no crash, ever meets half of one. What grows while a
program runs is written line by line: JSON lines, or the rows of a CSV file.
"""

import csv
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from aaml.errors import UserError


def in_a_name(text: str) -> str:
    """Return a text, a task's name or a policy's, as part of a file's name: without slashes and the like."""
    return re.sub(r"[^\w@.-]+", "-", text).strip("-.")


def write_whole(path: Path, write: Callable[[BinaryIO], object], *, field: str = "file", mode: int = 0o644) -> None:
    """Let `write` fill a file next to `path`, then rename it; missing folders are made.

    Raises `UserError` where the file cannot be written; `field` is what its message calls the file. What `write` itself
    raises is passed on, and the file that was there stays.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        temporary.chmod(mode)
        temporary.replace(path)
        temporary = None
    except OSError as error:
        raise UserError(f"{field} {path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, *, field: str = "file", mode: int = 0o644) -> None:
    """Write bytes, whole or not at all."""
    write_whole(path, lambda file: file.write(content), field=field, mode=mode)


def write_text(path: Path, text: str, *, field: str = "file", mode: int = 0o644) -> None:
    """Write a text in UTF-8, whole or not at all."""
    write_bytes(path, text.encode(), field=field, mode=mode)


def write_json(path: Path, content: Any, indent: int | None = None, *, field: str = "file", mode: int = 0o644) -> None:
    """Write plain values as JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=indent) + "\n", field=field, mode=mode)


class JsonLines:
    """Appends one JSON object a line to a file, which goes on where it is there already.

    NumPy's values are written as plain ones; a number that JSON does not know (NaN, infinity) becomes null. Lines are
    buffered: `flush` or `close` puts them on disk.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab")
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)

    def write(self, content: Mapping[str, object]) -> None:
        """Write one line."""
        self._file.write(self._encoder.encode(content) + b"\n")

    def flush(self) -> None:
        """Put on disk what is buffered."""
        self._file.flush()

    def close(self) -> None:
        """Put on disk what is buffered and close the file."""
        self._file.close()


class RowWriter:
    """Writes a new CSV file row by row, each on disk at once: a run that is interrupted keeps what it did."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, columns, lineterminator="\n")
        self._writer.writeheader()
        self._file.flush()

    def write(self, row: Mapping[str, object]) -> None:
        """Write one row; every column has a value."""
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def append_row(path: Path, row: Mapping[str, object]) -> None:
    """Append a row to a CSV file, which is made with the row's columns where there is none.

    Raises `UserError` when the file that is there has other columns.
    """
    columns = list(row)
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            columns = next(csv.reader(file), []) or columns
    if set(columns) != set(row):
        other = min(set(columns) ^ set(row))
        raise UserError(f"{path}: has other columns than this run ({other}); choose another --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if not file.tell():
            writer.writeheader()
        writer.writerow(row)


def _plain(value: object) -> object:
    """Return NumPy's scalars and arrays as plain values, and anything else that JSON does not know as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
