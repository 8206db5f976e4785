"""`aaml record --out FOLDER` beside a real kube-scheduler: killed, cut off, started again, with read-only rights."""

import json
import random
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from aaml.cli import run as command
from aaml.cluster import audit
from aaml.errors import UserError
from aaml.evaluation.reproduce import EXPLAINED, reproduce
from aaml.kube.submit import manifest
from aaml.kube.transport import ApiError, Transport
from aaml.live.record import TraceRecord
from aaml.live.recorder import Recorder
from aaml.workload.deployments import Deployment
from aaml.workload.trace.store import is_trace, read_events
from aaml.workload.trace.trace import Follower, Trace
from support.kwok import pod, pods, until
from support.processes import AAML, Process

RECORDER = Path(__file__).parents[2] / "deploy" / "kubernetes" / "recorder"
NAME = "aaml-recorder"


@pytest.fixture(scope="module")
def account(kwok):
    """The kubeconfig of the recorder's service account."""
    kubectl = [str(kwok.kubectl), "--kubeconfig", str(kwok.kubeconfig)]
    subprocess.run([*kubectl, "apply", "-k", str(RECORDER)], check=True, capture_output=True, timeout=120)
    return kwok.service_account_kubeconfig("aaml", NAME)


def recording(kubeconfig, folder, log):
    return Process([AAML, "record", f"--kubeconfig={kubeconfig}", f"--out={folder}"], log)


def bound(api, namespace):
    found = {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in pods(api, namespace)}
    return {name: node for name, node in found.items() if node}


def create(api, namespace, names, **spec):
    for name in names:
        api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(name, cpu="2", **spec))
    until(lambda: set(names) <= set(bound(api, namespace)), f"{names} bound")


def read(folder, namespace):
    """Return the lives of a namespace's pods by name, and the trace."""
    trace = Trace.of(read_events(folder))
    return {life.pod.name: life for life in trace.lives.values() if life.pod.namespace == namespace}, trace


def told(folder, namespace, name, what):
    def seen():
        life = read(folder, namespace)[0].get(name) if is_trace(folder) else None
        return life is not None and what(life)

    until(seen, f"{name} recorded")


@contextmanager
def recording_here(kubeconfig, folder):
    """Record in a thread of this process."""
    record = TraceRecord(folder, kubeconfig=kubeconfig)
    thread = threading.Thread(target=record.run)
    thread.start()
    try:
        assert record.ready.wait(60)
        yield record
    finally:
        record.stop()
        thread.join(60)
        assert not thread.is_alive()


def test_a_killed_recorder_goes_on_and_knows_what_ended_meanwhile(kwok, account, namespace, tmp_path):
    """Everything it saw is decided by kube-scheduler as the API server says; what it missed is found again."""
    api, folder = kwok.api(), tmp_path / "trace"
    create(api, namespace, ["before"])
    with recording(account, folder, tmp_path / "first.log") as first:
        first.wait_for("recording into")
        told(folder, namespace, "before", lambda life: life.found)
        create(api, namespace, [f"a{i}" for i in range(5)])
        told(folder, namespace, "a4", lambda life: life.bound_s is not None)
        first.kill()
    api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/a0?gracePeriodSeconds=0")
    create(api, namespace, ["between"])
    with recording(account, folder, tmp_path / "second.log") as second:
        told(folder, namespace, "between", lambda life: life.found)
        create(api, namespace, ["after"])
        api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/a1?gracePeriodSeconds=0")
        victim = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a2"},
                  "deleteOptions": {"gracePeriodSeconds": 0}}  # fmt: skip
        api.request("POST", f"/api/v1/namespaces/{namespace}/pods/a2/eviction", victim)
        done = {"status": {"phase": "Succeeded"}}
        patch = "application/strategic-merge-patch+json"
        api.request("PATCH", f"/api/v1/namespaces/{namespace}/pods/a3/status", done, content_type=patch)
        for name in ("a1", "a2", "a3"):
            told(folder, namespace, name, lambda life: life.ended_s is not None)
        assert second.stop() == 0
        assert "403" not in second.output()
    lives, trace = read(folder, namespace)
    where = {name: node for name, node in bound(api, namespace).items() if name != "a3"}
    assert {name: life.node_name for name, life in lives.items() if life.ended_s is None} == where
    hows = {name: life.how for name, life in lives.items() if life.how}
    assert hows == {"a0": "unseen", "a1": "deleted", "a2": "evicted", "a3": "succeeded"}
    assert {name for name, life in lives.items() if life.found} == {"before", "between"}
    assert len(trace.gaps) == 1
    assert trace.gaps[0][0] <= lives["a0"].ended_s <= trace.gaps[0][1] + 0.001
    assert trace.gaps[0][0] - 1 <= lives["between"].bound_s <= trace.gaps[0][1]
    assert all(0 <= life.bound_s - life.created_s < 5 for life in lives.values())
    follower = Follower()
    for event in trace.events:
        follower.apply(event)
    assert sorted(follower.state.names) == sorted(["kwok-ctl-node-0", *(f"kwok-std-node-{i}" for i in range(10))])
    audit.check(follower.state)


