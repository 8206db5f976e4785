"""`make docs`: the site is built without a warning, from what the program says of itself, and needs no other host."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import aaml
from aaml.commands.table import COMMANDS

ROOT = Path(__file__).parents[2]
_FETCHED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"(https?://[^\"]+)\"")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    return folder


def test_every_command_and_every_name_of_the_package_has_its_reference(site: Path) -> None:
    index = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    files = {name: f"{name.replace(' ', '-')}.html" for name in COMMANDS}
    assert [name for name, file in files.items() if f'href="commands/{file}"' not in index] == []
    folder = site / "reference" / "commands"
    pages = {name: (folder / file).read_text(encoding="utf-8") for name, file in files.items()}
    assert [name for name, page in pages.items() if f"usage: aaml {name} " not in page] == []
    assert "usage: aaml schedule gnn " in pages["schedule"]  # the commands below a command too
    names = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert [name for name in aaml.__all__ if not name.startswith("_") and f'id="aaml.{name}"' not in names] == []


def test_formulas_are_drawn_without_a_script(site: Path) -> None:
    text = (site / "theory.html").read_text(encoding="utf-8")
    assert text.count("<math") > 10
    assert "$" not in re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)


def test_nothing_is_fetched_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 12
    fetched = {page.name: _FETCHED.findall(page.read_text(encoding="utf-8")) for page in pages}
    assert {name: hosts for name, hosts in fetched.items() if hosts} == {}
