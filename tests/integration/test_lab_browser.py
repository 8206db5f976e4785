"""The page in a real browser: served, exported without a network, and at thousands of nodes."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import uvicorn

from aaml.evaluation.evaluate import evaluate
from aaml.insight.replay import AttemptRecord, Move, Replay
from aaml.lab.library import Library, Playback
from aaml.lab.page import export
from aaml.lab.server import create_app
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.settings import plain
from aaml.sim.cluster import SimCluster
from aaml.telemetry.writers import JsonLinesWriter
from aaml.training.settings import TrainConfig
from support import make
from support.browser import needs_browser, opened
from support.kwok import until

pytestmark = needs_browser
READY = "body[data-ready=yes]"
MODEL = "(name) => Bokeh.documents.flatMap((d) => [...d._all_models.values()]).find((m) => m.name === name)"


@contextlib.contextmanager
def served(library: Library) -> Iterator[str]:
    """Serve a library in this process; yields its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(library), log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """An evaluation, and a training that has written two points of a curve."""
    folder = tmp_path_factory.mktemp("runs")
    evaluate(["kube-scheduler", "least-variance"], seeds=[1, 2], nodes=4, pods=40, progress=False).save(folder / "eval")
    (folder / "gnn").mkdir()
    config = {"stem": "gnn", "training": plain(TrainConfig(nodes=(4,)))}
    (folder / "gnn" / "config.json").write_text(json.dumps(config))
    lines = JsonLinesWriter(folder / "gnn" / "metrics.jsonl")
    lines.scalar("Validation/Score", 1.5, 0)
    lines.scalar("Validation/Score", 0.9, 100)
    lines.close()
    return folder


def test_two_policies_run_in_step_and_a_click_explains_a_decision(runs, tmp_path):
    library = Library([runs / "eval", runs / "gnn"])
    with served(library) as address, opened(tmp_path / "profile") as (page, errors):
        page.goto(address)
        page.wait_for_selector(READY)
        assert 0 < int(page.locator("#slider").input_value()) < 199  # it begins where the nodes are in use
        page.locator("#slider").fill("199")
        rows = page.locator("#lists .side-a tbody tr")
        rows.nth(11).wait_for()
        assert [page.locator(f"#lists .side-{side} .policy").inner_text() for side in "ab"] == [
            "kube-scheduler", "least-variance",
        ]  # fmt: skip
        number, _, pod, node, feasible = rows.nth(11).locator("td").all_inner_texts()
        assert (number, feasible) == ("39", "4")
        rows.nth(11).click()
        page.locator("#why table").wait_for()
        why = page.locator("#why").inner_text()
        assert f"{pod} (" in why
        assert f"→ {node}" in why
        assert "least-variance would take" in why
        assert page.locator("#why tr.chosen td").first.inner_text() == node
        assert "NodeResourcesFit" in page.locator("#why thead").inner_text()

        page.locator("#back").click()
        page.get_by_text("decision 38 of kube-scheduler").wait_for()
        clock = page.locator("#slider")
        before = int(clock.input_value())
        rows.nth(0).click()
        until(lambda: int(clock.input_value()) < before, "the clock at the moment of the decision", 120.0)
        page.locator("#slider").fill("10")
        until(
            lambda: page.locator("#waiting").is_hidden(), "the list of pods that wait, of which there are none", 120.0
        )
        page.locator("#play").click()
        until(lambda: int(page.locator("#slider").input_value()) > 12, "the slider moving", 120.0)
        page.locator("#play").click()
        page.locator("#in").click()
        page.get_by_text("window 1/2").wait_for()

        page.locator(".tabs [data-id=comparison]").click()
        assert "better" in page.locator("#comparison").inner_text()
        page.locator(".tabs [data-id=learning]").click()
        points = f"({MODEL})('curve_0_data').data.ys"
        until(lambda: page.evaluate(points) == [[1.5, 0.9]], "the curve", 120.0)
        more = JsonLinesWriter(runs / "gnn" / "metrics.jsonl")
        more.scalar("Validation/Score", 0.7, 200)
        more.close()
        until(lambda: page.evaluate(points) == [[1.5, 0.9, 0.7]], "the point that the training added", 120.0)
        assert errors == []


