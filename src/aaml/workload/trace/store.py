"""Where a trace is kept: a folder of compressed parts that only ever grow, read whole whatever killed the writer.

A part is JSON lines in gzip, so `zcat trace/*.jsonl.gz` reads it. Each flush appends one complete gzip member and puts
it on disk; a writer that comes back begins a new part. So only the last member of a part can be cut off, and the
reader leaves that one out.
"""

import gzip
import logging
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Self

from aaml.errors import UserError, bad_value
from aaml.outputs import output_folder
from aaml.workload.trace.events import AnyEvent, from_line, to_line

_log = logging.getLogger(__name__)

_PATTERN = "part-*.jsonl.gz"
_GZIP = 31  # zlib's word for a gzip header and checksum
_PART_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


class TraceWriter:
    """Appends events to a trace's folder, which is made where there is none; one writer at a time.

    What was written is on disk after `flush`, which `write` calls once `flush_s` seconds have passed since the last;
    a crash loses no more than that. Raises `UserError` when the folder cannot be written, or another writes there.
    """

    def __init__(self, folder: Path, *, flush_s: float = 2.0, part_bytes: int = _PART_BYTES) -> None:
        self.folder = folder
        self.written = 0
        self._flush_s, self._part_bytes = flush_s, part_bytes
        self._lines: list[bytes] = []
        self._flushed_s = time.monotonic()
        self._file: FileIO | None = None
        self._alone = ExitStack()
        self._alone.enter_context(output_folder(folder))

    def write(self, event: AnyEvent) -> None:
        """Take an event."""
        self._lines.append(to_line(event))
        self.written += 1
        if time.monotonic() - self._flushed_s >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        """Put on disk what was taken. Raises `UserError`, and leaves the part as it was, when that fails."""
        self._flushed_s = time.monotonic()
        if not self._lines:
            return
        member = gzip.compress(b"".join(self._lines), mtime=0)
        try:
            file = self._part()
            begun = file.tell()
            try:
                left = memoryview(member)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(begun)
                file.seek(begun)
                raise
        except OSError as error:
            raise UserError(f"out {self.folder}: cannot be written: {error.strerror or error}") from error
        self._lines.clear()
        if file.tell() >= self._part_bytes:
            file.close()
            self._file = None

    def close(self) -> None:
        """Put the rest on disk and let others write; folders that were made for nothing are gone then."""
        try:
            self.flush()
        finally:
            if self._file is not None:
                self._file.close()
            self._alone.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _part(self) -> FileIO:
        if self._file is None:
            last = max((int(path.name.split("-")[1].split(".")[0]) for path in self.folder.glob(_PATTERN)), default=0)
            self._file = (self.folder / f"part-{last + 1:06d}.jsonl.gz").open("xb", buffering=0)
        return self._file


def is_trace(path: Path | str) -> bool:
    """Whether a path is a folder with a trace."""
    return next(Path(path).glob(_PATTERN), None) is not None if Path(path).is_dir() else False


def read_events(folder: Path) -> Iterator[AnyEvent]:
    """Yield the events in the order in which they were written.

    A part that is missing or cut off is logged: what is there is read. Raises `UserError` for a folder without a trace,
    and for a part that was damaged, naming it.
    """
    parts = sorted(folder.glob(_PATTERN)) if folder.is_dir() else []
    if not parts:
        raise bad_value("trace", str(folder), "a folder that `aaml record` or `aaml trace convert` made")
    numbers = {int(part.name[5:11]) for part in parts if part.name[5:11].isdecimal()}
    if absent := sorted(set(range(1, max(numbers, default=0))) - numbers):
        _log.warning("%s: no part %s is there: what was recorded in it is missing", folder, ", ".join(map(str, absent)))
    for part in parts:
        for number, line in enumerate(_lines(part), start=1):
            yield from_line(line, f"{part}, line {number}")


def _lines(part: Path) -> Iterator[bytes]:
    """Yield the lines of all complete members of a part."""
    buffered, rest, begun = b"", b"", False
    reader = zlib.decompressobj(_GZIP)
    try:
        with part.open("rb") as file:
            while chunk := rest or file.read(_CHUNK_BYTES):
                buffered, begun = buffered + reader.decompress(chunk), True
                rest = reader.unused_data
                if reader.eof:
                    yield from buffered.splitlines()
                    buffered, reader, begun = b"", zlib.decompressobj(_GZIP), False
        if begun:
            _log.warning("%s: is cut off: what came after its last whole piece is left out", part)
    except zlib.error as error:
        raise UserError(f"{part}: is damaged ({error})") from None
    except OSError as error:
        raise UserError(f"{part}: cannot be read: {error.strerror or error}") from error
