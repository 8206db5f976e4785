"""Every command that writes: one writer an output, and work that was killed or met a full disk goes on to the same."""

import contextlib
import dataclasses
import functools
import json
import os
import resource
import signal
import tempfile
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import optuna
import pytest

from aaml import cli, files
from aaml.commands.table import COMMANDS, module_of
from aaml.evaluation.results import Results
from aaml.outputs import output_file, output_folder
from aaml.training.records import read_metrics


def run(command: str, *argv: str) -> int:
    return cli.run(command, argv)


# ---- one writer ------------------------------------------------------------------------------------------------------

FOLDERS = {
    "apply": ("-f", "x.yaml", "--out"),
    "bench cant-be-late": ("--out",),
    "bench leaderboard": ("--policy", "random", "--out"),
    "bench openb": ("--policy", "fgd", "--out"),
    "bench perf": ("--logs",),
    "demo": ("--out",),
    "evaluate": ("--out",),
    "export": ("balance-linear", "--out"),
    "record": ("--out",),
    "replay": ("x", "--out"),
    "report compare": ("x", "--out"),
    "search bill": ("--out",),
    "search formula": ("--out",),
    "search network": ("compress-gnn", "--out"),
    "search training": ("--out",),
    "trace fetch": ("openb", "--out"),
    "train": ("--agent", "qtable", "--out"),
}
FILES = {
    "bench chaos": ("--out",),
    "bench soak": ("--out",),
    "lab": ("x", "--export"),
    "record": ("--out",),
    "search gpu": ("--out",),
    "search nodes": ("--out",),
    "search scheduler": ("--out",),
    "search spot": ("--out",),
    "trace table": ("x", "--out"),
    "trace topology": ("--picture",),
}
SUFFIX = {"trace topology": ".png", "search gpu": ".npz", "search spot": ".json"}


@pytest.mark.parametrize("command", sorted(FOLDERS))
def test_a_folder_that_another_writes_to_is_refused_in_a_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with output_folder(tmp_path / "out"):
        assert run(command, *FOLDERS[command], str(tmp_path / "out")) == 2
        said = capsys.readouterr().err
        assert f"{tmp_path / 'out'}: process {os.getpid()} (" in said
        assert len([line for line in said.splitlines() if "error:" in line]) == 1
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".writing"], "nothing was written"


@pytest.mark.parametrize("command", sorted(FILES))
def test_a_file_that_another_writes_is_refused_in_a_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"out{SUFFIX.get(command, '.csv')}"
    with output_file(path):
        assert run(command, *FILES[command], str(path)) == 2
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
    assert run(command, *argv, str(wrong)) == 2
    assert "is not accepted; expected a f" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["search nodes", "search scheduler"])
