"""Pages of the laboratory have one form, and little text beside their generated tables."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

DOCS = Path(__file__).parents[3] / "docs"
FORM = ["Question", "Set-up", "Table", "Verdict", "Command"]
INDEXES = {"benchmark.md", "leaderboard.md", "experiments/index.md"}
_BLOCK = re.compile(r"<!-- aaml: (?!end).*?<!-- aaml: end -->", re.DOTALL)
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def in_navigation(part: str) -> list[str]:
    """Return the pages of one part of the site."""

    def leaves(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [page for each in (entry.values() if isinstance(entry, dict) else entry) for page in leaves(each)]

    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    (chosen,) = (each[part] for each in nav if part in each)
    return leaves(chosen)


PAGES = sorted(set(in_navigation("Laboratory")) - INDEXES)


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
    text = _BLOCK.sub("", (DOCS / page).read_text(encoding="utf-8"))
    assert len(text.split()) <= 500
