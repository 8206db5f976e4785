"""`make demo`, made small: four trained agents, judged, a report that says so, and their curves in TensorBoard."""

import contextlib
import io
from pathlib import Path

import pytest

from aaml.cli import run
from aaml.evaluation.results import Results
from aaml.lab.library import Library
from support import tensorboard
from support.browser import needs_browser, opened

AGENTS = ("acdqn", "acgnn", "dqn", "gnn")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder that the demonstration was run in, and what it printed."""
    folder, said = tmp_path_factory.mktemp("demo"), io.StringIO()
    flags = ["--steps", "16", "--teacher-steps", "64", "--episodes", "1", "--nodes", "3", "--workers", "1"]
    with contextlib.chdir(folder), contextlib.redirect_stdout(said):
        assert run("demo", [*flags, "--out", "runs/demo"]) == 0
    return folder, said.getvalue()


def test_the_demonstration_trains_four_agents_and_leaves_a_report(demo: tuple[Path, str]) -> None:
    folder, said = demo
    policies = set(Results.read(folder / "runs/demo").frame()["policy"])
    assert policies == {*AGENTS, "kube-scheduler", "least-allocated", "least-variance", "random"}
    assert len(list((folder / "models").glob("*_demo.pth"))) == 6  # an actor-critic has two files
    assert "report.html" in said
    page = (folder / "runs/demo/report.html").read_text(encoding="utf-8")
    assert all(name in page for name in policies)
    assert page.count("sha256") >= 5  # the models and the results
    assert "mean_variance, lower is better" in page  # the axis of the curves
    for told in (said, page):
        assert "least-variance is the rule of one line that the agents imitate first" in told
        assert f"aaml lab {Path('runs/demo')}" in told
        assert "scripts/" not in told.partition("Next")[2].partition("Configuration")[0]


@needs_browser
def test_the_report_fits_a_phone_without_empty_screens(demo: tuple[Path, str], tmp_path: Path) -> None:
    with opened(tmp_path / "profile") as (page, errors):
        page.set_viewport_size({"width": 420, "height": 900})
        page.goto((demo[0] / "runs/demo/report.html").as_uri())
        page.locator("figure canvas").first.wait_for()
        wide, tall, rows = page.evaluate("""() => [
          document.documentElement.scrollWidth, document.documentElement.scrollHeight,
          Math.max(...[...document.querySelectorAll("tr")].map((row) => row.getBoundingClientRect().height))]""")
        charts = page.locator("figure").first.locator("canvas")
        means, differences = charts.first.bounding_box() or {}, charts.last.bounding_box() or {}
    assert wide <= 420
    assert tall < 6_000
    assert rows < 200
    assert differences["y"] >= means["y"] + means["height"] - 1  # below each other
    assert errors == []


@needs_browser
def test_the_lab_plays_the_agents_beside_kube_scheduler_and_shows_their_curves(demo: tuple[Path, str]) -> None:
    library = Library([demo[0] / "runs/demo"])
    (episode,) = library.episodes
    assert episode.policies[:2] == ("gnn", "kube-scheduler")
    assert set(AGENTS) < set(episode.policies)
    assert {path.name for path in library.trainings} == set(AGENTS)


@needs_browser
def test_tensorboard_shows_the_curves_of_all_four_agents_by_name(demo: tuple[Path, str], tmp_path: Path) -> None:
    runs = [f"demo_{agent}" for agent in AGENTS]
    with tensorboard.served(demo[0] / "tlogs") as address, opened(tmp_path / "profile") as (page, errors):
        page.goto(f"{address}#timeseries")
        page.locator("input[placeholder*='Filter tags']:visible").fill("Validation/Score")
        card = page.locator("scalar-card").filter(has_text="Score").first
        for name in runs:
            page.locator("runs-data-table").get_by_text(name, exact=True).wait_for()
            card.locator("scalar-card-data-table").get_by_text(name, exact=True).wait_for(state="attached")
        assert card.locator("line-chart canvas, line-chart svg").first.is_visible()
        assert errors == []
