"""What is drawn from the leaderboard's files: a ranking over tasks, and a page for each model that ships."""

import json
import statistics
from pathlib import Path

import pytest

from aaml.errors import UserError
from aaml.evaluation.zoo import zoo
from leaders import best_of_tasks, missing_pages, model_card, model_index

ROOT = Path(__file__).parents[3]
BOARD = ROOT / "docs/results/leaderboard"


def means(piece: str, metric: str) -> dict[str, float]:
    """Return every policy's mean, read from the files themselves."""
    found = {path.parent.name: json.loads(path.read_text()) for path in BOARD.glob(f"*/{piece}.json")}
    return {name: statistics.mean(entry["scores"][metric]) for name, entry in found.items()}


def cells(table: str) -> list[str]:
    """Return the cells of a table's only row."""
    return [cell.strip() for cell in table.splitlines()[-1].strip("|").split(" | ")]


def test_the_ranking_has_the_best_that_do_not_know_lifetimes_with_what_they_gain_in_percent() -> None:
    label, size, *places, rule = cells(best_of_tasks((BOARD,), (("waits", "waiting"),)))
    assert (label, size) == ("waits", "20 (20)")
    mean = {name: value for name, value in means("waiting-20", "waiting_mean_s").items() if "clairvoyant" not in name}
    base = mean["kube-scheduler"]
    best = sorted(mean, key=lambda name: mean[name])[:3]
    assert [place.partition(" [")[0] for place in places] == [
        f"{name}: {100 * (mean[name] / base - 1):+.0f}%" for name in best
    ]
    assert rule.startswith(f"least-work-first: {100 * (mean['least-work-first'] / base - 1):+.0f}% [")


def test_a_share_that_is_to_be_high_is_told_in_points() -> None:
    first = cells(best_of_tasks((BOARD,), (("", "compress"),)))[2]
    mean = means("compress-100", "mean_empty_fraction")
    gained = 100 * (mean["compress-acgnn"] - mean["kube-scheduler"])
    assert first.startswith(f"compress-acgnn: {gained:+.1f} points [")


def test_a_card_has_the_command_that_made_a_model_and_its_rows_of_the_leaderboard() -> None:
    card = model_card("services-and-jobs-formula", (BOARD,))
    assert f"$ {zoo()['services-and-jobs-formula'].command}" in card
    assert card.count("| services-and-jobs@0.5 | ") == 2  # at 10 and at 40 nodes
    assert model_card("openb-linear", (BOARD,)).endswith("*Not on the leaderboard.*")
    with pytest.raises(UserError, match="name: 'nothing' is not accepted; expected one of varied-acdqn, "):
        model_card("nothing", (BOARD,))


def test_each_model_that_ships_has_a_page_and_a_line_of_the_index() -> None:
    assert missing_pages(ROOT) == {}
    assert {page.stem for page in (ROOT / "docs/models").glob("*.md")} == set(zoo())
    assert all(f"[{name}](models/{name}.md)" in model_index() for name in zoo())


def test_a_model_without_a_page_gets_one(tmp_path: Path) -> None:
    missing = missing_pages(tmp_path)
    assert len(missing) == len(zoo())
    text = missing[tmp_path / "docs/models/varied-acdqn.md"]
    assert text.startswith("# varied-acdqn\n\n<!-- aaml: model-card name=varied-acdqn results=")
