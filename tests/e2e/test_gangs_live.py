"""Gangs on a real cluster of `aaml cluster up --gates gangs`: PodGroups, topology constraints, Jobs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aaml.cluster.objects import Node
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.kube.provision import KwokCluster, create_nodes
from support.kwok import pod, pods, until

AAML = str(Path(sys.executable).with_name("aaml"))
NAME = f"gangs-{os.getpid()}"
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


def test_kube_scheduler_places_a_group_in_one_rack_and_none_of_one_that_fits_in_none(api):
    """Four pods that fill a node each have room in the rack of four nodes alone; five have it nowhere."""
    api.request("POST", GROUPS, group("four", 4))
    for number in range(4):
        api.request("POST", "/api/v1/namespaces/default/pods", member(f"four-{number}", "four"))
    until(lambda: all(nodes_of(api).values()), "a group that is placed")
    assert sorted(nodes_of(api).values()) == ["r1-0", "r1-1", "r1-2", "r1-3"]
    api.request("POST", GROUPS, group("five", 4))
    for number in range(4):
        api.request("POST", "/api/v1/namespaces/default/pods", member(f"five-{number}", "five"))

    def refused():
        conditions = json.loads(api.request("GET", f"{GROUPS}/five")).get("status", {}).get("conditions", ())
        return any(each["reason"] == "Unschedulable" for each in conditions)

    until(refused, "a group that fits nowhere")
    assert sum(map(bool, nodes_of(api).values())) == 4


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
