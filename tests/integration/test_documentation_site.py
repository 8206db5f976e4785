"""`make docs`: the site is built without a warning, from what the program says of itself, and needs no other host."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

import aaml
from aaml.commands.table import COMMANDS
from hooks import repository
from support.browser import needs_browser, opened
from support.documents import pages_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
_EACH_KIND = (
    "index", "tutorial", "leaderboard", "models", "theory", "cost", "benchmark/optimum", "models/varied-acdqn",
    "notebooks/03-study", "reference/commands", "reference/commands/train", "reference/python",
)  # fmt: skip
_WIDER = """() => {
  const most = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > most) found.push(`the page: ${document.documentElement.scrollWidth}`);
  const scrolls = (e) => ["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX);
  for (const e of document.querySelectorAll(".md-main *")) {
    let up = e.parentElement;
    while (up !== document.body && !scrolls(up)) up = up.parentElement;
    if (up === document.body && e.getBoundingClientRect().right > most + 1) found.push(e.outerHTML.slice(0, 80));
  }
  return found;
}"""
_CUT = """() => [...document.querySelectorAll(".highlight:not(.language-text) pre > code")]
  .filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent.slice(0, 80))"""
_WITHIN = re.compile(r"<a\b[^>]*?href=\"(?![a-z]+:)([^\"#?]*)(?:\?[^\"#]*)?#?([^\"]*)\"")
_PLACE = re.compile(r"\bid=\"([^\"]+)\"")
_FETCHED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"(https?://[^\"]+)\"")


MODES = {"light": "default", "dark": "slate"}


def show_in(page: "Page", mode: str, site: Path) -> None:
    """Show the next pages in a mode. Material keeps the first that it met, so that is forgotten."""
    page.emulate_media(color_scheme="dark" if mode == "dark" else "light")
    page.goto((site / "index.html").as_uri())
    page.evaluate("localStorage.clear()")
    page.reload()
    assert page.evaluate("document.body.dataset.mdColorScheme") == MODES[mode]


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


def test_every_link_within_the_site_leads_to_a_file_and_to_a_place_in_it(site: Path) -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html") if page.name != "404.html"}
    places = {page: set(_PLACE.findall(text)) for page, text in pages.items()}
    dead = []
    for page, text in pages.items():
        for path, place in _WITHIN.findall(text):
            target = (page.parent / unquote(path)).resolve() if path else page
            if not target.exists() or (place and target in places and unquote(place) not in places[target]):
                dead.append(f"{page.relative_to(site)}: {path}#{place}")
    assert dead == []


def test_nothing_is_fetched_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 12
    fetched = {page.name: _FETCHED.findall(page.read_text(encoding="utf-8")) for page in pages}
    assert {name: hosts for name, hosts in fetched.items() if hosts} == {}


@needs_browser
def test_nothing_is_wider_than_a_page_in_either_mode_and_no_script_complains(site: Path, tmp_path: Path) -> None:
    wrong = []
    with opened(tmp_path / "profile") as (page, errors):
        page.context.set_offline(True)

        def look(name: str, width: int, mode: str) -> None:
            errors.clear()
            page.goto((site / name).with_suffix(".html").as_uri())
            found = page.evaluate(_WIDER) + (page.evaluate(_CUT) if width > 1000 else []) + errors
            wrong.extend(f"{name} at {width} px, {mode}: {each}" for each in found)

        for mode in MODES:
            show_in(page, mode, site)
            for width in (420, 1280, 1400):
                page.set_viewport_size({"width": width, "height": 900})
                for name in _EACH_KIND:
                    look(name, width, mode)
                if (mode, width) == ("light", 420):  # where it is narrowest, the whole manual
                    for name in pages_of("Manual"):
                        look(name.rpartition(".")[0], width, mode)
    assert wrong == []


@needs_browser
def test_a_copied_command_has_no_prompt_and_a_figure_is_dark_on_dark_pages(site: Path, tmp_path: Path) -> None:
    copied = """(code) => { code.setAttribute("data-md-copying", ""); return code.innerText; }"""
    with opened(tmp_path / "profile") as (page, _):
        page.goto((site / "tutorial.html").as_uri())
        command = page.locator(".language-console code").first
        assert command.inner_text().startswith("$ git clone ")
        assert command.evaluate(copied).startswith("git clone ")
        turned = []
        for mode in MODES:
            show_in(page, mode, site)
            for name in ("index", "lab"):
                page.goto((site / name).with_suffix(".html").as_uri())
                picture = page.locator(".md-content img").first
                turned.append(picture.evaluate("(picture) => getComputedStyle(picture).filter").startswith("invert"))
        assert turned == [False, False, True, False]  # a figure, not a screenshot


def test_the_site_has_a_mark_and_a_link_to_the_repository_that_fetches_nothing(site: Path) -> None:
    head = (site / "index.html").read_text(encoding="utf-8")
    assert '<link rel="icon" href="mark.svg">' in head
    assert '<img src="mark.svg" alt="logo">' in head
    assert 'data-md-component="source"' not in head  # Material's own would ask the host for stars


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        ("https://token@host.example/people/aaml.git\n", "https://host.example/people/aaml"),
        ("git@host.example:people/aaml.git\n", "https://host.example/people/aaml"),
        ("/a/folder/of/this/machine.git\n", ""),
        ("", ""),
    ],
)
def test_the_repository_is_the_one_that_was_cloned(origin: str, address: str) -> None:
    assert repository(origin) == address


@needs_browser
@pytest.mark.parametrize("name", ["index.html", "cost/nodes.html"])
def test_the_search_finds_pages_that_are_opened_from_the_file_system(site: Path, name: str, tmp_path: Path) -> None:
    with opened(tmp_path / "profile") as (page, errors):
        page.context.set_offline(True)
        page.goto((site / name).as_uri())
        field, links = page.locator(".md-search__input"), page.locator(".md-search-result__link")
        field.fill("LP relaxation")
        for _ in range(150):  # a key is heard once the index is read
            field.press("End")
            if links.count():
                break
            page.wait_for_timeout(200)
        found = links.evaluate_all("(links) => links.map((each) => each.href)")
        assert any("cost/" in link or "benchmark/" in link for link in found)
        assert all((site / link.split(f"{site}/")[1].split("?")[0].split("#")[0]).is_file() for link in found)
        assert errors == []
