"""ktop under a real terminal's keys: what a person observation_spec, at ten nodes and at five thousand."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from aaml.telemetry.ktop import Ktop, NodeLines
from aaml.telemetry.run_tail import DecisionLine, RunTail, newest_log, sparkline
from aaml.telemetry.snapshot import Snapshot
from aaml.telemetry.top import TopModel
from aaml.telemetry.writers import JsonLinesWriter
from support import make
from support.make import GIB


def snapshot(count: int, **fields) -> Snapshot:
    """Nodes n0, n1 ... of 4 CPU and 8 GiB, of which n1 is half full by CPU and n2 by memory."""
    state = make.cluster(make.nodes(count))
    state.assume(make.pod("web", 2000, GIB), "n1")
    state.assume(make.pod("cache", 500, 4 * GIB), "n2")
    taken = Snapshot.take(TopModel("kwok", pending=3), state, node=fields.pop("node", ""))
    return taken.__class__(**{**vars(taken), **fields})


def at_terminal(shown: Snapshot, use: Callable[..., Awaitable[None]], size: tuple[int, int] = (120, 40)) -> None:
    """Run the table in a terminal of this size, with a hand on its keys."""

    async def run() -> None:
        app = Ktop()
        async with app.run_test(size=size) as pilot:
            app.show(shown)
            await pilot.pause()
            await use(app, pilot)

    asyncio.run(run())


def names(app: Ktop) -> list[str]:
    return [line.name for line in app.query_one(NodeLines).lines]


def text(app: Ktop, part: str) -> str:
    return str(app.query_one(part).render())


def test_bars_say_how_full_a_node_is_and_the_head_sums_up():
    async def use(app, pilot):
        drawn = app.query_one(NodeLines).render_line(1).text
        assert drawn.startswith("n1 ")
        assert "2.0/4 50%" in drawn
        assert "1/110" in drawn
        bar = drawn[27:].split(" ")[0]
        assert abs(bar.count("█") - bar.count("░")) <= 1, "half of it"
        assert "3 pending" in text(app, "#head")
        assert "2.5 of" not in text(app, "#head")
        assert "20.8% of 12 cores" in text(app, "#head")  # 2.5 of 3 nodes' 12

    at_terminal(snapshot(3), use)


def test_dollars_are_shown_and_sorted_by_where_prices_are_known():
    state = make.cluster(make.nodes(3))
    state.assume(make.pod("web", 2000, GIB), "n1")
    model = TopModel("kwok", lambda node: {"n0": 0.5, "n2": 0.75}.get(node.name))

    async def use(app, pilot):
        assert "$1.25 an hour" in text(app, "#head")
        assert "$ AN HOUR" in text(app, "#titles")
        assert "0.500" in app.query_one(NodeLines).render_line(0).text
        await pilot.press("d")
        assert names(app) == ["n2", "n0", "n1"]

    at_terminal(Snapshot.take(model, state), use)


def test_keys_sort_filter_and_open_a_node():
    async def use(app, pilot):
        await pilot.press("c")
        assert names(app)[:2] == ["n1", "n2"]
        await pilot.press("m")
        assert names(app)[0] == "n2"
        await pilot.press("m")
        assert names(app)[-1] == "n2", "pressed again it is the other way round"
        await pilot.press("n")
        assert names(app)[:3] == ["n0", "n1", "n2"]
        await pilot.press("slash", "n", "1", "enter")
        assert names(app) == ["n1", "n10", "n11"]
        assert "3 of 12 nodes" in text(app, "#head")
        await pilot.press("enter")
        assert app.node in {"n0", "n1", "n10"}
        app.node = "n1"
        app.show(snapshot(12, node="n1"))
        await pilot.pause()
        assert "default/web" in text(app, "#pods")
        app.show(replace(snapshot(12, node="n1"), pods=()))
        await pilot.pause()
        assert text(app, "#pods") == "n1 has no pods"
        await pilot.press("escape")
        assert len(names(app)) == 12, "first the filter goes, then the pods"
        await pilot.press("escape")
        assert app.node == ""

    at_terminal(snapshot(12), use)


def test_the_cursor_stays_on_its_node_as_the_order_changes():
    async def use(app, pilot):
        await pilot.press("down", "down")
        nodes = app.query_one(NodeLines)
        assert nodes.lines[nodes.cursor].name == "n2"
        await pilot.press("m")
        assert (nodes.lines[nodes.cursor].name, nodes.cursor) == ("n2", 0)

    at_terminal(snapshot(12), use)


@pytest.mark.parametrize("size", [(60, 15), (120, 40), (250, 70)])
def test_five_thousand_nodes_are_walked_through_at_any_size(size):
    async def use(app, pilot):
        nodes = app.query_one(NodeLines)
        await pilot.press("end")
        assert nodes.cursor == 4999
        assert nodes.scroll_offset.y + nodes.size.height >= 5000, "the last one is in sight"
        await pilot.press("home")
        assert nodes.scroll_offset.y == 0
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert len(nodes.render_line(0).text) == nodes.size.width
        await pilot.press("q")
        assert app.return_code == 0

    at_terminal(snapshot(5000), use, size)


def test_a_low_terminal_shows_nodes_alone_until_it_grows_again():
    async def use(app, pilot):
        seen = []
        for size in ((80, 20), (120, 40), (100, 18)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            seen.append(app.query_one("#below").display)
        assert seen == [False, True, False]

    at_terminal(snapshot(12), use, (120, 40))


def test_decisions_come_with_their_scores_and_curves_as_sparklines():
    async def use(app, pilot):
        assert "p -> n1 score 0.75 reward 0.1 3 feasible" in " ".join(text(app, "#decisions").split())
        assert "cumulative reward    ▁▅█" in text(app, "#curves")

    line = DecisionLine("default/p", "n1", 0.75, 0.1, 3)
    at_terminal(snapshot(3, decisions=(line,), curves={"1. CSR": [0.0, 2.0, 4.0]}), use)


def test_a_log_is_followed_as_it_grows(tmp_path):
    path = tmp_path / "run.jsonl"
    writer = JsonLinesWriter(path)
    writer.event("cluster", {"where": "https://one:6443"})
    writer.event("decision", {"pod": "default/a", "node": "n1", "outcome": "assumed", "reward": 0.5, "feasible": 3})
    writer.scalar("1. CSR", 0.5, 1)
    writer.flush()
    run = RunTail(path)
    run.read()
    assert [(each.pod, each.score) for each in run.decisions] == [("default/a", None)]
    writer.event(
        "decision", {"pod": "default/b", "node": "", "outcome": "declined", "reward": 0, "feasible": 3, "value": 2.5}
    )
    writer.scalar("1. CSR", 1.5, 2)
    writer.close()
    with path.open("a") as file:
        file.write('{"kind": "decision", "pod": "default/half')
    run.read()
    assert [(each.pod, each.node, each.score) for each in run.decisions][1:] == [("default/b", "declined", 2.5)]
    assert list(run.curves["1. CSR"]) == [0.5, 1.5]
    written_s = path.stat().st_mtime
    assert newest_log(tmp_path, "https://one:6443", now_s=written_s + 10) == path
    assert newest_log(tmp_path, "https://one:6443", now_s=written_s + 7200) is None
    assert newest_log(tmp_path, "https://another:6443", now_s=written_s + 10) is None, "of another cluster"


def test_a_snapshot_is_json_and_a_flat_curve_a_flat_line():
    content = json.loads(json.dumps(snapshot(3).to_dict()))
    assert content["nodes"][1]["cpu"] == 2.0
    assert (content["pending"], content["title"]) == (3, "kwok")
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize("width", [45, 60, 75, 100])
def test_at_a_narrow_terminal_columns_are_left_out_whole(width):
    async def use(app, pilot):
        line, titles = app.query_one(NodeLines).render_line(1).text.rstrip(), text(app, "#titles")
        for title, amount in (("CPU", "2.0/4 50%"), ("MEMORY (GiB)", "1.0/8 12%"), ("PODS", "1/110")):
            assert (title in titles) == (amount in line)
        assert line.split()[-1] in {"50%", "12%", "1/110"}
        assert len(line) <= width

    at_terminal(snapshot(3), use, (width, 30))
