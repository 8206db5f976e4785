"""What a shell offers when the tabulator key is pressed, asked in process and by real shells."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aaml.commands.completing import answer
from aaml.commands.table import COMMANDS

BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb"}
SPACE = "\N{SPACE}"  # argcomplete ends the only completion with one


def offered(line: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    said = io.StringIO()
    monkeypatch.setattr("argcomplete.finders.CompletionFinder._init_debug_stream", lambda _: None)  # pytest has file 9
    for name, value in {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\013", "_ARGCOMPLETE_SHELL": "bash", "COMP_TYPE": "9",
        "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    ends: list[int] = []
    answer(said, ends.append)
    assert ends[0] == 0
    return {word.rstrip(SPACE) for word in said.getvalue().split("\013")}


@pytest.mark.parametrize(
    ("line", "among"),
    [
        ("aaml tra", {"train", "trace"}),
        ("aaml train --agent ", {"gnn", "dqn", "acdqn", "acgnn", "qtable", "linear"}),
        ("aaml train --agent acdqn --clip", {"--clip-range"}),  # what only this agent has
        ("aaml train --task compress", {"compress", "compress-batch"}),
        ("aaml evaluate --seeds 1..2 --policies fgd least-", {"least-allocated", "least-variance"}),
        ("aaml evaluate --models mo", {"models/mine.pth"}),
        ("aaml replay trace/ --policy models/", {"models/mine.pth"}),
        ("aaml cluster do", {"down"}),
        ("aaml search ", {"training", "scheduler", "bill", "nodes", "gpu", "formula", "network"}),
        ("aaml search formula --task va", {"varied"}),
        ("aaml cluster down --na", {"--name"}),
        ("aaml schedule policy --policy kube-", {"kube-scheduler"}),
        ("aaml completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_commands_flags_and_names_are_offered(
    line: str, among: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name in ("mine.pth", "notes.txt"):
        (tmp_path / "models" / name).touch()
    found = offered(line, monkeypatch)
    assert among <= found
    assert all(word.startswith(line.rpartition(" ")[2]) for word in found)


def test_every_command_can_be_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name.split()[0] for name in COMMANDS} <= offered("aaml ", monkeypatch)
    assert [name for name in COMMANDS if not offered(f"aaml {name} --h", monkeypatch) & {"--help"}] == []


def test_a_real_bash_completes(tmp_path: Path) -> None:
    asked = """
        source <(aaml completion bash)
        COMP_LINE='aaml cluster kubec' COMP_POINT=18 COMP_TYPE=9 COMP_CWORD=2 COMP_WORDS=(aaml cluster kubec)
        $(complete -p aaml | grep -oP '(?<=-F )\\S+') aaml
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    said = subprocess.run(
        ["bash", "-c", asked], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path, check=True
    )
    assert said.stdout.split() == ["kubeconfig", "kubectl"] or said.stdout.split() == ["kubectl", "kubeconfig"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish: install the package fish")
def test_a_real_fish_completes(tmp_path: Path) -> None:
    asked = 'aaml completion fish | source; complete -C "aaml cluster kubec"'
    said = subprocess.run(
        ["fish", "-c", asked], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path, check=True
    )
    assert sorted(line.split("\t")[0] for line in said.stdout.splitlines()) == ["kubeconfig", "kubectl"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh: install the package zsh")
def test_a_real_zsh_completes(tmp_path: Path) -> None:
    import pexpect

    shell = pexpect.spawn("zsh", ["-f", "-i"], encoding="utf-8", timeout=120, env=ENVIRONMENT, cwd=str(tmp_path))
    try:
        shell.sendline("PS1='rea''dy> '; autoload -Uz compinit; compinit -D -u; source <(aaml completion zsh)")
        shell.expect("ready> ")
        shell.send("aaml cluster do\t")
        shell.expect("cluster down")
    finally:
        shell.close(force=True)
