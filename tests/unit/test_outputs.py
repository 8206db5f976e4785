"""An output has one writer: a second one is refused in a line that names the first, however that one ends."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aaml.errors import UserError
from aaml.outputs import LOCK, output_file, output_folder

HOLDS = (
    "import sys; from pathlib import Path; from aaml import outputs\n"
    "with getattr(outputs, sys.argv[1])(Path(sys.argv[2])):\n"
    "    print('held', flush=True); sys.stdin.read()\n"
)


@contextmanager
def another_writer(kind: str, path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Let another process have an output until the block ends."""
    command = [sys.executable, "-c", HOLDS, kind, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield other


def test_a_second_writer_is_refused_and_told_who_the_first_is_until_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mine"
    with another_writer("output_folder", folder) as other:
        with (
            pytest.raises(UserError, match=rf"^out: {folder}: process {other.pid} \(.+\) writes there; wait") as error,
            output_folder(folder),
        ):
            pass
        assert "\n" not in str(error.value)
        os.kill(other.pid, signal.SIGKILL)
    with output_folder(folder):
        assert (folder / LOCK).read_text().startswith(f"process {os.getpid()} (")
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]


@pytest.mark.parametrize("output", [output_folder, output_file])
def test_on_a_full_disk_nothing_stays(output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("aaml.outputs.os.pwrite", full)
    with pytest.raises(UserError, match="cannot be written: No space left on device"), output(tmp_path / "new" / "x"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_has_one_writer_and_its_neighbours_have_theirs(tmp_path: Path) -> None:
    with output_file(tmp_path / "a.yaml"), output_file(tmp_path / "b.yaml"):
        with pytest.raises(UserError, match=r"a\.yaml: process \d+ .* writes there"), output_file(tmp_path / "a.yaml"):
            pass
        (tmp_path / "a.yaml").write_text("a")
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_folders_that_were_made_for_nothing_are_gone(tmp_path: Path) -> None:
    with output_folder(tmp_path / "a" / "b"):
        pass
    assert not list(tmp_path.iterdir())
    with output_folder(tmp_path / "a" / "b") as folder:
        (folder / "x").write_text("x")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["x"]


def test_what_cannot_be_an_output_is_told_in_a_line_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    wrong = [
        (output_folder, tmp_path / "file", "is not accepted; expected a folder, not a file"),
        (output_file, tmp_path, "is not accepted; expected a file, not a folder"),
        (output_folder, tmp_path / "file" / "x", "cannot be written: Not a directory"),
        (output_file, tmp_path / "file" / "x.csv", "cannot be written: Not a directory"),
        (output_folder, Path("/proc/nothing"), "cannot be written: No such file or directory"),
    ]
    for output, path, said in wrong:
        with pytest.raises(UserError, match=said), output(path):
            pass
    with output_file(Path("/dev/null")) as path:
        assert path.exists()
