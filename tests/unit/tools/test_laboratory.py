"""Pages of the laboratory have one form, and little text beside their generated tables."""

import re

import pytest

from support.documents import ROOT, pages_of, words

DOCS = ROOT / "docs"
FORM = ["Question", "Set-up", "Table", "Verdict", "Command"]
INDEXES = {"benchmark.md", "leaderboard.md", "experiments/index.md"}
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


PAGES = sorted(set(pages_of("Laboratory")) - INDEXES)


def test_every_result_and_experiment_is_a_page_of_the_laboratory() -> None:
    there = {
        page.relative_to(DOCS).as_posix() for name in ("benchmark", "experiments") for page in DOCS.glob(f"{name}/*.md")
    }
    assert there <= {*PAGES, *INDEXES}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_question_set_up_table_verdict_and_command(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", _CODE.sub("", text), re.MULTILINE) == FORM
    table, verdict, command = (
        text.partition(f"\n## {name}\n")[2].partition("\n## ")[0] for name in ("Table", "Verdict", "Command")
    )
    assert "\n| --- |" in table.replace("|---|", "| --- |") or "![" in table
    assert "```console\n$ " in command
    assert 1 <= len(re.findall(r"[.?!](?=\s|$)", verdict)) <= 2, f"a verdict has one or two sentences: {verdict}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_at_most_500_words_beside_generated_tables(page: str) -> None:
    assert words(page) <= 500
