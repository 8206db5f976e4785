"""What a live process holds while it does nothing has a bound, and nothing that it was told is lost."""

import queue
import threading
import time

import pytest

from aaml import threads
from aaml.kube.cluster import KubeCluster, LiveOptions
from aaml.kube.inbox import Inbox
from aaml.kube.reflector import Changes, Delta
from aaml.kube.transport import Transport
from aaml.kube.watcher import ClusterWatch
from aaml.live.recorder import Recorder
from support.kwok import until
from support.scripted_api import HANG, ScriptedApi, event, listing, node, pod

BATCH = Changes("pods", (Delta("added", "a"), Delta("added", "b")))


def test_who_brings_changes_waits_for_room_and_a_result_does_not():
    inbox, brought = Inbox(most=3), []

    def bring():
        for _ in range(5):
            inbox.put_changes(BATCH)
            brought.append(1)

    bringing = threading.Thread(target=bring, daemon=True)
    bringing.start()
    until(lambda: len(brought) == 2, "two batches in it")
    inbox.put("a result")
    assert (inbox.changes, len(inbox)) == (4, 3)  # the second batch came while there was room for one change
    found = [inbox.get(1.0) for _ in range(6)]
    bringing.join(10)
    assert found.count(BATCH) == 5
    assert found.count("a result") == 1
    with pytest.raises(queue.Empty):
        inbox.get(0.0)


def test_nobody_waits_for_room_in_an_inbox_that_is_closed():
    inbox = Inbox(most=1)
    inbox.put_changes(BATCH)
    bringing = threading.Thread(target=lambda: inbox.put_changes(BATCH), daemon=True)
    bringing.start()
    inbox.close()
    bringing.join(10)
    assert not bringing.is_alive()


FLOOD = 3000


@pytest.fixture
def flooded(monkeypatch):
    """An API server of one pod that changes again and again, as fast as it is heard."""
    monkeypatch.setattr("aaml.kube.inbox.MOST", 100)
    with ScriptedApi() as api:
        api.on_list("/api/v1/nodes", listing(node("n1")))
        api.on_list("/api/v1/namespaces", listing())
        api.on_watch("/api/v1/nodes", [HANG])
        api.on_list("/api/v1/pods", listing(pod("p", 1)))
        changes = [event("MODIFIED", pod("p", version, node="n1")) for version in range(2, FLOOD)]
        api.on_watch("/api/v1/pods", [*changes, event("ADDED", pod("last", FLOOD)), HANG])
        yield api


def idle(inbox: Inbox) -> None:
    """Wait until nothing more is put in, and see that it is not much."""
    until(lambda: inbox.changes >= 100, "an inbox that is full")
    time.sleep(0.3)
    assert inbox.changes < 400  # and one chunk of a watch, some 64 KiB


def test_a_scheduler_that_is_asked_for_nothing_holds_little_and_misses_nothing(flooded):
    cluster = KubeCluster.connect("mine", server=flooded.server, options=LiveOptions(preemption=False))
    idle(cluster._inbox)
    until(lambda: (found := cluster.next_pod(0.1)) is not None and found.name == "last", "the last pod")
    assert [placement.node_name for placement in cluster.state.pods()] == ["n1"]
    cluster.close()


def test_who_only_looks_holds_little_and_misses_nothing(flooded):
    watch = ClusterWatch(Transport(server=flooded.server))
    watch.start()
    idle(watch._inbox)
    assert watch.pump_until(lambda: len(watch.pods) == 2, 30.0)
    watch.close()


def test_a_recorder_that_is_late_holds_little_and_misses_nothing(flooded):
    told = []
    recorder = Recorder(Transport(server=flooded.server), told.append)
    recorder.start()
    idle(recorder._inbox)
    until(lambda: recorder.pump(0.1) or any(getattr(each, "uid", "") == "u-p" for each in told), "the bind")
    recorder.close()


@pytest.mark.parametrize("who", ["scheduler", "watch", "recorder"])
def test_a_thread_that_watches_and_ends_is_heard_by_who_reads(flooded, monkeypatch, who):
    """An error of ours in it: without it the cluster would seem to stand still."""
    monkeypatch.setattr("aaml.kube.reflector.Reflector._follow", lambda _self: 1 / 0)
    heard = pytest.raises(threads.ThreadError, match=r"thread 'reflector-.*' ended: ZeroDivisionError")
    if who == "scheduler":
        cluster = KubeCluster(Transport(server=flooded.server), "mine", LiveOptions(preemption=False))
        with heard:
            cluster.start()
            while True:
                cluster.next_pod(1.0)
        cluster.close()
    elif who == "watch":
        watch = ClusterWatch(Transport(server=flooded.server))
        with heard:
            watch.start()
            while True:
                watch.pump(1.0)
        watch.close()
    else:
        recorder = Recorder(Transport(server=flooded.server), lambda _event: None)
        with heard:
            recorder.start()
            while True:
                recorder.pump(1.0)
        recorder.close()


def test_a_pod_that_our_reading_stumbles_over_is_left_out(flooded, monkeypatch, caplog):
    """What anybody may create must not end a scheduler."""
    from aaml.kube import sources

    read = sources.PODS.convert

    def stumbles(raw):
        if raw.metadata.name == "p":
            raise IndexError("odd")
        return read(raw)

    monkeypatch.setitem(sources.PODS.__dict__, "convert", stumbles)
    cluster = KubeCluster.connect("mine", server=flooded.server, options=LiveOptions(preemption=False))
    until(lambda: (found := cluster.next_pod(0.1)) is not None and found.name == "last", "the last pod")
    cluster.close()
    assert "pods p: an error of ours (IndexError: odd); it is left out" in caplog.text
