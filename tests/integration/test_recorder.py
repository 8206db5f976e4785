"""The recorder beside an API server that does what a test says: times, gaps, and what a refusal leaves behind."""

import threading
from datetime import UTC, datetime

import pytest

from aaml.cli import run as command
from aaml.cluster.objects import PodGroup
from aaml.errors import UserError
from aaml.kube.transport import Transport
from aaml.live.recorder import Recorder
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.recorded import cluster_of
from aaml.workload.trace.events import Lost, PodBound, PodEnded, PodSeen, Watched
from aaml.workload.trace.names import NameHasher
from aaml.workload.trace.store import TraceWriter
from aaml.workload.trace.trace import Trace
from aaml.workload.trace.windows import Windows, make_split
from support.scripted_api import CUT, HANG, ScriptedApi, event, listing, node, pod, status

NODES, PODS, NAMESPACES = "/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


def created(body, second):
    body["metadata"]["creationTimestamp"] = f"2026-03-01T12:00:{second:02d}Z"
    return body


@pytest.fixture
def api():
    with ScriptedApi() as server:
        server.on_list(NODES, listing(node("a")))
        server.on_watch(NODES, [HANG])
        server.on_list(NAMESPACES, listing({"metadata": {"name": "kube-system", "uid": "here"}}, version=100))
        yield server


@pytest.fixture
def recording(api):
    """Start a recorder whose clock the test sets; returns its events and a way to go on until one satisfies."""
    made = []

    def start(now):
        told = []
        recorder = Recorder(Transport(server=api.server), told.append, clock=lambda: NOON + now[0])
        made.append(recorder)
        recorder.start()

        def until(found):
            for _ in range(200):
                over = any(map(found, told))
                recorder.pump(0.05)
                if over:
                    return
            raise AssertionError(told)

        return told, until

    yield start
    for recorder in made:
        recorder.close()


def test_a_wait_is_measured_by_the_clock_that_saw_both_of_its_ends(api, recording):
    """The API server says 12:00:10 for all of that second. Seen at 10.90 and bound at 10.96, a pod waited 60 ms."""
    came, went, now = threading.Event(), threading.Event(), [5.0]
    api.on_list(PODS, listing())
    api.on_watch(PODS, [came, event("ADDED", created(pod("p", 2), 10)),
                        went, event("MODIFIED", created(pod("p", 3, node="a"), 10)), HANG])  # fmt: skip
    told, until = recording(now)
    now[0] = 10.90
    came.set()
    until(lambda each: isinstance(each, PodSeen))
    now[0] = 10.96
    went.set()
    until(lambda each: isinstance(each, PodBound))
    (life,) = Trace.of(told).lives.values()
    assert life.bound_s - life.created_s == pytest.approx(0.06)


def test_what_a_list_tells_happened_in_the_middle_of_its_second(api, recording):
    """A pod that waited when the recorder came was made some time from 12:00:03.0 to 12:00:04.0."""
    bound, now = threading.Event(), [5.0]
    api.on_list(PODS, listing(created(pod("p", 1), 3)))
    api.on_watch(PODS, [bound, event("MODIFIED", created(pod("p", 2, node="a"), 3)), HANG])
    told, until = recording(now)
    now[0] = 7.0
    bound.set()
    until(lambda each: isinstance(each, PodBound))
    (life,) = Trace.of(told).lives.values()
    assert life.bound_s - life.created_s == pytest.approx(3.5)


def test_a_pod_that_was_deleted_while_nobody_looked_ran_until_the_connection_was_lost(api, recording):
    """Bound at 10 s, connection lost at 12 s, back at 50 s: the pod is known to have run for 2 s, not for 40."""
    lost, back, now = threading.Event(), threading.Event(), [10.0]
    api.on_list(PODS, listing())
    api.on_watch(PODS, [event("ADDED", pod("p", 2)), event("MODIFIED", pod("p", 3, node="a")), lost, CUT],
                 [back, event("DELETED", pod("p", 4, node="a")), HANG])  # fmt: skip
    told, until = recording(now)
    until(lambda each: isinstance(each, PodBound))
    now[0] = 12.0
    lost.set()
    until(lambda _: len(api.asked("GET", PODS)) == 3)  # a list, a watch, and the next one once the loss was told
    now[0] = 50.0
    back.set()
    until(lambda each: isinstance(each, PodEnded))
    assert [each.at - each.since for each in told if isinstance(each, Lost)] == [38.0]
    (life,) = Trace.of(told).lives.values()
    assert life.ended_s - life.bound_s == pytest.approx(2.0)


def test_a_pod_with_an_annotation_that_cannot_be_read_is_recorded_to_its_end(api, recording):
    odd = pod("p", 3, node="a")
    odd["metadata"]["annotations"] = {"alibabacloud.com/gpu-milli": "some"}
    api.on_list(PODS, listing(pod("p", 2, node="a")))
    api.on_watch(PODS, [event("MODIFIED", odd), event("DELETED", odd), HANG])
    told, until = recording([5.0])
    until(lambda each: isinstance(each, PodEnded))
    (life,) = Trace.of(told).lives.values()
    assert life.ended_s is not None