def test_a_lost_connection_is_taken_up_again_and_told(kwok, account, namespace, tmp_path, caplog):
    api, folder = kwok.api(), tmp_path / "trace"
    with recording_here(account, folder):
        create(api, namespace, ["a"])
        told(folder, namespace, "a", lambda life: life.bound_s is not None)
        kwok.stop_component("kube-apiserver")
        until(lambda: "trying again" in caplog.text, "the loss noticed")
        kwok.start_stopped()
        create(kwok.api(), namespace, ["b"])
        told(folder, namespace, "b", lambda life: life.bound_s is not None)
    lives, trace = read(folder, namespace)
    assert trace.gaps
    assert {name: life.node_name for name, life in lives.items()} == bound(kwok.api(), namespace)


def test_names_are_hashed_on_request_with_a_key_that_is_not_in_the_trace(kwok, account, namespace, tmp_path, capsys):
    folder = tmp_path / "trace"
    create(kwok.api(), namespace, ["visible"], nodeSelector={"kubernetes.io/hostname": "kwok-std-node-3"})
    flags = [f"--kubeconfig={account}", f"--out={folder}", "--hash-names"]
    assert command("record", [*flags, "--duration-s=0.5"]) == 0
    text = subprocess.run(["zcat", *folder.glob("part-*")], check=True, capture_output=True, text=True).stdout
    for word in ("visible", namespace, "kwok-std-node", "127.0.0.1"):
        assert word not in text
    assert (tmp_path / "trace.key").stat().st_mode & 0o777 == 0o600
    trace = Trace.read(folder)
    pinned = [life for life in trace.lives.values() if "kubernetes.io/hostname" in life.pod.node_selector]
    nodes = {event.node.labels.get("kubernetes.io/hostname"): event.node.name for event in trace.events[:11]}
    assert [nodes[life.pod.node_selector["kubernetes.io/hostname"]] for life in pinned] == [pinned[0].node_name]
    assert command("record", [*flags, f"--key={folder}/key"]) == 2
    assert "outside the trace" in capsys.readouterr().err


def test_the_simulated_kube_scheduler_reproduces_the_decisions_of_the_real_one(kwok, account, namespace, tmp_path):
    """120 mixed pods at once, of deployments as well: what is not reproduced are binds that overtook each other."""
    api, folder = kwok.api(), tmp_path / "trace"
    rng = random.Random(7)
    with recording_here(account, folder):
        for number in range(60):
            requests = {"cpu": f"{rng.randint(100, 6000)}m", "memory": f"{rng.randint(64, 20000)}Mi"}
            api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(f"p{number}", **requests))
        for number in range(6):
            body = manifest(Deployment(f"web{number}", 10, rng.randint(100, 3000), 1 << 30), "default-scheduler")
            api.request("POST", f"/apis/apps/v1/namespaces/{namespace}/deployments", body)
        until(lambda: len(bound(api, namespace)) == 120, "all pods bound")
        until(lambda: sum(life.bound_s is not None for life in read(folder, namespace)[0].values()) == 120, "recorded")
        api.request("DELETE", f"/apis/apps/v1/namespaces/{namespace}/deployments")
    found = reproduce(Trace.read(folder))
    print(found)
    assert len(found.verdicts) >= 120
    assert found.share() > 0.75
    assert found.share() + found.share(EXPLAINED) > 0.98
    assert found.by_chance < 0.4
    assert command("replay", [str(folder), f"--out={tmp_path}/replay"]) == 0
    assert len((tmp_path / "replay" / "decisions.csv").read_text().splitlines()) == len(found.verdicts) + 1


