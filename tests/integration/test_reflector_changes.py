"""A reflector's changes always lead from what it said before to what there is, whatever happens to its connection."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aaml.kube.history import History
from aaml.kube.reflector import Backoff, Changes, Reflector, Trouble
from aaml.kube.sources import NODES, PODS
from aaml.kube.transport import Transport, Watch
from support.scripted_api import CUT, HANG, ScriptedApi, bookmark, event, listing, node, pod, status

PATH = "/api/v1/pods"
WAIT_S = 10.0


class CountingBackoff(Backoff):
    """Waits a moment, and counts how often."""

    def __init__(self) -> None:
        super().__init__(0.01, 0.05)
        self.waits = 0

    def next_s(self) -> float:
        self.waits += 1
        return super().next_s()


class Mirror:
    """Runs a reflector and keeps what its changes add up to: pod name -> resource version."""

    def __init__(self, api: ScriptedApi, silence_s: float = 5.0) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.backoff = CountingBackoff()
        self.reflector = Reflector(
            Transport(server=api.server), PODS, self.inbox.put, silence_s=silence_s, backoff=self.backoff
        )
        self.pods: dict[str, str] = {}
        self.log: list[str] = []
        self.troubles: list[Trouble] = []
        self.reflector.start()

    def take(self) -> None:
        item = self.inbox.get(timeout=WAIT_S)
        if isinstance(item, Trouble):
            self.troubles.append(item)
            return
        assert isinstance(item, Changes)
        for delta in item.deltas:
            name = delta.obj.pod.name
            self.log.append(f"{delta.kind} {name}")
            if delta.kind == "deleted":
                del self.pods[name]
                continue
            assert (name in self.pods) == (delta.kind == "modified")
            assert (delta.before is not None) == (delta.kind == "modified")
            self.pods[name] = delta.obj.pod.resource_version

    def until(self, **pods: int) -> None:
        """Take changes until they add up to this (fails after ten silent seconds)."""
        while self.pods != {name: str(version) for name, version in pods.items()}:
            self.take()

    def close(self) -> None:
        self.reflector.stop()
        self.reflector.join(WAIT_S)
        assert not self.reflector._thread.is_alive()


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with ScriptedApi() as server:
        yield server


@pytest.fixture
def mirror(api: ScriptedApi) -> Iterator[Any]:
    made: list[Mirror] = []

    def make(silence_s: float = 5.0) -> Mirror:
        made.append(Mirror(api, silence_s))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_changes_follow_the_list_and_the_next_watch_resumes_at_the_bookmark(api, mirror):
    api.on_list(PATH, listing(pod("a", 1), version=5))
    first = [
        event("ADDED", pod("b", 6)),
        event("MODIFIED", pod("a", 7)),
        event("DELETED", pod("b", 8)),
        bookmark(20),
    ]
    api.on_watch(PATH, first, [event("ADDED", pod("c", 21)), HANG])
    seen = mirror()
    seen.until(a=7, c=21)
    assert seen.log == ["added a", "added b", "modified a", "deleted b", "added c"]
    assert [query["resourceVersion"] for query in api.asked("GET", PATH, watch=True)] == ["5", "20"]
    assert all(query["allowWatchBookmarks"] == "true" for query in api.asked("GET", PATH, watch=True))
    assert len(api.asked("GET", PATH, watch=False)) == 1


@pytest.mark.parametrize("how", ["http", "event"])
def test_410_lists_again_and_reports_what_was_missed(api, mirror, how):
    gone = status(410, "Expired", "too old resource version")
    expired: Any = (410, gone) if how == "http" else [event("ADDED", pod("b", 6)), event("ERROR", gone)]
    api.on_list(PATH, listing(pod("a", 1), pod("x", 1), version=5), listing(pod("a", 9), pod("c", 10), version=11))
    api.on_watch(PATH, expired, [event("ADDED", pod("d", 12)), HANG])
    seen = mirror()
    seen.until(a=9, c=10, d=12)
    assert "deleted x" in seen.log
    assert ("deleted b" in seen.log) == (how == "event")
    assert api.asked("GET", PATH, watch=True)[-1]["resourceVersion"] == "11"


def test_a_silent_watch_is_replaced_and_resumed(api, mirror):
    api.on_list(PATH, listing(version=5))
    api.on_watch(PATH, [event("ADDED", pod("a", 6)), HANG], [event("ADDED", pod("b", 7)), HANG])
    seen = mirror(silence_s=0.3)
    seen.until(a=6, b=7)
    assert api.asked("GET", PATH, watch=True)[1]["resourceVersion"] == "6"
    assert len(api.asked("GET", PATH, watch=False)) == 1
    assert seen.troubles == []


def test_a_watch_that_is_silent_in_the_middle_of_an_event_is_trouble(api, mirror):
    api.on_list(PATH, listing(version=5))
    api.on_watch(PATH, [b'{"type": "ADDED", "object": {"metada', HANG], [event("ADDED", pod("b", 7)), HANG])
    seen = mirror(silence_s=0.3)
    seen.until(b=7)
    assert len(seen.troubles) == 1


@pytest.mark.parametrize("how", [[CUT], []], ids=["connection closed", "stream ended"])
def test_a_watch_cut_in_the_middle_of_an_event_loses_nothing(api, mirror, how):
    api.on_list(PATH, listing(version=5))
    half = b'{"type": "ADDED", "object": {"metadata": {"name": "b", "uid": "u-b", "resourceV'
    api.on_watch(PATH, [event("ADDED", pod("a", 6)), half, *how], [event("ADDED", pod("b", 7)), HANG])
    seen = mirror()
    seen.until(a=6, b=7)
    assert api.asked("GET", PATH, watch=True)[1]["resourceVersion"] == "6"
    assert len(seen.troubles) == 1


class CutTls:
    """The answer to a watch whose TLS socket is shut down: Python then hands on what arrives as it is encrypted."""

    def __init__(self):
        self.open = True

    def shutdown(self):
        self.open = False

    def stream(self, *_size, **_options):
        yield b'{"type": "ADDED"}\n{"type": "ADD'
        yield b'ED"}\n' if self.open else b"\x17\x03\x03\n\n"


def test_what_arrives_after_a_watch_was_cut_is_not_read():
    watch = Watch(CutTls())
    lines = watch.lines()
    assert next(lines) == [b'{"type": "ADDED"}']
    watch.cut()
    assert list(lines) == []


@pytest.mark.parametrize("line", [b"<html>busy</html>\n", b'{"type": "ADDED", "object": {"metadata": 7}}\n', b"{}\n"])
def test_garbage_in_a_watch_lists_again(api, mirror, line):
    api.on_list(PATH, listing(version=5), listing(pod("a", 6), version=6))
    api.on_watch(PATH, [line, HANG], [event("ADDED", pod("b", 7)), HANG])
    seen = mirror()
    seen.until(a=6, b=7)
    assert seen.log == ["added a", "added b"]


def test_what_cannot_be_read_any_more_is_left_out_until_it_can_be_and_its_end_is_heard(api):
    """Of nodes whose CPU is no quantity any more nothing stays as it was before."""
    odd = node("n", 6, cpu="1e400")
    api.on_list("/api/v1/nodes", listing(node("n", 5), node("m", 5), version=5))
    api.on_watch(
        "/api/v1/nodes",
        [event("MODIFIED", odd), event("MODIFIED", node("n", 7)), event("MODIFIED", odd), event("DELETED", odd),
         event("MODIFIED", node("m", 8, cpu="1e400")), event("DELETED", node("m", 9, cpu="1e400")),
         event("ADDED", node("end", 10)), HANG],
    )  # fmt: skip
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    reflector = Reflector(Transport(server=api.server), NODES, inbox.put)
    reflector.start()
    log: list[str] = []
    while "added end" not in log:
        log += [f"{delta.kind} {delta.obj.name}" for delta in inbox.get(timeout=WAIT_S).deltas]
    reflector.stop()
    assert log == ["added n", "added m", "deleted n", "added n", "deleted n", "deleted m", "added end"]


def test_garbage_instead_of_a_list_is_asked_for_again(api, mirror):
    api.on_list(PATH, {"items": "none"}, listing(pod("a", 1)))
    api.on_watch(PATH, [HANG])
    mirror().until(a=1)


def test_a_server_that_goes_away_and_returns(api, mirror):
    api.on_list(PATH, listing(pod("a", 1), version=5))
    api.on_watch(PATH, [HANG], [event("ADDED", pod("b", 7)), HANG])
    seen = mirror()
    seen.until(a=1)
    api.down()
    while len(seen.troubles) < 3:  # cut off once, then refused
        seen.take()
    api.up()
    seen.until(a=1, b=7)
    assert len(api.asked("GET", PATH, watch=False)) == 1  # the watch is resumed, nothing is listed twice
    assert seen.backoff.waits >= 3


def test_pages_of_a_list_are_one_list(api, mirror):
    api.on_list(PATH, listing(pod("a", 1), version=5, more="t1"), listing(pod("b", 2), version=5, more="t2"),
                listing(pod("c", 3), version=5))  # fmt: skip
    api.on_watch(PATH, [HANG])
    seen = mirror()
    seen.until(a=1, b=2, c=3)
    assert [query.get("continue") for query in api.asked("GET", PATH, watch=False)] == [None, "t1", "t2"]


def test_a_page_that_expires_starts_the_list_anew(api, mirror):
    api.on_list(PATH, listing(pod("a", 1), version=5, more="t1"), (410, status(410, "Expired")),
                listing(pod("b", 8), version=9))  # fmt: skip
    api.on_watch(PATH, [event("ADDED", pod("c", 10)), HANG])
    seen = mirror()
    seen.until(b=8, c=10)
    assert seen.log == ["added b", "added c"]
    assert api.asked("GET", PATH, watch=True)[0]["resourceVersion"] == "9"


def test_an_object_that_makes_no_sense_is_left_out_and_named(api, mirror, caplog):
    broken = pod("broken", 6, containers=[{"name": "c", "resources": {"requests": {"cpu": "much"}}}])
    api.on_list(PATH, listing(version=5))
    api.on_watch(PATH, [event("ADDED", broken), event("ADDED", pod("b", 7)), HANG])
    mirror().until(b=7)
    assert "pods broken: cpu: 'much'" in caplog.text


def test_a_watch_that_is_refused_again_and_again_ends_in_a_list(api, mirror):
    refused = (500, status(500, "InternalError", "etcd has no leader"))
    api.on_list(PATH, listing(version=5), listing(pod("a", 6), version=6))
    api.on_watch(PATH, refused, refused, refused, [HANG])
    seen = mirror()
    seen.until(a=6)
    assert [trouble.error.status for trouble in seen.troubles] == [500, 500, 500]


def test_a_server_that_ends_watches_at_once_is_not_hammered(api, mirror):
    api.on_list(PATH, listing(version=5))
    api.on_watch(PATH, [], [], [], [], [event("ADDED", pod("a", 6)), HANG])
    seen = mirror()
    seen.until(a=6)
    assert seen.backoff.waits == 4


def test_an_event_seen_twice_is_reported_once(api, mirror):
    api.on_list(PATH, listing(pod("a", 5), version=5))
    again = threading.Event()
    api.on_watch(PATH, [event("ADDED", pod("a", 5)), event("DELETED", pod("z", 6)), event("ADDED", pod("b", 7)), again])
    again.set()
    seen = mirror()
    seen.until(a=5, b=7)
    assert seen.log == ["added a", "added b"]


def test_stop_ends_a_silent_watch(api, mirror):
    api.on_list(PATH, listing(pod("a", 1), version=5))
    api.on_watch(PATH, [HANG])
    seen = mirror(silence_s=3600.0)
    seen.until(a=1)
    seen.close()  # asserts that the thread has ended


NAMESPACES = "/api/v1/namespaces"


def cluster(uid: str, version: int) -> dict[str, Any]:
    """The list that tells clusters apart: the namespace kube-system, and how far the cluster has come."""
    return listing({"metadata": {"name": "kube-system", "uid": uid}}, version=version)


def test_another_cluster_behind_the_address_is_noticed_and_nothing_of_the_old_one_stays(api, mirror, caplog):
    """The pod "a" of the new cluster has the old one's uid and version by chance: it is another all the same."""
    api.on_list(NAMESPACES, cluster("old", 5), cluster("old", 5), cluster("new", 40))
    api.on_list(PATH, listing(pod("a", 1), pod("x", 2), version=5), listing(pod("a", 1), version=40))
    api.on_watch(PATH, [event("ADDED", pod("b", 7))], [event("ADDED", pod("z", 8)), HANG], [HANG])
    seen = mirror()
    while len(seen.log) < 7:
        seen.take()
    assert seen.log == ["added a", "added x", "added b", "deleted a", "deleted x", "deleted b", "added a"]
    assert caplog.text.count("another cluster answers there now") == 1
    assert [query["resourceVersion"] for query in api.asked("GET", PATH, watch=True)][:2] == ["5", "7"]


