"""Gangs on a real cluster of `aaml cluster up --gates gangs`: PodGroups, topology constraints, Jobs."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from aaml.cluster.objects import Node, PodGroup
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.kube.cluster import LiveOptions
from aaml.kube.provision import KwokCluster, create_nodes
from aaml.live.recorder import Recorder
from aaml.workload.trace.trace import Trace
from support.kwok import pod, pods, until
from support.live_scheduler import LiveScheduler
from support.processes import Process

AAML = str(Path(sys.executable).with_name("aaml"))
NAME = f"gangs-{os.getpid()}"
OURS = "ours"
KILLED_AFTER = 2
KILLED = f"""
import os, signal, sys
from aaml.kube.binder import Binder
from support.live_scheduler import LiveScheduler

sent = []

def submit(self, job):
    assert self.bind(job)[0] == "bound"
    sent.append(job)
    if len(sent) == {KILLED_AFTER}:
        os.kill(os.getpid(), signal.SIGKILL)

Binder.submit = submit
with LiveScheduler("{OURS}", sys.argv[1]) as live:
    live._thread.join()
"""
RACKS = {"r0": 2, "r1": 4, "r2": 3}
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"


@pytest.fixture(scope="module")
def cluster():
    command = [AAML, "cluster", "up", "--name", NAME, "--gates", "gangs", "--nodes", "1", "--owner", str(os.getpid())]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    made = KwokCluster(NAME)
    try:
        api = made.api()
        allocatable = {CPU: 4000, MEMORY: 16 << 30, PODS: 20}
        nodes = [
            Node(f"{rack}-{n}", allocatable, {"rack": rack}) for rack, count in RACKS.items() for n in range(count)
        ]
        create_nodes(api, nodes, progress=False)
        api.request("DELETE", "/api/v1/nodes/kwok-std-node-0")
        yield made
    finally:
        made.down()


@pytest.fixture
def api(cluster):
    api = cluster.api()
    yield api
    api.request("DELETE", "/apis/batch/v1/namespaces/default/jobs?propagationPolicy=Background")
    api.request("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0")
    api.request("DELETE", GROUPS)
    until(lambda: not pods(api, "default"), "no pods after a test")


def group(name, least, rack="rack"):
    constraints = {"schedulingConstraints": {"topology": [{"key": rack}]}} if rack else {}
    return {"metadata": {"name": name}, "spec": {"schedulingPolicy": {"gang": {"minCount": least}}, **constraints}}


def member(name, of, cpu="3", **spec):
    return pod(name, cpu, schedulingGroup={"podGroupName": of}, **spec)


def nodes_of(api):
    return {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in pods(api, "default")}


def test_kube_scheduler_places_a_group_in_one_rack_and_none_of_one_that_fits_in_none(api, cluster):
    """Four pods that fill a node each have room in the rack of four nodes alone; five have it nowhere.

    A recording has the group, and a dry run leaves its pods out.
    """
    told = []
    with (
        closing(Recorder.connect(cluster.kubeconfig, told.append)) as recorder,
        LiveScheduler("default-scheduler", cluster.kubeconfig, LiveOptions(dry_run=True)) as shadow,
    ):
        api.request("POST", GROUPS, group("four", 4))
        for number in range(4):
            api.request("POST", "/api/v1/namespaces/default/pods", member(f"four-{number}", "four"))
        until(lambda: all(nodes_of(api).values()), "a group that is placed")

        def recorded():
            recorder.pump(0.1)
            ours = [life for life in Trace.of(told).lives.values() if life.pod.name.startswith("four")]
            return len(ours) == 4 and all(life.bound_s and life.pod.group for life in ours)

        until(recorded, "a recorded group")
        until(lambda: shadow.cluster._handlers.left_out == 4, "pods of groups that a dry run leaves out")
    assert shadow.results == []
    assert {life.pod.group for life in Trace.of(told).lives.values()} == {
        PodGroup("four", 4, "rack", preemption_policy="PreemptLowerPriority")  # which admission fills in
    }
    assert sorted(nodes_of(api).values()) == ["r1-0", "r1-1", "r1-2", "r1-3"]
    api.request("POST", GROUPS, group("five", 4))
    for number in range(4):
        api.request("POST", "/api/v1/namespaces/default/pods", member(f"five-{number}", "five"))

    def refused():
        conditions = json.loads(api.request("GET", f"{GROUPS}/five")).get("status", {}).get("conditions", ())
        return any(each["reason"] == "Unschedulable" for each in conditions)

    until(refused, "a group that fits nowhere")
    assert sum(map(bool, nodes_of(api).values())) == 4


def test_when_says_by_when_a_group_starts_at_the_latest_and_what_helps(api, cluster):
    """Pods that end within a minute fill the rack of four nodes: its four nodes are free by then."""
    for number in range(4):
        full = pod(f"full-{number}", "4", nodeName=f"r1-{number}", activeDeadlineSeconds=60, restartPolicy="Never")
        api.request("POST", "/api/v1/namespaces/default/pods", full)
    api.request("POST", GROUPS, group("next", 4))
    for number in range(4):
        api.request("POST", "/api/v1/namespaces/default/pods", member(f"next-{number}", "next"))
    until(lambda: len(nodes_of(api)) == 8, "pods that are there")
    when = [AAML, "when", "podgroup/next", f"--kubeconfig={cluster.kubeconfig}"]
    told = subprocess.run([*when, "--futures=5", "--json"], check=True, capture_output=True, text=True, timeout=120)
    found = json.loads(told.stdout)
    assert (found["pods"], found["never"]) == (4, 0.0)
    assert 0.0 < found["median_s"] <= found["to_s"] <= 90.0  # the deadline, and a backoff of up to twenty seconds
    anywhere = next(each for each in found["sooner"] if each["change"] == "anywhere, not in one rack")
    assert anywhere["median_s"] == 0.0
    nothing = subprocess.run(
        [*when[:2], "job/nothing", when[3]], check=False, capture_output=True, text=True, timeout=120
    )
    assert nothing.returncode == 2
    assert "target: 'job/nothing' is not accepted; expected a job of namespace default that has pods" in nothing.stderr


def test_a_job_with_scheduling_is_a_group(api):
    policy = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    template = {"spec": {**member("unnamed", "unused")["spec"], "restartPolicy": "Never"}}
    del template["spec"]["schedulingGroup"]
    scheduling = {**policy, "schedulingConstraints": {"topology": [{"key": "rack"}]}}
    spec = {"parallelism": 3, "completions": 3, "completionMode": "Indexed", "template": template}
    job = {"metadata": {"name": "train"}, "spec": {**spec, "scheduling": scheduling}}
    api.request("POST", "/apis/batch/v1/namespaces/default/jobs", job)
    until(lambda: len(nodes_of(api)) == 3 and all(nodes_of(api).values()), "the pods of a Job")
    assert len({name.partition("-")[0] for name in nodes_of(api).values()}) == 1
    made = pods(api, "default")[0]["spec"]["schedulingGroup"]["podGroupName"]
    assert json.loads(api.request("GET", f"{GROUPS}/{made}"))["spec"]["schedulingPolicy"]["gang"]["minCount"] == 3


def ours(api, name, count, least, **spec):
    """Create a group of pods for the scheduler of AAML, the group last."""
    for number in range(count):
        each = member(f"{name}-{number}", name, schedulerName=OURS, **spec)
        api.request("POST", "/api/v1/namespaces/default/pods", each)
    api.request("POST", GROUPS, group(name, least))


def condition(api, name):
    found = json.loads(api.request("GET", f"{GROUPS}/{name}")).get("status", {}).get("conditions", ())
    return found[0] if found else {"reason": "", "status": "", "message": ""}


def test_aaml_schedule_places_a_group_in_one_rack_or_not_at_all(api, cluster):
    """Four pods that fill a node each fit in the rack of four; four more nowhere, until the first leave."""
    with LiveScheduler(OURS, cluster.kubeconfig) as live:
        ours(api, "four", 4, 4)
        until(lambda: all(nodes_of(api).values()), "a group that is placed")
        assert sorted(nodes_of(api).values()) == ["r1-0", "r1-1", "r1-2", "r1-3"]
        until(lambda: condition(api, "four")["reason"] == "Scheduled", "the condition of a group that is placed")
        ours(api, "five", 4, 4)
        until(lambda: condition(api, "five")["reason"] == "Unschedulable", "the condition of a group that fits nowhere")
        said = condition(api, "five")["message"]
        assert said.startswith("pod group is unschedulable, 0/3 placements are available, first placement status: minC")
        assert [name for name, node in nodes_of(api).items() if node] == [f"four-{number}" for number in range(4)]
        for number in range(4):
            api.request("DELETE", f"/api/v1/namespaces/default/pods/four-{number}?gracePeriodSeconds=0")
        until(lambda: len(nodes_of(api)) == 4 and all(nodes_of(api).values()), "a group that has room now")
        assert condition(api, "five")["reason"] == "Scheduled"
    assert live.error is None
    assert {result.status for result in live.results} == {"bound", "tried"}


def test_after_kill_in_the_middle_of_a_group_the_rest_is_bound_beside_what_was(api, cluster, tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    ours(api, "cut", 4, 4)
    tests = str(Path(__file__).parents[1])
    with Process(
        [sys.executable, str(script), str(cluster.kubeconfig)], tmp_path / "killed.log", PYTHONPATH=tests
    ) as it:
        assert it.process.wait(60) == -signal.SIGKILL
    assert sum(map(bool, nodes_of(api).values())) == KILLED_AFTER
    command = [AAML, "schedule", "policy", f"--scheduler-name={OURS}", f"--kubeconfig={cluster.kubeconfig}"]
    with Process(command, tmp_path / "again.log") as again:
        until(lambda: all(nodes_of(api).values()), "a group that is whole again")
        assert again.stop() == 0
    assert sorted(nodes_of(api).values()) == ["r1-0", "r1-1", "r1-2", "r1-3"]


def test_a_group_grows_and_needs_fewer_as_its_object_says(api, cluster):
    with LiveScheduler(OURS, cluster.kubeconfig):
        ours(api, "small", 2, 3)
        until(lambda: len(nodes_of(api)) == 2, "pods of a group that is not complete")
        assert not any(nodes_of(api).values())
        less = {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
        api.request("PATCH", f"{GROUPS}/small", less, content_type="application/merge-patch+json")
        until(lambda: all(nodes_of(api).values()), "a group that needs fewer pods now")
        more = member("small-2", "small", schedulerName=OURS)
        api.request("POST", "/api/v1/namespaces/default/pods", more)
        rack = nodes_of(api)["small-0"].partition("-")[0]
        if rack != "r0":  # of two nodes, which are full
            until(lambda: nodes_of(api)["small-2"], "a pod that came later")
            assert nodes_of(api)["small-2"].partition("-")[0] == rack


def test_an_important_group_preempts_a_whole_group_that_is_disrupted_as_one(api, cluster):
    """Racks 0 and 2 are full of pods as important as the group; rack 1 runs one that leaves as a whole."""
    for name, value in (("urgent", 1000), ("lesser", 10)):
        body = {"metadata": {"name": name}, "value": value}
        api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    lesser = group("lesser", 2, "")
    lesser["spec"] |= {"disruptionMode": {"all": {}}, "priorityClassName": "lesser"}
    api.request("POST", GROUPS, lesser)
    for rack in ("r0", "r2"):
        for number in range(RACKS[rack]):
            full = pod(f"full-{rack}-{number}", "4", nodeName=f"{rack}-{number}", priorityClassName="urgent")
            api.request("POST", "/api/v1/namespaces/default/pods", full)
    for number in range(2):
        each = member(f"lesser-{number}", "lesser", "1", nodeName=f"r1-{number}", priorityClassName="lesser")
        api.request("POST", "/api/v1/namespaces/default/pods", each)
    until(lambda: len(nodes_of(api)) == 7, "pods that run")
    with LiveScheduler(OURS, cluster.kubeconfig) as live:
        urgent = group("urgent", 3)
        urgent["spec"]["priorityClassName"] = "urgent"
        api.request("POST", GROUPS, urgent)
        for number in range(3):  # three of 4 cores leave a node for one of the two that run
            each = member(f"urgent-{number}", "urgent", "4", schedulerName=OURS, priorityClassName="urgent")
            api.request("POST", "/api/v1/namespaces/default/pods", each)
        until(lambda: all(nodes_of(api).get(f"urgent-{number}") for number in range(3)), "a group that preempts")
        there = nodes_of(api)
        assert {there[f"urgent-{number}"].partition("-")[0] for number in range(3)} == {"r1"}
        assert [name for name in there if name.startswith("lesser")] == []
        uid = json.loads(api.request("GET", f"{GROUPS}/urgent"))["metadata"]["uid"]

        def told():
            events = json.loads(api.request("GET", "/api/v1/namespaces/default/events"))["items"]
            return {each["message"] for each in events if each["reason"] == "Preempted"}

        until(lambda: told() == {f"Preempted by podgroup {uid} on node cluster"}, "events in kube-scheduler's words")
    assert live.error is None
    for name in ("urgent", "lesser"):
        api.request("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")