GROUPS = "/apis/scheduling.k8s.io/v1beta1/podgroups"


def group(least, version=1):
    metadata = {"name": "g", "namespace": "default", "uid": "u-g", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"schedulingPolicy": {"gang": {"minCount": least}},
                                           "schedulingConstraints": {"topology": [{"key": "rack"}]}}}  # fmt: skip


def member(name, version, node=""):
    return pod(name, version, node, schedulingGroup={"podGroupName": "g"})


@pytest.mark.parametrize("there", [True, False], ids=["before the recorder", "after it"])
def test_a_pod_is_recorded_with_its_group_and_again_where_that_changes(api, recording, there):
    changed, came = threading.Event(), threading.Event()
    api.on_list(PODS, listing(*([member("p", 1)] if there else [])))
    api.on_watch(PODS, [came, *([] if there else [event("ADDED", member("p", 2))]), HANG])
    api.on_list(GROUPS, listing(group(3)))
    api.on_watch(GROUPS, [changed, event("MODIFIED", group(2, 2)), event("DELETED", group(2, 3)), HANG])
    told, until = recording([5.0])
    came.set()
    until(lambda each: isinstance(each, PodSeen) and each.pod.group == PodGroup("g", 3, "rack"))
    if there:
        assert len([each for each in told if isinstance(each, PodSeen)]) == 1, "it is told once, with its group"
    changed.set()
    until(lambda each: isinstance(each, PodSeen) and each.pod.group == PodGroup("g", 2, "rack"))
    (life,) = Trace.of(told).lives.values()
    assert life.pod.group == PodGroup("g", 2, "rack")


def test_where_groups_cannot_be_read_pods_are_recorded_without_one_and_it_is_said(api, recording, caplog):
    api.on_list(PODS, listing(member("p", 1)))
    api.on_watch(PODS, [HANG])
    api.on_list(GROUPS, (404, status(404, "NotFound", "the server could not find the requested resource")))
    told, until = recording([5.0])
    until(lambda each: isinstance(each, PodSeen))
    assert [each.pod.group for each in told if isinstance(each, PodSeen)] == [None]
    assert not any(isinstance(each, Lost) for each in told)
    assert caplog.text.count("podgroups cannot be read") == 1


def test_a_recorded_gang_is_replayed_as_one(api, recording, tmp_path):
    """Two pods of 4 CPU came, of three that the gang needs: kube-scheduler placed none of them, nor does the replay."""
    api.on_list(PODS, listing(member("p", 1), member("q", 1)))
    api.on_watch(PODS, [HANG])
    api.on_list(GROUPS, listing(group(3)))
    api.on_watch(GROUPS, [HANG])
    now = [5.0]
    told, until = recording(now)
    until(lambda each: isinstance(each, PodSeen) and each.pod.name == "q")
    for names in (None, NameHasher(b"key")):
        folder = tmp_path / ("hashed" if names else "named")
        with TraceWriter(folder) as writer:
            for each in (*told, Watched(at=NOON + 65.0)):
                writer.write(names(each) if names else each)
        trace = Trace.read(folder)
        assert {life.pod.group.name for life in trace.lives.values()} == {names.name("g") if names else "g"}
        cluster = cluster_of(Windows(trace, make_split(trace, 60.0, 1.0)).window(0))
        play(cluster, make_policy("first-fit"))
        assert not cluster.state.placements


def kubeconfig(api, folder):
    file = folder / "kubeconfig"
    file.write_text(
        f"current-context: c\nclusters: [{{name: c, cluster: {{server: '{api.server}'}}}}]\n"
        "users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    return file


def test_a_recording_that_is_refused_leaves_nothing_behind(api, tmp_path, monkeypatch, capsys):
    """Nodes may be listed, pods may not: nothing was recorded, so there is no folder, no key, no log and no table."""
    monkeypatch.chdir(tmp_path)
    api.on_list(PODS, (403, status(403, "Forbidden", "pods is forbidden")))
    file = kubeconfig(api, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for flags in (["--out=deep/trace"], ["--out=trace", "--hash-names"], ["--out=tables/t.csv"], []):
        assert command("record", [f"--kubeconfig={file}", *flags]) == 2
        assert "pods is forbidden" in capsys.readouterr().err
        assert sorted(tmp_path.rglob("*")) == before


def test_a_recording_that_is_refused_leaves_the_trace_that_was_there(api, tmp_path, caplog):
    from aaml.live.record import TraceRecord

    caplog.set_level("INFO")
    api.on_list(PODS, listing())
    api.on_watch(PODS, [HANG])
    TraceRecord(tmp_path / "trace", kubeconfig=kubeconfig(api, tmp_path), seconds=0.01).run()
    assert f"recording into {tmp_path / 'trace'} for 0.01 s, or until Ctrl-C or SIGTERM" in caplog.messages
    parts = sorted((tmp_path / "trace").iterdir())
    api.on_list(PODS, (403, status(403, "Forbidden", "pods is forbidden")))
    with pytest.raises(UserError, match="pods is forbidden"):
        TraceRecord(tmp_path / "trace", kubeconfig=kubeconfig(api, tmp_path), seconds=0.01).run()
    assert sorted((tmp_path / "trace").iterdir()) == parts
