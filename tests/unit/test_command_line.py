"""What a person reads after a slip on the command line: one line, status 2, no traceback."""

import subprocess
import sys

import pytest

from aaml.cli import COMMANDS, overview, run


@pytest.mark.parametrize(
    ("command", "argv", "words"),
    [
        ("demo", ["--steps", "zero"], ["--steps", "'zero'"]),
        ("demo", ["--steps", "0"], ["steps: 0", "from 1"]),
        ("train", ["--agent", "foo"], ["'foo'", "'--agent'", "'qtable'"]),
        ("evaluate", ["--nope", "3"], ["--nope"]),
        ("compare", [], ["results: none given"]),
        ("train", ["--seed"], ["--seed", "Missing value"]),
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


def test_every_command_is_listed_and_explains_itself() -> None:
    assert all(name in overview() for name in COMMANDS)
    for name in COMMANDS:
        with pytest.raises(SystemExit) as end:
            run(name, ["--help"])
        assert not end.value.code


def test_unknown_commands_are_answered_with_the_known_ones() -> None:
    entry = "import sys; sys.argv = ['aaml', 'fly']; from aaml.cli import main; main()"
    answer = subprocess.run([sys.executable, "-c", entry], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "command: 'fly' is not known; expected one of demo" in answer.stderr
