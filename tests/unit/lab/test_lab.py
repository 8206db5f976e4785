"""What the page is told, and what the server refuses."""

import base64
import gzip
import json
import shutil

import numpy as np
import pytest
from starlette.testclient import TestClient

from aaml.cli import run
from aaml.cluster.filters import feasible
from aaml.cluster.objects import PRICE_LABEL, TYPE_LABEL
from aaml.errors import UserError
from aaml.evaluation.evaluate import evaluate
from aaml.insight.replay import RESOURCES, AttemptRecord, Move, Replay
from aaml.lab.library import Library
from aaml.lab.server import create_app
from aaml.lab.tiles import FRAMES, MOST_GROUPS, group, tile
from aaml.nodes.prices import PriceList
from support import make

CPU = RESOURCES.index("cpu")
LABELS = PriceList(())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An evaluation of two policies on two seeds, 4 nodes and 30 pods."""
    path = tmp_path_factory.mktemp("runs") / "eval"
    evaluate(["kube-scheduler", "least-variance"], seeds=[1, 2], nodes=4, pods=30, progress=False).save(path)
    return path


def levels(window: dict) -> np.ndarray:
    """Return the bytes of a window, [T, G, 4]."""
    raw = np.frombuffer(base64.b64decode(window["use"]), dtype=np.uint8)
    return raw.reshape(FRAMES, len(window["rows"]), len(RESOURCES))


def replay(nodes: int, racks: int = 0) -> Replay:
    """A replay of nodes of 4 CPU; a pod of 2 CPU comes to node n1 at 10 s, and one waits from then on."""
    made = [make.node(f"n{i}", labels={"rack": f"r{i % racks}"} if racks else {}) for i in range(nodes)]
    shown = Replay(make.cluster(made), lambda: 0.0)
    shown.pods.append(make.pod("p", 2000))
    shown.moves.append(Move(10.0, 0, 1, True))
    record = AttemptRecord(10.0, 0, "assumed", 1, 0, 1, nodes, 0.0, 0.0)
    shown.attempts.append(record)
    shown.decisions.append(record)
    return shown


def test_a_window_tells_the_use_of_each_node_the_queue_and_the_spread():
    shown = replay(2)
    window = tile(shown, group(shown), 0.0, 20.0, LABELS)
    # Half of a node is 100 of 200; frame 99 is before 10 s, frame 100 after it.
    assert levels(window)[[99, 100, 199], 1, CPU].tolist() == [0, 100, 100]
    assert levels(window)[0, 0, RESOURCES.index("gpu")] == 255
    assert [window["pending"][frame] for frame in (99, 100)] == [0, 1]
    assert [window["decided"][frame] for frame in (99, 100)] == [0, 1]
    assert window["spread"][150] == 0.0625  # use of 0 and 0.5: a quarter from the mean each
    assert window["rows"] == ["n0", "n1"]


def test_thousands_of_nodes_are_shown_by_rack_or_by_block_and_one_row_can_be_opened():
    racked = replay(1000, racks=8)
    by_rack = group(racked)
    assert by_rack.names[:2] == ("r0 (125)", "r1 (125)")
    assert levels(tile(racked, by_rack, 0.0, 20.0, LABELS))[199, 1, CPU] == 0  # 2 of 500 CPU is less than 1 of 200
    assert group(racked, by_rack, 1).names[:2] == ("n1", "n9")
    plain = replay(5000)
    blocks = group(plain)
    assert len(blocks.names) == MOST_GROUPS
    assert blocks.names[0] == "n0 ... (50)"
    opened = group(plain, blocks, 0)
    assert opened.names[:3] == ("n0", "n1", "n2")
    assert levels(tile(plain, opened, 0.0, 20.0, LABELS))[199, 1, CPU] == 100


def test_the_library_plays_explains_and_compares(folder):
    library = Library([folder])
    (episode,) = library.index()
    assert (episode["nodes"], episode["seeds"], episode["policies"]) == (
        (4,),
        (1, 2),
        ("kube-scheduler", "least-variance"),
    )
    playbacks = [library.playback(0, 4, 1, policy)[1] for policy in episode["policies"]]
    for playback in playbacks:
        assert playback.ended.wait(60)
    rows = library.decisions(playbacks[0], 0)
    assert [row[0] for row in rows] == list(range(30))
    said = library.explain(playbacks[0], 20, playbacks[1])
    assert (said["own"]["pod"], said["own"]["node"]) == (rows[20][2], rows[20][3])
    (other,) = said["others"]
    assert other["in_its_run"] == library.decisions(playbacks[1], 0)[20][3]
    with pytest.raises(UserError, match="decision: 30 is not accepted; expected 0 to 29"):
        library.explain(playbacks[0], 30)
    with pytest.raises(UserError, match=r"runs: .* is not accepted"):
        Library([folder / "nothing"])


def test_the_server_answers_its_own_page_alone(folder):
    client = TestClient(create_app(Library([folder])), base_url="http://127.0.0.1:1234")
    answer = client.get("/")
    assert answer.status_code == 200
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403, "a name made to point here"
    assert "access-control-allow-origin" not in client.get("/api/curves").headers
    asked = {"episode": 0, "nodes": 4, "seed": 1, "policy": "kube-scheduler"}
    assert client.get("/api/playback", params=asked).json()["key"] == "0-4-1-kube-scheduler"
    for path, why in (
        ("playback?episode=x", "episode: 'x' is not accepted; expected a number"),
        ("playback?episode=7&nodes=4&seed=1&policy=x", "episode: 7 is not accepted"),
        ("decisions?playback=nothing&page=0", "playback: 'nothing' is not accepted"),
    ):
        answer = client.get(f"/api/{path}")
        assert answer.status_code == 422
        assert why in answer.json()["error"]


def test_a_policy_that_cannot_be_played_is_told_on_the_page(folder, tmp_path):
    copy = tmp_path / "eval"
    shutil.copytree(folder, copy)
    run_specs = json.loads((copy / "recipes.json").read_text())
    run_specs[0]["policies"]["least-variance"] = "gone.pth"
    (copy / "recipes.json").write_text(json.dumps(run_specs))
    library = Library([copy])
    _, playback = library.playback(0, 4, 1, "least-variance")
    assert playback.ended.wait(60)
    assert "gone.pth" in library.status(playback)["error"]


def test_rows_that_no_policy_plays_are_not_offered(folder):
    """What a replay of a trace adds: what was recorded, and what ran live."""
    results = folder / "results.csv"
    head, first, *rest = results.read_text().splitlines()
    places = head.split(",")
    others = []
    for name in ("recorded", "least-variance on prod"):
        row = first.split(",")
        row[places.index("policy")] = name
        others.append(",".join(row))
    copy = folder.parent / "replay"
    copy.mkdir()
    (copy / "results.csv").write_text("\n".join([head, *others, first, *rest]) + "\n")
    (episode,) = Library([copy]).index()
    assert episode["policies"] == ("kube-scheduler", "least-variance")


def test_an_exported_page_holds_what_its_script_asks_for(folder, tmp_path, capsys):
    assert run("lab", [str(folder), "--export", str(tmp_path / "page.html"), "--decisions", "10"]) == 0
    text = (tmp_path / "page.html").read_text()
    data = json.loads(text.split("window.AAML = ")[1].split(";</script>")[0])
    answers = json.loads(gzip.decompress(base64.b64decode(data["packed"])))
    assert "playback?episode=0&nodes=4&seed=1&policy=kube-scheduler" in answers
    assert "window?playback=0-4-1-kube-scheduler&level=2&at=3&row=-1" in answers
    assert "explain?playback=0-4-1-least-variance&decision=27&beside=0-4-1-kube-scheduler" in answers
    assert "connect-src 'none'" in text


def test_what_is_no_run_is_told_in_one_line(tmp_path, capsys):
    for argv, why in (
        ([], "runs: expected folders of"),
        ([str(tmp_path)], "runs: "),
        ([str(tmp_path), "--kubeconfig", "x"], "runs: expected folders of"),
        ([str(tmp_path), "--instance-types", str(tmp_path / "none.json")], "instance types: "),
    ):
        assert run("lab", argv) == 2
        assert why in capsys.readouterr().err


def test_nodes_come_and_go_with_their_dollars():
    """Seconds 0 to 10: a is there throughout at half a dollar, b from 4 to 8 at a dollar and a half."""
    now = [0.0]
    bought = [
        make.node(name, labels={TYPE_LABEL: "x", PRICE_LABEL: price}) for name, price in (("a", "0.5"), ("b", "1.5"))
    ]
    state = make.cluster(bought[:1])
    replay = Replay(state, lambda: now[0], "p")

    def at(time_s, pod, node):
        now[0] = time_s
        state.assume(make.pod(pod), node)

    at(1.0, "p1", "a")
    state.upsert_node(bought[1])
    at(4.0, "p2", "b")
    state.remove_pod("default/p2")
    state.remove_node("b")
    at(8.0, "p3", "a")
    at(10.0, "p4", "a")
    drawn = tile(replay, group(replay), 0.0, 10.0, LABELS)
    at_2, at_6, at_9 = (round(second * 199 / 10) for second in (2, 6, 9))
    assert [drawn["there"][frame] for frame in (at_2, at_6, at_9)] == [1, 2, 1]
    assert [drawn["dollars"][frame] for frame in (at_2, at_6, at_9)] == [0.5, 2.0, 0.5]
    levels = np.frombuffer(base64.b64decode(drawn["use"]), dtype=np.uint8).reshape(200, 2, 4)
    assert levels[at_2, 1, 0] == 255 == levels[at_9, 1, 0], "b is not there"
    assert levels[at_6, 1, 0] < 255
    later = replay.later(6.0)
    assert later.there(np.array([6.0, 7.0, 9.0])).sum(axis=1).tolist() == [2, 2, 1]
    for second, feasible_nodes in ((2.0, 1), (6.0, 2), (9.0, 1)):
        record = AttemptRecord(second, 0, "assumed", 0, 0, 0, 0, 0.0, 0.0)
        assert feasible(replay.state_before(record), make.pod("q")).mask.sum() == feasible_nodes
    bare = Replay(make.cluster(make.nodes(1)), lambda: 0.0)
    assert tile(bare, group(bare), 0.0, 1.0, LABELS)["dollars"] is None
