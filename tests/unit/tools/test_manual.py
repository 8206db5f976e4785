"""Pages of the manual are short, answer one question each, and show how in their first screen."""

import re

import pytest

from support.documents import ROOT, pages_of, words

DOCS = ROOT / "docs"
PAGES = [page for page in pages_of("Manual") if page.endswith(".md") and (DOCS / page).is_file()]
"""Without notebooks, and without what is made as the site is built: commands, contributing, changelog."""
NOTHING_TO_SHOW = ["reference/python.md"]
"""Made from docstrings, name by name."""
_SHOWN = re.compile(r"^(```\w+|!\[|\|[ -])", re.MULTILINE)  # a command or program, a picture, a table


def first_screen(page: str) -> str:
    return "\n".join((DOCS / page).read_text(encoding="utf-8").splitlines()[:60])


def test_the_manual_has_at_most_35_000_words() -> None:
    assert len(PAGES) > 40
    assert sum(map(words, PAGES)) <= 35_000


def test_the_readme_has_less_than_450_words() -> None:
    assert words("../README.md") < 450


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_at_most_1_500_words(page: str) -> None:
    assert words(page) <= 1_500


@pytest.mark.parametrize("page", PAGES)
def test_the_first_screen_has_a_command_a_picture_or_a_table(page: str) -> None:
    assert bool(_SHOWN.search(first_screen(page))) == (page not in NOTHING_TO_SHOW)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_one_title_and_begins_with_a_sentence(page: str) -> None:
    text = re.sub(r"\A---\n.*?\n---\n", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL).lstrip()
    title, _, rest = text.partition("\n\n")
    assert re.fullmatch(r"# [^\n]+", title)
    assert re.match(r"[A-Z`]", rest), "say what the page answers before the first heading"
