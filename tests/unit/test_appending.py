"""What is appended is whole lines: half a line, of a full disk or a kill, is mended, and a full disk is told."""

import json
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aaml.errors import UserError
from aaml.files import JsonLines, RowWriter, append_row, whole_lines


@contextmanager
def disk_of(most: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as on a disk that is full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def a_row(path: Path, number: int) -> None:
    append_row(path, {"number": number, "text": "x" * 20})


def a_line(path: Path, number: int) -> None:
    lines = JsonLines(path)
    lines.add({"number": number, "text": "x" * 20})
    lines.close()


def rows(path: Path) -> list[int]:
    return [int(line.partition(",")[0]) for line in path.read_text().splitlines()[1:]]


def objects(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


APPENDERS = [pytest.param(a_row, rows, id="rows"), pytest.param(a_line, objects, id="json lines")]
Append, Read = Callable[[Path, int], None], Callable[[Path], list[int]]


@pytest.mark.parametrize(("append", "read"), APPENDERS)
def test_a_file_that_was_cut_off_anywhere_goes_on_without_the_half_line(
    append: Append, read: Read, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    for number in range(3):
        append(path, number)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = [number for number in read_whole(path, read) if number < 3]
        append(path, 7)
        assert read(path) == [*kept, 7]
        assert path.read_bytes().endswith(b"\n")


def read_whole(path: Path, read: Read) -> list[int]:
    """Return what the lines that ended say, and a last one with all that a line has."""
    text = path.read_text()
    ended, _, rest = text.rpartition("\n")
    last = rest.rpartition(",")[2]
    as_long = all(len(line.rpartition(",")[2]) == len(last) for line in ended.splitlines()[1:])
    whole = (ended and rest.count(",") == 1 and as_long) if read is rows else rest.endswith("}")
    path.with_name("copy").write_text(text if whole else ended)
    return read(path.with_name("copy"))


def test_what_is_cut_off_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "results.csv"
    path.write_text("a,b,c\n1,2,3\n4,5")
    with caplog.at_level(logging.WARNING):
        assert whole_lines(path) == "a,b,c\n1,2,3\n"
        append_row(path, {"a": 6, "b": 7, "c": 8})
    assert path.read_text() == "a,b,c\n1,2,3\n6,7,8\n"
    assert [record.message for record in caplog.records] == [f"{path}: ends in half a line, which is left out"] * 2


def test_half_of_a_hash_at_the_end_of_a_row_is_no_hash(tmp_path: Path) -> None:
    (path := tmp_path / "results.csv").write_text("seed,policy_sha256\n1,3e5255fd7e04\n2,3e5255f")
    assert whole_lines(path) == "seed,policy_sha256\n1,3e5255fd7e04\n"
    append_row(path, {"seed": 2, "policy_sha256": "3e5255fd7e04"})
    assert path.read_text().splitlines()[1:] == ["1,3e5255fd7e04", "2,3e5255fd7e04"]


def test_a_last_row_that_lacks_its_end_alone_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("a,b\n1,2\n4,5")  # as some editors leave it
    assert whole_lines(path) == "a,b\n1,2\n4,5\n"
    append_row(path, {"a": 6, "b": 7})
    assert path.read_text() == "a,b\n1,2\n4,5\n6,7\n"


@pytest.mark.parametrize(("append", "read"), APPENDERS)
def test_a_full_disk_is_a_line_and_leaves_what_was_there(append: Append, read: Read, tmp_path: Path) -> None:
    path = tmp_path / "file"
    append(path, 0)
    with disk_of(path.stat().st_size + 10):
        with pytest.raises(UserError, match=r"^\S+/file: cannot be written: File too large$"):
            append(path, 1)
        assert read(path) == [0]
    append(path, 2)
    assert read(path) == [0, 2]


def test_a_table_on_a_full_disk_ends_in_a_line_and_holds_whole_rows(tmp_path: Path) -> None:
    table = RowWriter(tmp_path / "table.csv", ["number", "text"])
    for number in range(3):
        table.add({"number": number, "text": "x" * 20})
    with disk_of(100), pytest.raises(UserError, match=r"table\.csv: cannot be written: File too large$"):
        table.add({"number": 3, "text": "x" * 20})
    table.close()
    assert rows(table.path) == [0, 1, 2]  # 12 + 3 * 23 bytes


def test_two_processes_that_append_keep_each_others_lines(tmp_path: Path) -> None:
    """Even where the disk is full for one of them."""
    program = (
        "import sys; from pathlib import Path; from aaml.files import JsonLines\n"
        "lines = JsonLines(Path(sys.argv[1]))\n"
        "for number in range(300):\n"
        "    lines.add({'who': sys.argv[2], 'number': number, 'text': 'x' * 5000}); lines.flush()\n"
    )
    path = tmp_path / "log.jsonl"
    both = [subprocess.Popen([sys.executable, "-c", program, str(path), who]) for who in "ab"]
    assert [each.wait(timeout=60) for each in both] == [0, 0]
    said = [json.loads(line) for line in path.read_text().splitlines()]
    for who in "ab":
        assert [each["number"] for each in said if each["who"] == who] == list(range(300))


def test_a_writer_that_is_killed_leaves_a_file_that_goes_on(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from aaml.files import append_row\n"
        "number = 0\n"
        "while True:\n"
        "    append_row(Path(sys.argv[1]), {'number': number, 'text': 'x' * 9000}); number += 1\n"
        "    print(number, flush=True)\n"
    )
    path = tmp_path / "results.csv"
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
    a_row(path, -1)
    found = rows(path)
    assert found == [*range(len(found) - 1), -1]
    assert len(found) > 20
