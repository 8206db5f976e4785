"""The one way to write files.

Results are written whole or not at all, so that no reader, and no crash, ever meets half of one. What grows while a
program runs is appended line by line: JSON lines, or the rows of a CSV file. Half a line, which a full disk or a loss
of power leaves, is left out by who reads (`whole_lines`) and by who appends (`LineFile`).
"""

import csv
import fcntl
import io
import json
import logging
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from aaml.errors import UserError

_BUFFERED = 1 << 13  # bytes of lines that are put on disk without being asked for
_log = logging.getLogger(__name__)


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


class LineFile:
    """Appends whole lines to a file, which goes on where it is there already; several processes may.

    Half a line at the end is cut off first, with a warning. Lines are buffered: `flush` or `close` puts them on disk.
    Raises `UserError` in a line where the file cannot be written. Of the lines that do not fit the first waits for
    room, the others are left out, and so are more of them until then.
    """

    def __init__(self, path: Path, *, field: str = "") -> None:
        self.path, self._lines, self._size, self._full = path, list[bytes](), 0, False
        self._called = f"{field} {path}".strip()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            regular = not path.exists() or stat.S_ISREG(path.stat().st_mode)
            flags = os.O_RDWR if regular else os.O_WRONLY
            self._descriptor = os.open(path, flags | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._cannot(error) from error
        self._regular = regular

    def write(self, line: bytes) -> None:
        """Take a line, which ends in a newline."""
        self._lines.append(line)
        self._size += len(line)
        if self._full or self._size >= _BUFFERED:
            self.flush()

    def flush(self) -> None:
        """Put on disk what was taken."""
        whole, self._lines, self._size = b"".join(self._lines), [], 0
        if not whole:
            return
        self._full = True
        try:
            if not self._regular:
                _write_all(self._descriptor, whole)
            else:
                self._append(whole)
        except OSError as error:
            raise self._cannot(error) from error
        self._full = False

    def _append(self, whole: bytes) -> None:
        with self._alone():
            begun = self._mended()
            try:
                _write_all(self._descriptor, whole)
            except OSError:
                fitted = whole.rfind(b"\n", 0, os.fstat(self._descriptor).st_size - begun) + 1
                os.ftruncate(self._descriptor, begun + fitted)
                self._lines = [whole[fitted : whole.find(b"\n", fitted) + 1]]
                raise

    def is_empty(self) -> bool:
        """Whether there is no line, once half of one is cut off."""
        return self._regular and not self._mended()

    def close(self) -> None:
        """Put on disk what was taken and close the file; what did not fit before is left out."""
        try:
            if not self._full:
                self.flush()
        finally:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _mended(self) -> int:
        """Cut off or end a line that lacks its end; return how long the file is."""
        length = os.fstat(self._descriptor).st_size
        if not length or os.pread(self._descriptor, 1, length - 1) == b"\n":
            return length
        content = os.pread(self._descriptor, length, 0)
        whole = _without_half(content, self.path)
        os.ftruncate(self._descriptor, min(len(whole), length))
        _write_all(self._descriptor, whole[length:])
        return len(whole)

    def _cannot(self, error: OSError) -> UserError:
        return UserError(f"{self._called}: cannot be written: {error.strerror or error}")


def whole_lines(path: Path) -> str:
    """Return the lines of a file in UTF-8, each with its end, without half a line at the end, which a warning names.

    Raises `OSError` and `UnicodeDecodeError`.
    """
    return _without_half(path.read_bytes(), path).decode()


def _without_half(content: bytes, path: Path) -> bytes:
    """Return lines with a last one that lacks its end alone, but not with half of one.

    A line of JSON is whole where it can be read, a row of a table where it has as many cells as the first, and a last
    one as long as that of each row before: half of a hash is shorter.
    """
    ended, newline, rest = content.rpartition(b"\n")
    if not rest:
        return content
    with suppress(ValueError, csv.Error, RecursionError):
        if rest.lstrip()[:1] == b"{":
            json.loads(rest)
            return content + b"\n"
        header, *rows, row = csv.reader(io.StringIO(content.decode()))
        if newline and len(row) == len(header) and all(len(each[-1]) == len(row[-1]) for each in rows if each):
            return content + b"\n"
    _log.warning("%s: ends in half a line, which is left out", path)
    return ended + newline


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


class JsonLines(LineFile):
    """Appends one JSON object a line to a file.

    NumPy's values are written as plain ones; a number that JSON does not know (NaN, infinity) becomes null.
    """

    def add(self, content: Mapping[str, object]) -> None:
        """Write one line."""
        self.write(msgspec.json.encode(content, enc_hook=_plain) + b"\n")


class RowWriter(LineFile):
    """Writes a new CSV file row by row, each on disk at once: a run that is interrupted keeps what it did."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._columns = columns
        write_text(path, _csv([columns]))
        super().__init__(path)

    def add(self, row: Mapping[str, object]) -> None:
        """Write one row; every column has a value. Raises `UserError` where it cannot be written."""
        self.write(_csv([[row[name] for name in self._columns]]).encode())
        self.flush()


def append_row(path: Path, row: Mapping[str, object]) -> None:
    """Append a row to a CSV file, which is made with the row's columns where there is none.

    Raises `UserError` when the file that is there has other columns, and where it cannot be written.
    """
    with closing(LineFile(path)) as file:
        columns = list(row)
        if file.is_empty():
            file.write(_csv([columns]).encode())
        else:
            with path.open(newline="", encoding="utf-8") as there:
                columns = next(csv.reader(there), columns)
        _refuse_others(path, columns, row)
        file.write(_csv([[row[name] for name in columns]]).encode())


def refuse_other_table(path: Path, columns: Iterable[str]) -> None:
    """Raise `UserError` where a CSV file is there that has other columns than these."""
    if path.is_file():
        with path.open(newline="", encoding="utf-8", errors="replace") as there:
            _refuse_others(path, next(csv.reader(there), ()), columns)


def _refuse_others(path: Path, there: Iterable[str], columns: Iterable[str]) -> None:
    if other := set(there) ^ set(columns):
        raise UserError(f"{path}: has other columns than this run ({min(other)}); choose another --out")


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _plain(value: object) -> object:
    """Return NumPy's scalars and arrays as plain values, and anything else that JSON does not know as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
