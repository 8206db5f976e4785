"""What a person reads after a slip on the command line: one line, status 2, no traceback."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aaml.cli import run
from aaml.commands.table import COMMANDS, GROUPS, TASKS, overview

ROOT = Path(__file__).parents[2]
HEAVY = {
    "torch",
    "torch_geometric",
    "numba",
    "scipy",
    "matplotlib",
    "pandas",
    "kubernetes",
    "networkx",
    "optuna",
    "tensorboard",
}


@pytest.mark.parametrize(
    ("command", "argv", "words"),
    [
        ("demo", ["--steps", "zero"], ["steps: 'zero' is not accepted; expected a whole number of at least 1 (see"]),
        ("train", ["--pods", "x"], ["pods: 'x' is not accepted; expected a whole number of at least 1 or none"]),
        ("train", ["--hidden-size", "wide"], ["hidden_size: 'wide'", "a whole number of at least 1"]),
        ("train", ["--nodes", "10", "ten"], ["nodes: '10 ten' is not accepted; expected a list, each a whole number"]),
        ("evaluate", ["--nodes", "10,20"], ["nodes: '10,20' is not accepted; did you mean 10 20?"]),
        ("evaluate", ["--task", "trace/"], ["task: 'trace/' is not there; expected a folder that `aaml record`"]),
        ("cluster up", ["--wait-s", "long"], ["wait_s: 'long' is not accepted; expected a number"]),
        ("demo", ["--steps", "0"], ["steps: 0", "at least 1"]),
        ("evaluate", ["--nodes", "3", "0"], ["nodes: 0 is not accepted; expected a list, each a whole number of at"]),
        ("evaluate", ["--nodes", "99999999999"], ["nodes: 99999999999 is not accepted", "between 1 and 100000"]),
        ("evaluate", ["--pods", "99999999999"], ["pods: 99999999999 is not accepted", "between 1 and 1e+07"]),
        ("replay", ["x", "--autoscaler", "y"], ["autoscaler: 'y' is not accepted; expected one of karpenter, "]),
        ("train", ["--agent", "foo"], ["agent: 'foo'", "qtable"]),
        ("train", ["--agent", "gn"], ["agent: 'gn'", "did you mean gnn?"]),
        ("train", ["--learning-rat", "3"], ["--learning-rat", "did you mean --learning-rate?"]),
        ("cluster", ["upp"], ["'upp'", "did you mean up?"]),
        ("evaluate", ["--nope", "3"], ["--nope"]),
        ("explain", [], ["pod: is missing; expected NAME or NAMESPACE/NAME"]),
        ("search network", [], ["model: is missing; expected a model file, the folder of a training"]),
        ("learn", [], ["command: is missing; expected one of dqn, gnn, acdqn, acgnn"]),
        ("report compare", [], ["results: none given"]),
        ("record", ["--out", "trace", "--duration-s", "nan"], ["duration_s: nan", "above 0"]),
        ("cluster up", ["--wait-s", "nan"], ["wait_s: nan", "above 0"]),
        ("schedule", ["dqn", "--sim-nodes", "0"], ["sim_nodes: 0", "at least 1"]),
        ("schedule", ["policy", "--seed", "-1"], ["seed: -1", "at least 0"]),
        ("serve", ["--port", "70000"], ["port: 70000", "between 0 and 65535"]),
        ("apply", ["--config", "none.yaml"], ["none.yaml"]),
        ("train", ["--lr", "0.1"], ["--lr", "did you mean --learning-rate?"]),
        ("train", ["gnn"], ["gnn", "did you mean --agent gnn?"]),
        ("train", ["--steps"], ["steps: needs a value; expected a whole number of at least 0"]),
        ("train", ["--steps", "1e6"], ["steps: '1e6' is not accepted; did you mean 1000000? Expected a whole number"]),
        ("train", ["--steps", "many"], ["steps: 'many' is not accepted; expected a whole number of at least 0"]),
        ("evaluate", ["--models", "runs/none"], ["policy: 'runs/none' is not there", "the folder of a training"]),
        ("evaluate", ["--policies", "mine.py"], ["policy: 'mine.py' names no policy", "expected FILE.py:NAME"]),
        ("evaluate", ["--policies", "fdg"], ["one of alphaevolve", "of `aaml show models`", "did you mean fgd?"]),
        ("evaluate", ["--seeds", "1000-1004"], ["seeds: '1000-1004'", "did you mean 1000..1004?"]),
        ("search training", ["--space", "learning_rate: 3e-4:log"], ["as in learning_rate=1e-4..1e-2:log"]),
        ("show formula", ["none"], ["file: 'none' is not there; expected NAME.formula", "balance-formula"]),
        ("cluster top", ["--log", "none.jsonl"], ["log: 'none.jsonl' is not accepted; expected the log of"]),
        ("trace split", ["folder", "--holdout", "2"], ["holdout: 2.0", "at most 1"]),
    ],
)
def test_mistakes_get_one_line(
    command: str, argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, argv) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"aaml {command}: error: ")
    assert said.count("\n") == 1
    for word in words:
        assert word in said


@pytest.mark.parametrize("value", ["abc", "1.5", "0", "-1", ""])
def test_a_number_of_threads_that_is_none_is_told_before_a_command_runs(
    value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", value)
    assert run("show policies", []) == 2
    told = f"NUMBA_NUM_THREADS: {value!r} is not accepted; expected a whole number of at least 1"
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_every_command_is_listed_and_explains_itself() -> None:
    listed = {line.split()[0] for line in overview().splitlines() if line.startswith("  ")}
    assert listed == {name.split()[0] for name in COMMANDS}
    assert len(listed) <= 24
    for name in COMMANDS:
        with pytest.raises(SystemExit) as end:
            run(name, ["--help"])
        assert not end.value.code


@pytest.mark.parametrize("group", GROUPS)
def test_the_help_of_a_group_is_a_screen_with_each_of_its_commands(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(group, ["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    listed = [f"{group} {line.split()[0]}" for line in lines if line.startswith("  ")]
    assert listed == [name for name in COMMANDS if name.startswith(f"{group} ")]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("tune", "`aaml search scheduler`"),
        ("evolve", "`aaml search formula`"),
        ("bound", "`aaml evaluate --bound`"),
        ("top", "`aaml cluster top`"),
        ("leaderboard", "`aaml report leaderboard` or `aaml bench leaderboard`"),
    ],
)
def test_a_word_that_other_tools_use_or_a_group_holds_is_answered_with_the_command(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(word, []) == 2
    assert capsys.readouterr().err == f"aaml: error: command: {word!r} is not known; did you mean {meant}?\n"


def test_no_help_waits_for_a_heavy_library() -> None:
    code = (
        "import contextlib, io, sys\n"
        "from aaml.cli import run\n"
        "from aaml.commands.table import COMMANDS\n"
        "for name in COMMANDS:\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "        run(name, ['--help'])\n"
        f"    if heavy := sorted({HEAVY!r} & set(sys.modules)):\n"
        "        sys.exit(f'{name} --help loads {heavy}')"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.parametrize(("number", "word"), [(signal.SIGTERM, "terminated"), (signal.SIGINT, "interrupted")])
def test_a_signal_as_a_command_loads_is_told_in_one_line(number: int, word: str) -> None:
    entry = (
        "import importlib, os, signal, sys; from aaml.cli import main; sys.argv = ['aaml', 'train']\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"importlib.import_module = lambda name: os.kill(os.getpid(), {int(number)})\n"
        "main()"
    )
    answer = subprocess.run([sys.executable, "-c", entry], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (128 + number, f"aaml train: {word}\n")


def test_unknown_commands_are_answered_with_the_known_ones() -> None:
    entry = "import sys; sys.argv = ['aaml', 'fly']; from aaml.cli import main; main()"
    answer = subprocess.run([sys.executable, "-c", entry], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "command: 'fly' is not known; expected one of doctor, demo" in answer.stderr


def test_a_mistyped_command_is_answered_with_the_nearest_one() -> None:
    entry = "import sys; sys.argv = ['aaml', 'evalaute']; from aaml.cli import main; main()"
    answer = subprocess.run([sys.executable, "-c", entry], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stderr == "aaml: error: command: 'evalaute' is not known; did you mean evaluate?\n"


def test_commands_stand_under_what_a_person_wants_to_do() -> None:
    text = overview()
    assert text.index("Train and compare:") < text.index("\n  train ") < text.index("Schedule for real:")
    names = [name for names in TASKS.values() for name in names]
    assert len(names) == len(set(names))
    assert set(names) == {name.split()[0] for name in COMMANDS}


def test_the_package_runs_as_a_module() -> None:
    answer = subprocess.run([sys.executable, "-m", "aaml", "--help"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0
    assert answer.stdout == f"{overview()}\n"


@pytest.mark.parametrize("part", ["src", "scripts", "docker", "deploy", "benchmarks"])
def test_no_product_file_names_a_folder_beside_the_repository(part: str) -> None:
    texts = [path for path in (ROOT / part).rglob("*") if path.suffix in {".py", ".sh", ".yaml"}]
    assert texts
    assert [str(path) for path in texts if "../shared" in path.read_text(encoding="utf-8")] == []


def test_a_policys_file_without_a_name_in_it_is_no_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def mine(context): return context.mask\n")
    assert run("evaluate", ["--policies", "mine.py"]) == 2
    assert "policy: 'mine.py' names no policy of that file; expected FILE.py:NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "argv", "told"),
    [
        ("show tasks", ["bill"], "bill  services and jobs come in waves"),
        ("show tasks", ["bill", "balance@0.5"], "balance@0.5  mixed pods come and go"),
        ("show models", ["balance-dqn"], "  agent    dqn"),
        ("show models", ["balance-dqn", "balance-gnn"], "  agent    gnn"),
        ("show formula", ["balance-formula", "--form", "text"], "pair."),
    ],
)
def test_what_there_is_is_shown_by_name(
    command: str, argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, argv) == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "argv", "told"),
    [
        ("show tasks", ["nope"], "task: 'nope' is not accepted; expected one of balance, "),
        ("show tasks", ["bill", "nope"], "task: 'nope' is not accepted; expected one of balance, "),
        ("show models", ["nope"], "name: 'nope' is not accepted; expected one of varied-acdqn, "),
        ("show models", ["balance-dqn", "nope"], "name: 'nope' is not accepted; expected one of varied-acdqn, "),
        ("show policies", ["kube-scheduler"], "'kube-scheduler' is one word too many; expected --file, --json"),
        ("show policies", ["a", "b"], "'a' is one word too many; expected --file, --json"),
        ("show formula", ["nope"], "file: 'nope' is not there; expected NAME.formula, "),
        ("show formula", ["balance-formula", "b"], "'b' is one word too many; expected --form"),
        ("show", ["nope"], "command: 'nope' is not known; expected one of policies, models, tasks, formula"),
        ("train", ["balance"], "'balance' is one word too many; expected flags alone"),
        ("schedule", ["policy", "fgd"], "'fgd' is one word too many; did you mean --policy fgd? (see aaml schedule"),
        ("schedule", ["dqn", "fgd"], "'fgd' is one word too many; expected flags alone (see aaml schedule --help)"),
        ("schedule", ["policy", "--fallback"], "fallback: needs a value; expected text (see aaml schedule --help)"),
    ],
)
def test_a_name_that_there_is_none_of_is_told_in_a_line(
    command: str, argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, argv) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert told in line


@pytest.mark.parametrize("columns", ["1", "3", "10"])
def test_help_in_a_narrow_terminal_breaks_no_words(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        run("cluster up", ["--help"])
    assert "--disable-scheduler" in capsys.readouterr().out


def test_a_training_on_more_nodes_than_can_be_held_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", ["--nodes", "99999999999", "--out", str(tmp_path / "run")]) == 2
    assert "nodes: 99999999999 is not accepted; expected a whole number between 1 and 100000" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
