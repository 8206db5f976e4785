"""Who waits, since when and why, and who decided: in a run that is played, and on a live cluster."""

import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from starlette.testclient import TestClient

from aaml.insight.replay import Replay
from aaml.lab.library import Library, Playback
from aaml.lab.server import create_app
from aaml.lab.watched import CLUSTER, ClusterReplay
from aaml.live.promise import PromiseState
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.scheduling.ports import Decision
from aaml.sim.cluster import SimCluster
from support import make
from support.kwok import until
from support.scripted_api import HANG, ScriptedApi, event, listing, node, pod, write_kubeconfig


def test_pods_that_wait_in_a_run_are_named_with_their_reason():
    """One node of 4 CPU: `a` takes 3 until 10 s, `b` of 2 waits for that from 1 s on, `c` of 5 fits at no time."""
    pods = [make.pod("a", 3000, at=0.0, life=10.0), make.pod("b", 2000, at=1.0), make.pod("c", 5000, at=2.0)]
    cluster, policy = SimCluster(make.nodes(1), pods), make_policy("first-fit")
    replay = Replay.of(cluster, policy)
    play(cluster, policy, observers=[replay])
    library, playback = Library(), Playback(0, 1, 0, "first-fit", replay)
    full = "0/1 nodes are available: 1 Insufficient cpu."
    said = library.waiting(playback, 5.0)
    assert said["pending"] == 2
    assert [[row[0], row[1], *row[3:]] for row in said["pods"]] == [
        ["default/b", 1.0, "first-fit", full], ["default/c", 2.0, "first-fit", full],
    ]  # fmt: skip
    assert [row[0] for row in library.waiting(playback, 0.5)["pods"]] == []
    assert [row[0] for row in library.waiting(playback, 11.0)["pods"]] == ["default/c"], "b has its node by then"


def test_who_decided_stands_in_the_list_where_it_was_another():
    class Halting:
        name = "halting"

        def act(self, context):
            chosen = make_policy("first-fit").act(context)
            return replace(chosen, by="kube-scheduler") if context.pod.name == "b" else chosen

    cluster = SimCluster(make.nodes(1), [make.pod("a", 100, at=0.0), make.pod("b", 100, at=1.0)])
    replay = Replay.of(cluster, Halting())
    play(cluster, Halting(), observers=[replay])
    rows = Library().decisions(Playback(0, 1, 0, "halting", replay), 0)
    assert [(row[2], row[6]) for row in rows] == [("default/a", ""), ("default/b", "kube-scheduler")]
    assert isinstance(replay.decision(replay.decisions[0]), Decision)


@pytest.fixture
def api():
    with ScriptedApi() as api:
        yield api


def unplaced(name, why):
    made = pod(name, 1)
    made["spec"]["schedulerName"] = "default-scheduler"
    made["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}]
    made["status"] = {"phase": "Pending", "conditions": conditions}
    return made


def test_a_live_cluster_names_what_waits_who_decided_and_the_time_of_day(api, tmp_path):
    api.on_list("/api/v1/nodes", listing(node("n1")))
    api.on_list("/api/v1/pods", listing(unplaced("huge", "0/1 nodes are available: 1 Insufficient cpu.")))
    api.on_watch("/api/v1/nodes", [HANG])
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    api.on_list(
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/aaml-autoscale",
        {"metadata": {"annotations": {"aaml.dev/promise": PromiseState(wait_p99_s=45.0).to_json()}},
         "spec": {"holderIdentity": "someone", "renewTime": renewed}},
    )  # fmt: skip
    placed = pod("web", 2, "n1")
    ends = pod("web", 3, "n1")
    ends["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.on_watch(
        "/api/v1/pods", [event("ADDED", pod("web", 1)), event("MODIFIED", placed), event("MODIFIED", ends), HANG]
    )
    library = Library()
    with closing(library):
        library.watch(write_kubeconfig(tmp_path, api.server))
        client = TestClient(create_app(library), base_url="http://127.0.0.1:1")
        taken = {"episode": 0, "nodes": 1, "seed": 0, "policy": CLUSTER}
        until(lambda: client.get("/api/playback", params=taken).json()["status"]["decisions"], "the placement")
        answer = client.get("/api/playback", params=taken).json()
        key, status = answer["key"], answer["status"]
        assert abs(status["began_unix_s"] - time.time()) < 60.0
        waiting = client.get("/api/waiting", params={"playback": key, "at": 0}).json()
        ((name, since_s, _, by, why),) = waiting["pods"]
        assert (waiting["pending"], name, by) == (1, "default/huge", "default-scheduler")
        assert why == "0/1 nodes are available: 1 Insufficient cpu."
        assert waiting["promise"].startswith("promise: 99% wait at most 45 s")
        assert since_s + status["began_unix_s"] == pytest.approx(1767225600.0), "midnight of the first of January 2026"
        window = {"playback": key, "start": 0, "end": library.watched.now_s(), "row": -1}
        assert client.get("/api/window", params=window).json()["pending"][-1] == 1, "though nobody tried it meanwhile"
        (row,) = client.get("/api/decisions", params={"playback": key, "page": 0}).json()
        assert (row[2], row[3], row[6]) == ("default/web", "n1", "mine"), (
            "once, though the pod was told again as it ends"
        )


def test_what_is_kept_of_a_live_cluster_has_a_bound(api, tmp_path):
    """1,000 pods come and go under a limit of 100: the replay keeps the latest, numbered on, and what runs."""
    api.on_list("/api/v1/nodes", listing(node("n1")))
    api.on_list("/api/v1/pods", listing(pod("stays", 1, "n1")))
    api.on_watch("/api/v1/nodes", [HANG])
    events = []
    for number in range(1000):
        events += [
            event("ADDED", pod(f"p{number}", 2 + number, "n1")),
            event("DELETED", pod(f"p{number}", 2 + number, "n1")),
        ]
    api.on_watch("/api/v1/pods", [*events, HANG])
    watched = ClusterReplay(write_kubeconfig(tmp_path, api.server), kept=100)
    with closing(watched):
        until(lambda: watched.replay.forgotten + len(watched.replay.decisions) == 1000, "the last pod in the replay")
        until(lambda: len(watched.replay.moves) <= 100 + 2, "the bound")
        replay = watched.replay
        assert len(replay.attempts) <= 100
        assert len(replay.pods) <= 102
        assert replay.pods[replay.decisions[-1].pod].name == "p999"
        assert replay.pods[replay.moves[0].pod].name == "stays"
        library = Library()
        library.watched = watched
        playback = Playback(0, 1, 0, CLUSTER)
        (last,) = [row for row in library.decisions(playback, 19) if row[0] == 999]
        assert last[2] == "default/p999"
        assert library.decisions(playback, 0) == [], "forgotten"
        assert library.status(playback)["decisions"] == 1000