def test_pods_that_wait_are_named_on_the_page_with_their_reason(tmp_path):
    """Nodes of 4 CPU and 40 pods at once, of which not all fit."""
    pods = [make.pod(f"p{i}", 1000, at=0.0, life=50.0) for i in range(40)]
    cluster, policy = SimCluster(make.nodes(2), pods), make_policy("kube-scheduler")
    replay = Replay.of(cluster, policy)
    play(cluster, policy, observers=[replay])
    evaluate(["kube-scheduler"], seeds=[1], nodes=4, pods=10, progress=False).save(tmp_path / "eval")
    library, playback = Library([tmp_path / "eval"]), Playback(0, 4, 1, "kube-scheduler", replay)
    playback.ended.set()
    library._playbacks["0-4-1-kube-scheduler"] = playback
    with served(library) as address, opened(tmp_path / "profile") as (page, errors):
        page.goto(address)
        page.wait_for_selector(READY)
        page.locator("#slider").fill("20")
        page.get_by_text("Pods that wait, under kube-scheduler, 20 of").wait_for()
        row = page.locator("#waiting tbody tr").first.locator("td").all_inner_texts()
        assert (row[0], row[3]) == ("default/p8", "0/2 nodes are available: 2 Insufficient cpu.")
        assert errors == []


def test_an_exported_page_opens_without_a_network(runs, tmp_path):
    export(Library([runs / "eval"]), tmp_path / "page.html", decisions=40)
    with opened(tmp_path / "profile") as (page, errors):
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.context.set_offline(True)
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_selector(READY)
        page.locator("#slider").fill("150")
        page.locator("#lists .side-b tbody tr").nth(3).click()
        page.locator("#why h2", has_text="default/").wait_for()
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert errors == []


def crowded() -> Replay:
    """5,000 nodes and 100,000 decisions, of pods that stay for 40,000 seconds, a decision a second."""
    replay = Replay(make.cluster(make.nodes(5000, cpu=64_000)), lambda: 0.0)
    rng, count = np.random.default_rng(0), 100_000
    nodes = rng.integers(0, 5000, count)
    replay.pods += [make.pod(f"p{number}", 4000) for number in range(count)]
    moves = [Move(float(number), number, int(nodes[number]), True) for number in range(count)]
    moves += [Move(float(number + 40_000), number, int(nodes[number]), False) for number in range(count - 40_000)]
    replay.moves += sorted(moves)
    attempts = [
        AttemptRecord(float(number), number, "assumed", int(nodes[number]), number, 0, 5000, 0.0, 0.0)
        for number in range(count)
    ]
    replay.attempts += attempts
    replay.decisions += attempts
    return replay


def test_thousands_of_nodes_and_a_hundred_thousand_decisions_are_looked_at_by_window(runs, tmp_path):
    library, replay = Library([runs / "eval"]), crowded()
    for policy in ("kube-scheduler", "least-variance"):
        key, playback = f"0-4-1-{policy}", Playback(0, 4, 1, policy, replay)
        playback.ended.set()
        library._playbacks[key] = playback
    with served(library) as address, opened(tmp_path / "profile") as (page, errors):
        page.goto(address)
        page.wait_for_selector(READY)
        assert "100,000 decisions" in page.locator(".card.side-a small").inner_text()
        began = time.monotonic()
        page.locator("#slider").fill("100")
        page.locator("#lists .side-a tbody tr", has_text="default/p50").first.wait_for()
        page.locator("#in").click()
        page.get_by_text("window 1/2").wait_for()
        print(f"a jump and a closer window: {time.monotonic() - began:.2f} s")
        assert page.evaluate(f"({MODEL})('past_a_data').data.image[0].shape") == [100, 200], (
            "blocks of nodes by moments, however many there are"
        )
        assert errors == []