def granted(kubeconfig):
    """Return (verb, resource) of all that the account may do beyond every account's."""
    review = {"kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1", "spec": {"namespace": "aaml"}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    found = json.loads(Transport(kubeconfig).request("POST", path, review))["status"]["resourceRules"]
    return {
        (verb, resource)
        for rule in found
        if not {"authorization.k8s.io", "authentication.k8s.io", "certificates.k8s.io"} & set(rule["apiGroups"])
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


def test_the_account_may_read_what_is_recorded_and_nothing_else(account):
    assert granted(account) == {
        ("list", "nodes"), ("watch", "nodes"), ("list", "pods"), ("watch", "pods"), ("list", "namespaces"),
        ("list", "podgroups"), ("watch", "podgroups"),
    }  # fmt: skip
    for method, path in (
        ("GET", "/api/v1/namespaces/kube-system/secrets"), ("GET", "/api/v1/namespaces/default/configmaps"),
        ("GET", "/api/v1/namespaces/default/pods/any/log"), ("DELETE", "/api/v1/namespaces/default/pods/any"),
        ("POST", "/api/v1/namespaces/default/pods"), ("DELETE", "/api/v1/nodes/kwok-std-node-0"),
    ):  # fmt: skip
        with pytest.raises(ApiError) as refusal:
            Transport(account).request(method, path, {} if method == "POST" else None)
        assert refusal.value.status == 403


def test_a_pod_is_explained_and_its_start_forecast_with_the_same_rights(account, kwok, namespace):
    create(kwok.api(), namespace, ["runs"])
    kwok.api().request("POST", f"/api/v1/namespaces/{namespace}/pods", pod("waits", cpu="1000"))

    def said(*command):
        argv = [AAML, *command, f"--kubeconfig={account}"]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120).stdout

    assert f"{namespace}/runs" in said("explain", f"{namespace}/runs")
    forecast = json.loads(said("when", "waits", "-n", namespace, "--futures=2", "--no-sooner", "--json"))
    assert forecast["never"] == 1.0


@pytest.mark.parametrize(("resource", "verb"), [("nodes", "list"), ("nodes", "watch"), ("pods", "list"),
                                                ("pods", "watch"), ("namespaces", "list")])  # fmt: skip
def test_without_any_one_of_its_rights_the_recorder_says_which_is_missing(kwok, namespace, caplog, resource, verb):
    """So the manifest is the least: each right is missed when it is not there."""
    api, name = kwok.api(), f"less-{resource}-{verb}"
    documents = list(yaml.safe_load_all((RECORDER / "rbac.yaml").read_text()))
    rules = [
        {"apiGroups": [""], "resources": [each], "verbs": [v for v in rule["verbs"] if (each, v) != (resource, verb)]}
        for rule in documents[1]["rules"]
        for each in rule["resources"]
    ]
    rights, binding = "/apis/rbac.authorization.k8s.io/v1", documents[2]
    api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    role = {"metadata": {"name": name}, "rules": [rule for rule in rules if rule["verbs"]]}
    api.request("POST", f"{rights}/clusterroles", role)
    try:
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        role_ref = binding["roleRef"] | {"name": name}
        api.request("POST", f"{rights}/clusterrolebindings",
                    {"metadata": {"name": name}, "roleRef": role_ref, "subjects": [subject]})  # fmt: skip
        kubeconfig = kwok.service_account_kubeconfig(namespace, name)
        caplog.set_level("INFO")
        said = []
        try:
            recorder = Recorder.connect(kubeconfig, lambda _event: None)
            until(lambda: recorder.pump(0.05) or f"may not {verb} " in caplog.text, "what is missing in the log")
            recorder.close()
        except UserError as error:
            said.append(str(error))
        assert f"this account may not {verb} {resource}" in " ".join([*said, caplog.text])
    finally:
        api.request("DELETE", f"{rights}/clusterrolebindings/{name}")
        api.request("DELETE", f"{rights}/clusterroles/{name}")
