"""Every flag of a search beside --look and --resume counts, or is refused in one line: none is ignored in silence."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.unit.evaluation.test_inputs import RESUMED, write_inputs

from aaml.cli import run
from aaml.commands.flags import parse
from aaml.commands.table import COMMANDS, module_of
from aaml.errors import UserError
from aaml.evolve.search import evolve
from aaml.evolve.settings import EvolveConfig
from aaml.parallel.processes import ProcessHost
from aaml.settings import Row, rows
from aaml.study.study import Study

LONGER = {
    "search training": {"trials", "workers", "device"},
    "search scheduler": {"generations", "seeds", "workers"},
    "search bill": {"generations", "seeds", "workers"},
    "search nodes": {"generations", "seeds", "workers"},
    "search gpu": {"generations", "workers"},
    "search spot": {"generations"},
    "search formula": {"generations", "workers"},
    "search network": {"generations"},
}
"""What a search may be told otherwise as it goes on: for how long, by whom, and on which held-out episodes."""
OTHER = {
    "task": "varied", "reward": "fragmentation", "teacher": "most-allocated", "rollout": "most-allocated",
    "reference": "most-allocated", "metric": "cost", "metrics": "mean_pending_pods", "plugins": "ImageLocality",
    "policy": "best-fit", "scheduler": "profiles.yaml", "nodepool": "other.yaml", "space": "gamma=0.1,0.2",
    "traces": "openb_pod_list_cpu050", "trace": "openb_pod_list_cpu050", "seeds": "7000..7001", "workers": "2",
    "agent": "dqn", "device": "cuda", "config": "settings.yaml",
}  # fmt: skip
"""Values of texts that are accepted and are not those of `RESUMED`; numbers are raised, words are other ones."""
OF_COMMAND = {
    ("search scheduler", "start"): "profiles.yaml#p2", ("search bill", "task"): "bill-when-empty",
    ("search nodes", "task"): "bill-when-empty", ("search nodes", "start"): "other-nodes.yaml",
    ("search gpu", "start"): "other.npz", ("search formula", "start"): "other.formula",
    ("search training", "start"): "start.json", ("search gpu", "generations"): "3",
    ("search gpu", "population"): "5", ("search training", "storage"): "sqlite:///other.db",
    ("search formula", "nodes"): "4", ("search training", "method"): "rewards",
    ("search training", "validate_every"): "500",
}  # fmt: skip


SAID = {"wait_p99_more_s": "limits", "evicted_times": "limits", "population": "stages", "seed": "stages"}
"""What a refusal may call a setting besides."""


class Went(Exception):  # noqa: N818
    """A search goes on."""


def value(command: str, row: Row) -> list[str]:
    """Return the words that say another value of a setting."""
    if (command, row.name) in OF_COMMAND or row.name in OTHER:
        return OF_COMMAND.get((command, row.name), OTHER.get(row.name, "")).split()
    if row.is_number or "int" in str(row.kind) or "float" in str(row.kind):
        number = row.value or 0
        number = number[0] if isinstance(number, tuple) and number else number or 0
        return [str(number + 3 if not isinstance(number, float) or number >= 1 else number / 2)]
    words = get_args(row.kind)
    return [next(str(each) for each in words if each != row.value)]


def others(command: str) -> list[Row]:
    return [
        row for row in rows(module_of(command).Args)
        if row.name not in ("out", "resume", "config", "look") and row.value is not dataclasses.MISSING
    ]  # fmt: skip


def without(argv: tuple[str, ...], flag: str) -> list[str]:
    """Return a command line without a flag and its values."""
    kept: list[str] = []
    skipping = False
    for word in argv:
        skipping = word == flag if word.startswith("--") else skipping
        kept += [] if skipping else [word]
    return kept


def said(command: str, row: Row) -> list[str]:
    flag = f"--{row.name.replace('_', '-')}"
    return (
        [f"--no-{flag[2:]}" if row.value else flag]
        if row.kind is bool or "bool" in str(row.kind)
        else [flag, *value(command, row)]
    )


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder in which a search has begun, with the inputs of `RESUMED` and others of the same kinds."""

    @cache
    def begin(command: str) -> Path:
        folder = tmp_path_factory.mktemp("begun")
        write_inputs(folder)
        for name, old in (
            ("other.yaml", "pool.yaml"),
            ("other-nodes.yaml", "nodes.yaml"),
            ("other.npz", "start.npz"),
            ("other.formula", "start.formula"),
        ):
            (folder / name).write_bytes((folder / old).read_bytes() + b"\n")
        with contextlib.chdir(folder):
            RESUMED[command].begin()
        return folder

    return begin


