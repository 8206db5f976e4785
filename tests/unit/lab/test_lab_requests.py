"""What a web page, a neighbour or a broken client may ask of the lab, and what comes of it."""

import json
import shutil
import socket
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from aaml.cli import run
from aaml.evaluation.evaluate import evaluate
from aaml.lab.library import Library
from aaml.lab.server import create_app
from support.asgi import CANARY, ask_all, fuzz, touched

ADDRESS = "http://127.0.0.1:1234"
ASKED = {"episode": 0, "nodes": 4, "seed": 1, "policy": "kube-scheduler"}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """An evaluation of two policies on two seeds, 4 nodes and 30 pods."""
    path = tmp_path_factory.mktemp("runs") / "eval"
    evaluate(["kube-scheduler", "least-variance"], seeds=[1, 2], nodes=4, pods=30, progress=False).save(path)
    library = Library([path])
    yield library
    library.close()


@pytest.fixture
def client(library):
    return TestClient(create_app(library), base_url=ADDRESS, raise_server_exceptions=False)


def test_a_python_file_that_a_request_names_is_not_run(client, library, tmp_path):
    mark = tmp_path / "was_here"
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass P:\n    name = 'evil'\n")
    answer = client.get("/api/playback", params={**ASKED, "policy": f"{tmp_path}/evil.py:P"})
    assert answer.status_code == 422
    assert "expected one of kube-scheduler, least-variance" in answer.json()["error"]
    for playback in library._playbacks.values():
        playback.ended.wait(30)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("nodes", 1_000_000_000, "one of 4"),
        ("seed", 3, "one of 1, 2"),
        ("policy", "random", "one of kube-scheduler, least-variance"),
        ("episode", -1, "0 to 0"),
    ],
)
def test_only_what_the_run_lists_may_be_asked_for(client, name, value, accepted):
    answer = client.get("/api/playback", params={**ASKED, name: value})
    assert answer.status_code == 422
    assert f"{name}: {value!r} is not accepted; expected {accepted}" in answer.json()["error"]


@pytest.mark.parametrize(
    "query",
    ["row=-3", "row=4", "row=-1&start=nan", "row=-1&end=inf", "row=-1&start=9&end=1"],
)
def test_a_window_that_is_none_is_refused_in_one_line(client, library, query):
    key = client.get("/api/playback", params=ASKED).json()["key"]
    assert library.known(key).ended.wait(30)
    wanted = {"playback": key, "start": "0", "end": "9"} | dict(part.split("=") for part in query.split("&"))
    answer = client.get("/api/window", params=wanted)
    assert (answer.status_code, list(answer.json())) == (422, ["error"])
    assert client.get("/api/decisions", params={"playback": key, "page": -2}).status_code == 422


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # curl
        ({"sec-fetch-site": "same-origin"}, 200),  # the page's own script
        ({"sec-fetch-site": "none"}, 200),  # typed into the address bar
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),  # another port of this machine
        ({"origin": "http://evil.example"}, 403),  # an older browser
        ({"origin": "null"}, 403),
        ({"host": "evil.example"}, 403),  # a name that its owner points to this machine
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "localhost:1234"}, 200),
        ({"host": "[::1]:1234"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 403),
    ],
)
def test_a_page_of_another_site_may_ask_for_nothing(client, headers, status):
    assert client.get("/api/curves", headers=headers).status_code == status


def test_a_link_to_the_page_may_be_followed_but_it_is_shown_in_no_frame(client):
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers={**link, "sec-fetch-dest": "document"}).status_code == 200
    assert client.get("/", headers={**link, "sec-fetch-dest": "iframe"}).status_code == 403
    assert client.get("/", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}).status_code == 403
    assert client.get("/").headers["x-frame-options"] == "DENY"


def test_there_is_nothing_to_write(client):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/api/playback", params=ASKED).status_code == 405


def test_ten_thousand_odd_requests_open_nothing_and_none_fails(library, client):
    key = client.get("/api/playback", params=ASKED).json()["key"]
    assert library.known(key).ended.wait(30)
    paths = [f"/api/{name}" for name in ("playback", "window", "decisions", "waiting", "explain", "curves")]
    names = ["episode", "nodes", "seed", "policy", "row", "start", "end", "page", "decision", "beside", "at"]
    requests = fuzz(1, 10_000, paths, [*names, f"playback={key}&x"], lambda _: b"")
    statuses = set()

    def look(request, answer):
        statuses.add(answer.status)
        assert answer.status in {200, 403, 404, 405, 422}, request
        if answer.status in {403, 422} and request.method != "HEAD":
            assert list(json.loads(answer.body)) == ["error"]

    before = set(library._playbacks)
    with touched() as opened:
        ask_all(create_app(library), requests, look)
        for playback in list(library._playbacks.values()):
            playback.ended.wait(30)
    assert opened == []
    assert statuses >= {200, 403, 404, 405, 422}
    assert set(library._playbacks) - before <= {
        f"0-4-{seed}-{policy}" for seed in (1, 2) for policy in ("kube-scheduler", "least-variance")
    }
    assert not Path(f"/tmp/{CANARY}.py").exists()


def test_files_that_a_folder_of_runs_would_run_are_named_at_the_start(library, tmp_path, capsys):
    copy = tmp_path / "eval"
    shutil.copytree(library.results[0], copy)
    run_specs = json.loads((copy / "recipes.json").read_text())
    run_specs[0]["policies"]["least-variance"] = "theirs.py:P"
    (copy / "recipes.json").write_text(json.dumps(run_specs))
    assert Library([copy]).programs == ["theirs.py:P"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run("lab", [str(copy), "--port", str(taken.getsockname()[1])]) == 2
    assert "are programs, which are run: theirs.py:P" in capsys.readouterr().err
