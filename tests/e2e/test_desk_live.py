"""A researcher's desk on a real cluster: explanations of what kube-scheduler placed, and the replay of it."""

import json
import re
from contextlib import closing

from aaml.lab.library import Library
from aaml.live.explaining import live, logged
from aaml.live.run import SchedulerRun
from aaml.live.settings import Folders, SchedulerSettings
from aaml.live.source import PolicySource
from aaml.policies.registry import make_policy
from support.kwok import pod, pods, until


def test_a_running_pod_and_one_that_fits_nowhere_are_explained(kwok, namespace):
    api, path = kwok.api(), f"/api/v1/namespaces/{namespace}/pods"
    api.request("POST", path, pod("web", cpu="2"))
    api.request("POST", path, pod("huge", cpu="500"))
    until(lambda: any(each["spec"].get("nodeName") for each in pods(api, namespace)), "a bound pod")
    said = live(f"{namespace}/web", kubeconfig=kwok.kubeconfig)
    assert said.node.startswith("kwok-std-node-")
    assert said.refused == {("TaintToleration", "node(s) had untolerated taint(s)"): 1}
    assert said.parts["TaintToleration"][said.chosen] == 300.0
    stuck = live(f"{namespace}/huge", kubeconfig=kwok.kubeconfig)
    assert (stuck.node, stuck.refused["NodeResourcesFit", "Insufficient cpu"]) == ("", 10)


def test_a_live_cluster_is_recorded_and_its_decisions_are_explained(kwok, namespace):
    api, path = kwok.api(), f"/api/v1/namespaces/{namespace}/pods"
    library = Library()
    with closing(library):
        library.watch(kwok.kubeconfig, ("kube-scheduler", "most-allocated"))
        (episode,) = library.index()
        _, playback = library.playback(0, episode["nodes"][0], 0, "the cluster")
        api.request("POST", path, pod("web", cpu="32"))
        until(lambda: library.status(playback)["decisions"], "the placement in the replay")
        (row,) = library.decisions(playback, 0)
        said = library.explain(playback, 0)
        assert row[2:4] == [f"{namespace}/web", said["own"]["node"]]
        assert said["own"]["refused"] == [["TaintToleration", "node(s) had untolerated taint(s)", 1]]
        assert [each["policy"] for each in said["others"]] == ["most-allocated"]
        end_s = library.status(playback)["span_s"][1]
        window = library.window(playback, 0.0, end_s)
        assert len(window["rows"]) == 10, "the control plane has no row"
        assert window["decided"][-1] == 1
        assert row[6] == "default-scheduler"
        api.request("POST", path, pod("huge", cpu="500"))

        def waits():
            return [
                each for each in library.waiting(playback, 0.0)["pods"] if each[0] == f"{namespace}/huge" and each[4]
            ]

        until(waits, "the pod that waits, with what kube-scheduler says of it")
        ((_, _, _, scheduler, why),) = waits()
        assert scheduler == "default-scheduler"
        assert why.startswith("0/11 nodes are available: 1 node(s) had untolerated taint(s), 10 Insufficient cpu.")


def test_the_event_of_a_bind_names_the_decision_that_is_explained(kwok, namespace, tmp_path):
    api, path = kwok.api(), f"/api/v1/namespaces/{namespace}"
    for name, cpu in (("huge", "500"), ("a", "1"), ("b", "2")):
        api.request("POST", f"{path}/pods", pod(name, cpu=cpu, schedulerName="found"))
    settings = SchedulerSettings(
        kubeconfig=kwok.kubeconfig, scheduler_name="found", namespaces=(namespace,), explain=True
    )
    folders = Folders(curves=tmp_path / "curves", models=tmp_path / "models", logs=tmp_path / "logs")
    run = SchedulerRun(PolicySource(lambda: make_policy("least-allocated")), settings, folders=folders)
    assert run.run(max_decisions=2).binds["bound"] == 2
    events = json.loads(api.request("GET", f"{path}/events", query={"fieldSelector": "reason=Scheduled"}))["items"]
    assert len(events) == 2
    (file,) = folders.logs.glob("*.log")
    written = file.read_text()
    for event in events:
        number, log = re.search(r"\(decision (\d+) of (.+)\)", event["message"]).groups()
        explained = logged(folders.logs / log, int(number))
        assert explained.pod == f"{namespace}/{event['involvedObject']['name']}"
        assert f"decision {number}: {explained.pod} -> {explained.node}" in written


def test_a_hand_over_is_an_event_of_the_pod_that_was_decided_on(kwok, namespace, tmp_path, monkeypatch):
    api, path = kwok.api(), f"/api/v1/namespaces/{namespace}"
    for number in range(4):
        api.request("POST", f"{path}/pods", pod(f"p{number}", schedulerName="handed"))
    verdicts = iter([None, "difference of rewards below 0"])
    monkeypatch.setattr("aaml.live.failover.Failover.worse", lambda *_: next(verdicts, None))
    settings = SchedulerSettings(
        kubeconfig=kwok.kubeconfig, scheduler_name="handed", namespaces=(namespace,), failover="always",
        fallback="least-variance",
    )  # fmt: skip
    folders = Folders(curves=tmp_path / "curves", models=tmp_path / "models", logs=tmp_path / "logs")
    run = SchedulerRun(PolicySource(lambda: make_policy("most-allocated")), settings, folders=folders)
    assert run.run(4).binds["bound"] == 4
    found = api.request("GET", f"{path}/events", query={"fieldSelector": "reason=PolicyHandedOver"})
    (event,) = json.loads(found)["items"]
    assert event["type"] == "Warning"
    assert (
        event["message"]
        == "most-allocated fails over to least-variance, which does better: difference of rewards below 0"
    )
    (log,) = folders.logs.glob("*.log")
    lines = [line for line in log.read_text().splitlines() if " decision " in line]
    assert [line.endswith(", by least-variance)") for line in lines] == [False, False, True, True]
    assert f"/{event['involvedObject']['name']} " in lines[1]
