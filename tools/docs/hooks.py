"""What `mkdocs` calls as it builds the site: pages that are made from the program itself, and links out of docs/.

The reference of commands is what their `--help` says, so it cannot drift from the settings. CONTRIBUTING and CHANGELOG
stand at the root of the repository, where people and GitHub look for them, and become pages too.
"""

import contextlib
import io
import os
import re
import subprocess
from pathlib import Path
from unittest import mock

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from aaml.cli import run
from aaml.commands.table import COMMANDS, TASKS

ROOT = Path(__file__).parents[2]
FROM_ROOT = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
WIDTH = "80"
_COMMANDS = """# Commands

A page a command: what `aaml COMMAND --help` says, made from the settings themselves. Flags may be written with dashes
or underscores. `--config FILE.yaml` holds the same settings where a command has it.
"""
_REMOTE = re.compile(r"(?:https://|git@|ssh://git@)(?:[^@/]*@)?(?P<host>[\w.-]+)[:/](?P<name>[\w./-]+?)(?:\.git)?/?")
_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")
_MATH = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
_SUBCOMMAND = re.compile(r"^\s+•\s+([a-z]+)\b", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link to the repository that this checkout was cloned from, where that is a host's and not a folder's."""
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (no shell)
    if address := repository(answer.stdout):
        config.repo_url, config.repo_name = address, address.split("/", 3)[3]
    return config


def repository(origin: str) -> str:
    """Return the address of a remote as a browser opens it, without credentials; empty for a folder."""
    found = _REMOTE.fullmatch(origin.strip())
    return f"https://{found['host']}/{found['name']}" if found else ""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files below docs/."""
    for page, source in FROM_ROOT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_from_docs(text)))
    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    for name in COMMANDS:
        files.append(File.generated(config, f"reference/commands/{_file(name)}", content=command_page(name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Name files of the repository that are no pages, in place of a link that would lead nowhere."""
    folder = Path(config.docs_dir) / Path(page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / link[2]))
        inside = target.relative_to(config.docs_dir).as_posix() if target.is_relative_to(config.docs_dir) else ""
        file = files.get_file_from_path(inside)
        if not target.exists() or (file is not None and file.inclusion.is_included()):
            return link[0]  # a page, or a mistake that the build tells
        path = target.relative_to(ROOT).as_posix()
        return f"`{path}`" if link[1].strip("`/") in (path, target.name) else f"{link[1]} (`{path}`)"

    if page.meta.get("math"):  # formulas become MathML, which browsers draw without a script
        markdown = _MATH.sub(lambda found: _mathml(found[1], "block") if found[1] else _mathml(found[2]), markdown)
    parts = _FENCE.split(markdown)  # code stays as it is
    return "".join(part if number % 2 else _LINK.sub(named, part) for number, part in enumerate(parts))


def commands_page() -> str:
    """Return the list of all commands as Markdown: a line each, with a link to its page."""
    parts = [_COMMANDS]
    for task, names in TASKS.items():
        listed = [name for top in names for name in COMMANDS if name.split()[0] == top]
        rows = [f"| [`aaml {name}`](commands/{_file(name)}) | {_sentence(COMMANDS[name])} |" for name in listed]
        parts.append("\n".join([f"\n## {task}\n", "| command | what it does |", "| --- | --- |", *rows, ""]))
    return "".join(parts)


def command_page(name: str) -> str:
    """Return the reference of a command, and of the agents below it, as Markdown."""
    said = help_of(name)
    parts = [f"# aaml {name}\n\n{_sentence(COMMANDS[name])}\n\n{_block(said)}"]
    if "subcommands" in said:
        choices = _SUBCOMMAND.findall(said.partition("subcommands")[2])
        parts += [f"## aaml {name} {each}\n\n{_block(help_of(name, each))}" for each in dict.fromkeys(choices)]
    return "\n".join(parts)


def help_of(*command: str) -> str:
    """Return what `aaml COMMAND --help` prints."""
    said = io.StringIO()
    plain = {"COLUMNS": WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    with mock.patch.dict(os.environ, plain), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        run(command[0], [*command[1:], "--help"])
    return "\n".join(line.rstrip() for line in said.getvalue().rstrip().splitlines())


def _file(name: str) -> str:
    return f"{name.replace(' ', '-')}.md"


def _mathml(formula: str, display: str = "inline") -> str:
    return convert(" ".join(formula.split()), display=display)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _block(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _from_docs(text: str) -> str:
    """Return a document of the root with its links as they read from docs/."""
    return _LINK.sub(lambda link: f"[{link[1]}]({os.path.relpath(link[2], 'docs')}{link[3] or ''})", text)