@pytest.mark.parametrize(
    ("command", "row"), [pytest.param(name, row, id=f"{name} --{row.name}") for name in LONGER for row in others(name)]
)
def test_a_search_that_goes_on_takes_a_flag_or_refuses_it_in_a_line(
    command: str, row: Row, begun: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    shutil.copytree(begun(command), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Study, "optimize", went)
    monkeypatch.setattr(ProcessHost, "start", went)  # those that several processes are to go on with play before it
    capsys.readouterr()
    words = said(command, row)
    argv = [*without(RESUMED[command].argv, words[0]), *words]
    if row.name in LONGER[command] - {"device"}:
        with pytest.raises(Went):
            run(command, argv)
        return
    assert run(command, argv) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    told = lines[0].replace("-", "_")
    assert row.name in told or f"another {SAID.get(row.name)}" in told


def went(*_: Any, **__: Any) -> None:
    raise Went


@pytest.mark.parametrize("command", LONGER)
def test_a_search_goes_on_for_as_long_as_it_was_last_told(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    numbers = []
    monkeypatch.setattr(Study, "optimize", lambda *told, **_: numbers.append(told[3]) or went())
    flag = "--trials" if command == "search training" else "--generations"
    argv = [word for word in without(RESUMED[command].argv, flag) if word != "--resume"]
    argv += ["--nodes", "3"] if command == "search formula" else []
    for words in ([flag, "3"], ["--resume"], ["--resume", flag, "6"], ["--resume"]):
        with pytest.raises(Went):
            run(command, [*argv, *words])
    played = {"search training": [1, 1, 2, 2]}.get(command, [3, 3, 6, 6])  # batches of four trials
    first = 1 if command in ("search scheduler", "search bill") else 0  # what one has is played before
    assert numbers == [first + each for each in played]


def test_every_search_is_here() -> None:
    assert set(LONGER) == {name for name in COMMANDS if name.startswith("search ")}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search for formulas."""
    out = tmp_path_factory.mktemp("searched") / "out"
    config = EvolveConfig(nodes=(3,), pods=5, episodes=1, validation_episodes=1, population=4, islands=1, generations=1)
    evolve(config, out, progress=False)
    return out


@pytest.mark.parametrize("name", [row.name for row in rows(EvolveConfig)] + ["resume", "config"])
def test_a_look_takes_a_flag_or_refuses_it_in_a_line(
    name: str, searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.yaml").write_text("generations: 3\n")
    (tmp_path / "other.formula").write_text("{}")
    known = {row.name: row for row in rows(EvolveConfig)}
    words = (
        ["--config", "settings.yaml"]
        if name == "config"
        else ["--resume"]
        if name == "resume"
        else said("search formula", known[name])
    )
    code = run("search formula", ["--out", str(searched), "--look", "1", *words])
    told = capsys.readouterr()
    if name == "nodes":
        assert code == 0
        assert "balance, 4 nodes: " in told.out
        return
    assert code == 2
    (line,) = told.err.strip().splitlines()
    assert ("generations" if name == "config" else name) in line


def test_a_search_for_formulas_goes_on_with_what_it_was_begun_with(
    searched: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ["--population", "100"]  # what a search has unless told otherwise; this one has 4
    for how in (["--resume"], ["--look", "1"]):
        assert run("search formula", ["--out", str(searched), *how, *usual]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "population: 100 is not accepted; expected 4, with which the search was " in line
    generations = []
    monkeypatch.setattr(Study, "optimize", lambda _study, _islands, _evaluate, number, **_: generations.append(number))
    for words in ([], ["--generations", "50"]):
        run("search formula", ["--out", str(searched), "--resume", *words])
    assert generations == [1, 50]


def test_a_file_of_settings_counts_beside_what_has_to_be_told(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("seed: 5\nrounds: 2\n")
    argv = ["model.pt", "--config", str(tmp_path / "settings.yaml"), "--rounds", "4"]
    args = parse(module_of("search network").Args, argv, "aaml search network", None)
    assert (args.distil.seed, args.distil.rounds) == (5, 4)
    (tmp_path / "settings.yaml").write_text("sead: 5\n")
    with pytest.raises(UserError, match="setting: 'sead' is not accepted; did you mean seed"):
        parse(module_of("search network").Args, argv, "aaml search network", None)
