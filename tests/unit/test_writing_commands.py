"""Every command that writes: one writer an output, and work that was killed or met a full disk goes on to the same."""

import contextlib
import dataclasses
import importlib
import json
import os
import resource
import signal
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aaml import files
from aaml.cli import COMMANDS, run
from aaml.evaluation.results import Results
from aaml.outputs import output_file, output_folder

# ---- one writer ------------------------------------------------------------------------------------------------------

FOLDERS = {
    "apply": ("-f", "x.yaml", "--out"),
    "bench": ("openb", "--policy", "fgd", "--out"),
    "bound": ("balance-batch", "--out"),
    "compare": ("x", "--out"),
    "demo": ("--out",),
    "distil": ("compress-gnn", "--out"),
    "evaluate": ("--out",),
    "evolve": ("--out",),
    "export": ("balance-linear", "--out"),
    "leaderboard": ("run", "--policy", "random", "--out"),
    "perf": ("--logs",),
    "record": ("--out",),
    "replay": ("x", "--out"),
    "sweep": ("--out",),
    "train": ("--agent", "qtable", "--out"),
    "trace": ("fetch", "openb", "--out"),
    "tune": ("bill", "--out"),
}
FILES = {
    "chaos": ("--out",),
    "lab": ("x", "--export"),
    "record": ("--out",),
    "soak": ("--out",),
    "topology": ("--picture",),
    "trace": ("table", "x", "--out"),
    "tune kube-scheduler": ("--out",),
    "tune nodes": ("--out",),
    "tune openb": ("--out",),
}
SUFFIX = {"topology": ".png", "tune openb": ".npz"}


