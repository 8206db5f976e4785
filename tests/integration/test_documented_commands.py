"""Every command that a document shows is taken by the program, and run by a test or it is said why not."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from aaml.cli import run
from aaml.commands.flags import parse
from aaml.commands.table import COMMANDS, GROUPS, module_of
from support.documents import DOCUMENTS, ROOT, Command, commands, python_blocks

ALL = [command for document in DOCUMENTS for command in commands(document)]
HERE = ("tutorial.md", "your-own.md", "studies.md")
"""Pages whose commands this file runs, made smaller, in the order of the page."""
_TRAINING = {
    "--steps": "32", "--pods": "12", "--teacher_steps": "40", "--teacher_passes": "1", "--validation_episodes": "1",
}  # fmt: skip
SMALLER = {
    "train": _TRAINING,
    "evaluate": {"--seeds": "1000..1001", "--pods": "12", "--workers": "1"},
    "search training": {**_TRAINING, "--trials": "2", "--workers": "1"},
}

RUN_BY: dict[str, str] = yaml.safe_load((ROOT / "tests/support/documented_commands.yaml").read_text(encoding="utf-8"))


def who_runs(command: Command) -> str:
    """Return the pattern of `RUN_BY` that a command fits; empty without one."""
    return next((pattern for pattern in RUN_BY if re.match(pattern, command.text)), "")


def test_every_command_is_run_by_a_test_or_it_is_said_why_not() -> None:
    unknown = [str(command) for command in ALL if not who_runs(command)]
    assert unknown == [], (
        "give each a line in tests/support/documented_commands.yaml: the test that runs it, or why none"
    )
    used = {who_runs(command) for command in ALL}
    assert [pattern for pattern in RUN_BY if pattern not in used] == []


def test_the_tests_that_run_them_are_there() -> None:
    missing = []
    for where in RUN_BY.values():
        path, _, name = where.partition("::")
        if where != "this file" and not where.startswith("not: "):
            text = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else ""
            missing += [] if f"def {name}" in text and text else [where]
    assert missing == []


@pytest.mark.parametrize("command", sorted({c.text for c in ALL if c.words[0] == "aaml" and c.words[1:] != ["--help"]}))
def test_its_flags_are_taken(command: str) -> None:
    name, flags = _named(Command("", command).words[1:])
    assert name in {*COMMANDS, *GROUPS}
    if not flags or {"ARGS", "--help"} & set(flags) or "--config" in flags or flags[-1].startswith("--mod"):
        return  # a name in a text, words that stand for others, the help itself, a file that an earlier command leaves
    parse(module_of(name).Args, flags, f"aaml {name}", "")


def test_programs_in_python_are_programs() -> None:
    blocks = [(document.name, code) for document in DOCUMENTS for code in python_blocks(document)]
    assert len(blocks) > 4
    for name, code in blocks:
        compile(code, name, "exec")


@pytest.mark.parametrize("page", HERE)
def test_a_page_runs_from_top_to_bottom(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = ROOT / "docs" / page
    mine = "\n".join(code for code in python_blocks(document) if code.startswith("# mine.py"))
    Path("mine.py").write_text(mine, encoding="utf-8")
    ran = 0
    for command in commands(document):
        name, flags = _named([path for word in command.words[1:] for path in _found(word)])
        if RUN_BY[who_runs(command)] == "this file" and flags:
            assert run(name, _smaller(name, flags)) == 0, str(command)
            ran += 1
    assert ran >= 3
    for code in python_blocks(document):
        if "gymnasium" in code:
            exec(code, {})


def _named(words: list[str]) -> tuple[str, list[str]]:
    """Return the full name of a command and what follows it."""
    length = 2 if GROUPS.keys() & set(words[:1]) else 1
    return " ".join(words[:length]), words[length:]


def _found(word: str) -> list[str]:
    """Return the files that a pattern of the shell stands for, LABEL= kept before them."""
    label, equals, pattern = word.rpartition("=")
    return [f"{label}{equals}{path}" for path in sorted(Path().glob(pattern))] if "*" in word else [word]


def _smaller(name: str, flags: list[str]) -> list[str]:
    """Return a command's flags with numbers that take seconds."""
    for flag, value in SMALLER.get(name, {}).items():
        if "--config" in flags:
            break  # the file says all
        at = flags.index(flag) + 1 if flag in flags else len(flags) + 1
        flags = [*flags[: at - 1], flag, value, *flags[at + 1 :]]
    return flags


def test_commands_are_found_in_all_three_forms(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text with `aaml show x --y` and `aaml.train`.\n\n"
        '```console\n$ A="1 2"\n$ aaml train --steps $A \\\n    --out x   # why\n$ kill %1; aaml cluster down\n```\n\n'
        "    aaml serve --port 1 &\n    not-ours x\n",
        encoding="utf-8",
    )
    found = [command.text for command in commands(page)]
    assert found == ["aaml train --steps 1 2 --out x", "aaml cluster down", "aaml serve --port 1", "aaml show x --y"]
    assert shlex.split(found[0])[-1] == "x"