@pytest.mark.parametrize("wrong", [".", "/"])
def test_a_folder_without_a_name_is_no_file(command: str, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--out", wrong) == 2
    assert f"out: '{wrong}' is not accepted; expected a file, not a folder" in capsys.readouterr().err


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
    writing = {name for name in COMMANDS if outputs & set(paths(module_of(name).Args))}
    assert writing - {"schedule", "learn", "trace convert", "trace verify"} == {*FOLDERS, *FILES}
    # `schedule` and `learn` name what they write by the time, and append to a log that several may share; `convert`
    # reads its source first, and `verify` only reads


# ---- killed, or on a full disk, at any write -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Work:
    """What a command writes into a folder.

    `argv` are its flags but for --out, which is `out` in that folder; `goes_on` is what is said besides once the file
    `begun` is there, or always. `come_to` says what was made, apart from times. It is killed at the writes `deaths`.
    """

    argv: str
    come_to: Callable[[Path], object]
    deaths: tuple[int, ...]
    out: str = ""
    goes_on: str = ""
    begun: str = ""
    full: tuple[str, ...] = (".csv", ".json", ".yaml", ".jsonl", ".pt", ".db", ".formula")

    def do(self, folder: Path) -> int:
        """Do it, or go on with it."""
        again = self.goes_on if not self.begun or (folder / self.begun).exists() else ""
        return run(*self.argv.split(), "--out", str(folder / self.out), *again.format(out=folder / self.out).split())


def runs(folder: Path) -> object:
    frame = Results.read(folder).frame().sort_values(["policy", "seed"])
    return frame[["policy", "seed", "mean_variance", "waiting_mean_s"]].to_dict("list")


def search(folder: Path) -> object:
    (path,) = folder.rglob("study.jsonl")
    (found,) = load_study(path)
    trials = [(each.number, each.state, each.values, each.user_attrs) for each in found.trials]
    return trials, found.user_attrs.get("start"), contents(folder, "*.yaml")


def load_study(path: Path) -> list[optuna.Study]:
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    return [optuna.load_study(study_name=each, storage=storage) for each in optuna.get_all_study_names(storage)]


def contents(folder: Path, *patterns: str) -> dict[str, bytes]:
    found = (path for pattern in patterns for path in folder.glob(pattern) if path.name[0] != ".")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def training(folder: Path) -> object:
    lines = [line for line in read_metrics(folder) if line["kind"] == "scalar" and "second" not in line["name"]]
    told = [(line["name"], line["value"], line["step"]) for line in lines]
    summary = json.loads((folder / "summary.json").read_text())
    return told, {**summary, "seconds": 0}, contents(folder, "model/*")


def study(folder: Path) -> object:
    (found,) = load_study(folder / "study.jsonl")
    return [(each.number, each.state, each.params, each.intermediate_values) for each in found.trials]


def formulas(folder: Path) -> object:
    (found,) = load_study(folder / "study.jsonl")
    played = [(each.number, each.state, each.values, each.user_attrs) for each in found.trials]
    names = sorted(path.name for path in (*folder.glob("front/[!.]*"), *folder.glob("model/[!.]*")))
    return json.loads((folder / "front.json").read_text()), played, names


def entries(folder: Path) -> object:
    return {path.name: json.loads(path.read_text())["scores"] for path in folder.rglob("*.json")}


SEARCH = "--seeds 1000..1001 --workers 1 --generations 2 --population 4 --episodes 2"
WORK = {
    "evaluate": Work(
        "evaluate --policies random least-variance --seeds 1..3 --nodes 3 --pods 20 --workers 1", runs, (0, 1, 4),
        goes_on="--resume",
    ),
    "search scheduler": Work(
        f"search scheduler --task compress --nodes 4 --pods 40 {SEARCH}", search, (0, 2), out="tuned.yaml",
        goes_on="--resume", begun="tuned.yaml.study/study.jsonl",
    ),
    "search bill": Work(
        f"search bill --task bill-when-empty --nodes 2 {SEARCH}", search, (0, 2), goes_on="--resume",
        begun="study.jsonl",
    ),
    "train": Work(
        "train --agent qtable --task seedc --pods 20 --steps 120 --validate-every 40 --validation-episodes 1",
        training, (0, 3, 6, 9), goes_on="--resume", begun="config.json",
    ),
    "search training": Work(
        "search training --agent dqn --method rewards --task seedc --pods 20 --steps 64 --rungs 2 --trials 3 --batch 2"
        " --envs 2 --teacher-steps 20 --teacher-passes 1 --validation-episodes 1 --space hidden_size=8,16",
        study, (4, 12), goes_on="--resume", begun="study.jsonl",
    ),
    "search formula": Work(
        "search formula --task balance --nodes 4 --pods 20 --episodes 4 --validation-episodes 4 --population 8"
        " --islands 1 --generations 2 --size 7 --tuned 0", formulas, (0, 3, 7), goes_on="--resume", begun="study.jsonl",
    ),
    "search network": Work(
        "search network balance-acdqn --nodes 4 --pods 20 --states 20 --rounds 1 --generations 2 --population 8"
        " --size 7 --tuned 0 --validation-episodes 2",
        lambda folder: contents(folder, "front.json"), (0, 5), goes_on="--resume", begun="study.jsonl",
    ),
    "bench leaderboard": Work("bench leaderboard --policy random --task balance --nodes 10", entries, (0,)),
    "search nodes": Work(
        "search nodes --task bill --nodes 3 --seeds 1000..1001 --workers 1 --generations 2 --population 4 --episodes 2",
        search, (0, 2), out="nodes.yaml", goes_on="--resume", begun="nodes.yaml.study/study.jsonl",
    ),
}  # fmt: skip
"""What is done, what it comes to, and at which of its writes it is killed."""
QUICK = {"evaluate"}
EACH = pytest.mark.parametrize(
    "command", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in WORK]
)


@functools.cache
def whole(command: str) -> tuple[object, Mapping[str, int]]:
    """Return what a command comes to that nothing happens to, and the sizes of its files."""
    with tempfile.TemporaryDirectory() as name:
        assert WORK[command].do(Path(name)) == 0
        sizes = {path.name: path.stat().st_size for path in Path(name).rglob("*") if path.is_file()}
        return WORK[command].come_to(Path(name)), sizes


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


@EACH
def test_a_command_that_was_killed_at_a_write_goes_on_to_what_it_would_have_come_to(
    command: str, tmp_path: Path
) -> None:
    work, (come_to, _) = WORK[command], whole(command)  # first, so that the copies of this process have compiled
    for number in work.deaths:
        folder = tmp_path / f"killed-{number}"
        folder.mkdir()
        assert in_a_process(killed_at(number, lambda folder=folder: work.do(folder))) == -signal.SIGKILL  # type: ignore[misc]
        assert work.do(folder) == 0
        assert work.come_to(folder) == come_to
        left = [path for path in folder.rglob("*") if path.name.endswith(".writing")]
        assert not left, "its lock goes with the process"


@EACH
@pytest.mark.parametrize("share", [0.05, 0.66])
def test_a_full_disk_is_told_in_a_line_and_what_was_done_goes_on(
    command: str, share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file can be larger than a share of the largest that the command writes of its own."""
    work, (come_to, sizes) = WORK[command], whole(command)
    largest = max(size for name, size in sizes.items() if name != "report.html" and name.endswith(work.full))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    capsys.readouterr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * largest), before[1]))
    try:
        assert work.do(tmp_path) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert "File too large" in said or "disk" in said
    assert work.do(tmp_path) == 0
    assert work.come_to(tmp_path) == come_to