@pytest.mark.parametrize("command", sorted(FOLDERS))
def test_a_folder_that_another_writes_to_is_refused_in_a_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with output_folder(tmp_path / "out"):
        assert run(command, [*FOLDERS[command], str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err
        assert f"{tmp_path / 'out'}: process {os.getpid()} (" in said
        assert len([line for line in said.splitlines() if "error:" in line]) == 1
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".writing"], "nothing was written"


@pytest.mark.parametrize("command", sorted(FILES))
def test_a_file_that_another_writes_is_refused_in_a_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"out{SUFFIX.get(command, '.csv')}"
    name, *sub = command.split()
    with output_file(path):
        assert run(name, [*sub, *FILES[command], str(path)]) == 2
        assert f"{path}: process {os.getpid()} (" in capsys.readouterr().err
        assert not path.exists()


@pytest.mark.parametrize("command", sorted({*FOLDERS, *FILES} - {"record", "export"}))
def test_an_output_of_the_wrong_kind_is_told_before_the_work_begins(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / f"out{SUFFIX.get(command, '.csv')}"
    if command in FOLDERS:
        wrong.write_text("mine")
        argv = FOLDERS[command]
    else:
        wrong.mkdir()
        argv = FILES[command]
    name, *sub = command.split()
    assert run(name, [*sub, *argv, str(wrong)]) == 2
    assert "is not accepted; expected a f" in capsys.readouterr().err


def paths(kind: typing.Any) -> Iterator[str]:
    """Return the settings of a command that are paths, those of its sub-commands included."""
    if dataclasses.is_dataclass(kind):
        for name, hint in typing.get_type_hints(kind, include_extras=False).items():
            if hint in (Path, Path | None):
                yield name
            yield from paths(hint)
    for part in typing.get_args(kind):
        yield from paths(part)


def test_every_command_with_an_output_is_in_the_tables() -> None:
    outputs = {"out", "export", "picture", "logs"}
    writing = {
        name for name, (module, _) in COMMANDS.items() if outputs & set(paths(importlib.import_module(module).Args))
    }
    assert writing - {"schedule", "learn"} == {name.split()[0] for name in (*FOLDERS, *FILES)}
    # `schedule` and `learn` name what they write by the time, and append to a log that several may share


# ---- killed, or on a full disk, at any write -------------------------------------------------------------------------

Command = Callable[[Path, bool], int]


def evaluating(out: Path, resume: bool) -> int:
    flags = ("--seeds", "1..3", "--nodes", "3", "--pods", "20", "--workers", "1", "--out", str(out))
    return run("evaluate", ["--policies", "random", "least-variance", *flags, *(("--resume",) * resume)])


def runs(out: Path) -> object:
    frame = Results.read(out).frame().sort_values(["policy", "seed"])
    return frame[["policy", "seed", "mean_variance", "waiting_mean_s"]].to_dict("list")


def tuning(out: Path, resume: bool) -> int:
    flags = ("--task", "compress", "--nodes", "4", "--pods", "40", "--generations", "3", "--population", "4")
    few = ("--episodes", "4", "--seeds", "1000..1002", "--workers", "1", "--out", str(out / "tuned.yaml"))
    return run("tune", ["kube-scheduler", *flags, *few, *(("--resume",) * resume)])


def found(out: Path) -> object:
    state = json.loads((out / "tuned.search.json").read_text())
    return {name: state[name] for name in ("number", "best", "start")}, [
        path.read_bytes() for path in out.glob("tuned.yaml")
    ]


RESUMED: dict[str, tuple[Command, Callable[[Path], object], tuple[int, ...]]] = {
    "evaluate": (evaluating, runs, (0, 1, 4)),
    "tune kube-scheduler": (tuning, found, (0, 2)),
}
"""What is done, what it comes to, and at which of its writes it is killed."""


def in_a_process(body: Callable[[], int]) -> int:
    """Return how a copy of this process ends that does it: its exit status, or minus the signal that killed it."""
    child = os.fork()
    if not child:
        status = 70
        with contextlib.suppress(BaseException):
            status = body()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(number: int, body: Callable[[], int]) -> Callable[[], int]:
    """Do it, and be killed in the middle of the write of this number: of a line, or of a file that is to be whole."""
    count = iter(range(number + 1))

    def dying(write: Callable[[int, bytes], None]) -> Callable[[int, bytes], None]:
        def half(descriptor: int, content: bytes) -> None:
            if next(count, number) == number:
                write(descriptor, bytes(content)[: len(content) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            write(descriptor, content)

        return half

    def do() -> int:
        files._write_all = dying(files._write_all)
        replace = Path.replace

        def dies(self: Path, target: Path) -> Path:
            if next(count, number) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return replace(self, target)

        Path.replace = dies  # type: ignore[assignment, method-assign]
        return body()

    return do


@pytest.mark.parametrize("command", RESUMED)
def test_a_command_that_was_killed_at_a_write_goes_on_to_what_it_would_have_come_to(
    command: str, tmp_path: Path
) -> None:
    do, come_to, deaths = RESUMED[command]
    (tmp_path / "whole").mkdir()
    assert do(tmp_path / "whole", False) == 0
    whole = come_to(tmp_path / "whole")
    for number in deaths:
        out = tmp_path / f"killed-{number}"
        out.mkdir()
        status = in_a_process(killed_at(number, lambda out=out: do(out, False)))  # type: ignore[misc]
        assert status == -signal.SIGKILL
        begun = command == "evaluate" or (out / "tuned.search.json").exists()
        assert do(out, begun) == 0
        assert come_to(out) == whole
        assert not [path for path in out.iterdir() if path.name.endswith(".writing")]


@pytest.mark.parametrize("command", RESUMED)
def test_a_full_disk_is_told_in_a_line_and_what_was_done_goes_on(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    do, come_to, _ = RESUMED[command]
    (tmp_path / "whole").mkdir()
    assert do(tmp_path / "whole", False) == 0
    whole = come_to(tmp_path / "whole")
    largest = max(
        path.stat().st_size for path in (tmp_path / "whole").rglob("*.csv" if command == "evaluate" else "*.json")
    )
    out = tmp_path / "full"
    out.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    capsys.readouterr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * largest // 3, before[1]))
    try:
        assert do(out, False) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert said.endswith("cannot be written: File too large")
    begun = command == "evaluate" or (out / "tuned.search.json").exists()
    assert do(out, begun) == 0
    assert come_to(out) == whole
