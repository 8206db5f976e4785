"""The documents: pages of the site, and what they tell a reader to type: commands, and programs in Python."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "models" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
PROGRAMS = (
    "aaml", "make", "python", "tensorboard", "docker", "kubectl", "kube-scheduler", "curl", "simon", "pytest",
    "rundqn", "rungnn", "runacdqn", "runacgnn", "runsim", "ktop", "cleancluster", "supervisorctl",
)  # fmt: skip

_BLOCK = re.compile(r"<!-- aaml: (?!end).*?<!-- aaml: end -->", re.DOTALL)
_FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^    \S.*\n)+", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_SEPARATORS = {";", "&&", "&", "|", "do", "done", "for"}


def pages_of(part: str) -> list[str]:
    """Return the pages of one part of the site's navigation, relative to docs/."""

    def leaves(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [page for each in (entry.values() if isinstance(entry, dict) else entry) for page in leaves(each)]

    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    (chosen,) = (each[part] for each in nav if part in each)
    return leaves(chosen)


def words(page: str) -> int:
    """Return how many words a page below docs/ has outside the blocks that are drawn from results and settings."""
    return len(_BLOCK.sub("", (ROOT / "docs" / page).read_text(encoding="utf-8")).split())


@dataclass(frozen=True)
class Command:
    """One command as a document has it, on one line, with the variables of its block filled in."""

    document: str
    text: str

    @property
    def words(self) -> list[str]:
        """The command as a shell would split it, without what stands for "and so on"."""
        return [word for word in shlex.split(self.text) if word != "..."]

    def __str__(self) -> str:
        return f"{self.document}: {self.text}"


def commands(document: Path) -> Iterator[Command]:
    """Yield every command of a document: of its console blocks, indented blocks, and in running text."""
    text = document.read_text(encoding="utf-8")
    rest = _FENCED.sub("", text)
    blocks = [body for _, kind, body in _FENCED.findall(text) if kind == "console"]
    blocks += _INDENTED.findall(rest)
    for block in blocks:
        variables: dict[str, str] = {}
        for line in block.replace("\\\n", " ").splitlines():
            yield from (Command(document.name, part) for part in _parts(line, variables))
    for code in _INLINE.findall(rest):
        words = " ".join(code.split())
        if words.startswith(tuple(f"{program} " for program in PROGRAMS)):
            yield from (Command(document.name, part) for part in _parts(words, {}))


def python_blocks(document: Path) -> list[str]:
    """Return the programs in Python of a document."""
    return [body for _, kind, body in _FENCED.findall(document.read_text(encoding="utf-8")) if kind == "python"]


def _parts(line: str, variables: dict[str, str]) -> Iterator[str]:
    """Yield the single commands of a line, as text that a shell splits again."""
    line = re.sub(r"\s+#\s.*", "", line.strip()).removeprefix("$ ")
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        lexer.commenters = ""
        words = list(lexer)
    except ValueError:  # a text in quotes that goes on over lines, such as a request's body
        words = line.split()[:2]
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in _SEPARATORS:
            assigned = re.fullmatch(r"([A-Z_]+)=(.*)", word)
            if assigned and not command:
                variables[assigned[1]] = assigned[2]
            else:
                command += _filled(word, variables)
            continue
        if command[1:2] == ["in"]:  # a loop: its first turn
            variables[command[0]] = command[2]
        elif command and Path(command[0]).name in PROGRAMS:
            yield shlex.join(command)
        command = []


def _filled(word: str, variables: Mapping[str, str]) -> list[str]:
    if re.fullmatch(r"\$[A-Z]", word):
        return variables[word[1:]].split()
    return [re.sub(r"\$([A-Z])\b", lambda name: variables[name[1]], word)]