def test_an_older_backup_is_noticed_by_versions_that_run_backwards(api, mirror, caplog):
    api.on_list(NAMESPACES, cluster("same", 5), cluster("same", 5), cluster("same", 6))
    api.on_list(PATH, listing(pod("a", 5), version=5), listing(pod("a", 3), version=6))
    api.on_watch(PATH, [event("MODIFIED", pod("a", 9))], [HANG])
    seen = mirror()
    while len(seen.log) < 4:
        seen.take()
    assert seen.log == ["added a", "modified a", "deleted a", "added a"]
    assert seen.pods == {"a": "3"}
    assert "its history goes back from version 9 to 6, as after a restore" in caplog.text


def test_who_may_not_look_at_kube_system_is_served_all_the_same(api, mirror):
    api.on_list(NAMESPACES, (403, status(403, "Forbidden", "cannot list namespaces")))
    api.on_list(PATH, listing(pod("a", 1), version=5))
    api.on_watch(PATH, [event("ADDED", pod("b", 7))], [event("ADDED", pod("c", 8)), HANG])
    mirror().until(a=1, b=7, c=8)
    assert len(api.asked("GET", PATH, watch=False)) == 1


def test_reflectors_of_one_cluster_tell_of_a_new_history_once_and_each_of_them_begins_it(api, caplog):
    history = History(Transport(server=api.server))
    api.on_list(NAMESPACES, cluster("old", 10), cluster("new", 3))
    assert [history.current(0, ""), history.current(0, "10")] == [0, 1]
    assert history.current(0, "10") == 1, "what another reflector reached in the old history is no step back in the new"
    assert history.current(1, "3") == 1
    assert caplog.text.count("everything is forgotten") == 1
