"""The manifests of deploy/kubernetes on a real API server: the service account does its work and nothing else."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aaml.kube.provision import KwokCluster
from aaml.kube.transport import ApiError, Transport
from support.kwok import pod, pods, until
from support.processes import AAML, Process, free_port, probe
from support.volumes import Provisioner, claim, storage_class, uses, volume

DEPLOY = Path(__file__).parents[2] / "deploy" / "kubernetes"
NAME = "aaml-scheduler"
QUICK = ("--lease-duration-s=4", "--renew-deadline-s=3", "--retry-period-s=0.5")


@pytest.fixture(scope="module")
def deployed(kwok: KwokCluster) -> Iterator[KwokCluster]:
    folders = ["scheduler", "extender-bind", "shadow"]
    for folder in folders:
        apply(kwok, folder)
    yield kwok
    for folder in folders:
        kubectl(kwok, "delete", "-k", str(DEPLOY / folder), "--ignore-not-found", "--wait=false")


def kubectl(cluster: KwokCluster, *arguments: str) -> None:
    command = [str(cluster.kubectl), "--kubeconfig", str(cluster.kubeconfig), *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)


def apply(cluster: KwokCluster, folder: str) -> None:
    kubectl(cluster, "apply", "-k", str(DEPLOY / folder))


@pytest.fixture(scope="module")
def account(deployed: KwokCluster) -> Path:
    return deployed.service_account_kubeconfig("aaml", NAME)


def command(kubeconfig: Path, *more: str) -> list[str]:
    """Return the command line of the Deployment, with another kubeconfig and address."""
    deployment = yaml.safe_load((DEPLOY / "scheduler" / "deployment.yaml").read_text())
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    kept = [each for each in arguments[1:] if not each.startswith("--health-")]
    return [AAML, *kept, f"--kubeconfig={kubeconfig}", *more]


def items(api: Transport, path: str) -> list[dict[str, Any]]:
    return json.loads(api.request("GET", path))["items"]


def events(api: Transport, namespace: str, reason: str) -> Counter[str]:
    found = items(api, f"/api/v1/namespaces/{namespace}/events")
    return Counter(each["involvedObject"]["name"] for each in found if each["reason"] == reason)


def create(api: Transport, namespace: str, names: list[str], **spec: Any) -> None:
    for name in names:
        api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(name, schedulerName=NAME, **spec))


def bound(api: Transport, namespace: str) -> dict[str, str]:
    found = {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in pods(api, namespace)}
    return {name: node for name, node in found.items() if node}


def test_the_deployments_are_admitted_and_run(deployed: KwokCluster) -> None:
    api = deployed.api()
    for name, replicas in ((NAME, 2), ("aaml-extender", 1)):
        path = f"/apis/apps/v1/namespaces/aaml/deployments/{name}"
        until(
            lambda path=path, replicas=replicas: (
                json.loads(api.request("GET", path))["status"].get("readyReplicas") == replicas
            ),
            f"{replicas} ready replicas of {name}",
        )


def test_the_service_account_can_schedule(deployed: KwokCluster, account: Path, namespace: str, tmp_path: Path) -> None:
    api, port = deployed.api(), free_port()
    # A selector over namespaces makes the scheduler read these, which it does not without need.
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaceSelector": {}}
    apart = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "podAffinityTerm": term}]}}  # fmt: skip
    with Process(command(account, f"--health-port={port}"), tmp_path / "scheduler.log") as scheduler:
        scheduler.wait_for("places the pods")
        create(api, namespace, [f"p{i}" for i in range(10)])
        create(api, namespace, ["apart"], affinity=apart)
        create(api, namespace, ["nowhere"], nodeSelector={"no": "such-node"})
        until(lambda: len(bound(api, namespace)) == 11, "11 pods bound")
        until(lambda: events(api, namespace, "FailedScheduling")["nowhere"], "the event FailedScheduling")
        until(lambda: sum(events(api, namespace, "Scheduled").values()) >= 11, "the events Scheduled")
        seen = json.loads(api.request("GET", f"/api/v1/namespaces/{namespace}/pods/nowhere"))
        condition = next(each for each in seen["status"]["conditions"] if each["type"] == "PodScheduled")
        assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
        assert "0/11 nodes are available" in condition["message"]
        assert "10 node(s) didn't match Pod's node affinity/selector" in condition["message"]
        assert probe(port, "/readyz") == (200, "ok")
        assert probe(port, "/healthz") == (200, "ok")
        metrics = probe(port, "/metrics")[1]
        assert f'scheduler_schedule_attempts_total{{profile="{NAME}",result="scheduled"}} 11.0' in metrics
        assert 'scheduler_pending_pods{queue="unschedulable"} 1.0' in metrics
        assert scheduler.stop() == 0
        assert "403" not in scheduler.output()
    lease = json.loads(api.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/aaml/leases/{NAME}"))
    assert lease["spec"]["holderIdentity"] == "", "the lease is given up at the end"


def test_a_scheduler_that_learns_works_under_the_same_account_and_stays_ready(
    deployed: KwokCluster, account: Path, namespace: str, tmp_path: Path
) -> None:
    api, port = deployed.api(), free_port()
    flags = ["--no-records", "--leader-elect", f"--lease-name={NAME}", "--lease-namespace=aaml",
             f"--kubeconfig={account}", f"--scheduler-name={NAME}", f"--namespaces={namespace}"]  # fmt: skip
    with Process([AAML, "schedule", "dqn", *flags, f"--health-port={port}"], tmp_path / "dqn.log") as scheduler:
        scheduler.wait_for("places the pods")
        create(api, namespace, [f"p{i}" for i in range(5)])
        until(lambda: len(bound(api, namespace)) == 5, "5 pods bound")
        until(lambda: sum(events(api, namespace, "Scheduled").values()) == 5, "the events Scheduled")
        assert probe(port, "/readyz") == probe(port, "/healthz") == (200, "ok")
        assert f'attempts_total{{profile="{NAME}",result="scheduled"}} 5.0' in probe(port, "/metrics")[1]
        assert scheduler.stop() == 0
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["models"]


def test_the_service_account_gets_volumes_for_claims(
    deployed: KwokCluster, account: Path, namespace: str, tmp_path: Path
) -> None:
    """One volume is there, another is made; nothing of it is refused to the account."""
    api, driver = deployed.api(), f"csi.{namespace}"
    classes, root = "/apis/storage.k8s.io/v1/storageclasses", f"/api/v1/namespaces/{namespace}"
    local, cloud, there = f"local-{namespace}", f"cloud-{namespace}", f"there-{namespace}"
    for kind in (storage_class(local), storage_class(cloud, driver)):
        api.request("POST", classes, kind)
    for name, kind in (("local", local), ("cloud", cloud)):
        api.request("POST", f"{root}/persistentvolumeclaims", claim(name, kind))
    api.request("POST", "/api/v1/persistentvolumes", volume(there, local))
    flags = (f"--namespaces={namespace}", "--no-records")
    with (
        Provisioner(api, driver),
        Process(command(account, *flags), tmp_path / "scheduler.log") as scheduler,
    ):
        scheduler.wait_for("places the pods")
        create(api, namespace, ["p"], **uses("local", "cloud"))
        until(lambda: bound(api, namespace), "the pod bound")
        assert scheduler.stop() == 0
        assert "403" not in scheduler.output()
    found = items(api, f"{root}/persistentvolumeclaims")
    volumes = {each["metadata"]["name"]: each["spec"]["volumeName"] for each in found}
    assert volumes["local"] == there
    assert volumes["cloud"].startswith("made-")
    api.request("DELETE", f"{root}/pods?gracePeriodSeconds=0")
    api.request("DELETE", f"{root}/persistentvolumeclaims")
    for name in volumes.values():
        api.request("DELETE", f"/api/v1/persistentvolumes/{name}")
    for kind in (local, cloud):
        api.request("DELETE", f"{classes}/{kind}")


FORBIDDEN = [
    ("DELETE", "/api/v1/persistentvolumes/any", None),
    ("PUT", "/api/v1/namespaces/default/persistentvolumeclaims/any", {"metadata": {"name": "any"}}),
    ("POST", "/api/v1/namespaces/default/persistentvolumeclaims", {"metadata": {"name": "any"}}),
    ("POST", "/api/v1/namespaces/default/pods", pod("more")),
    ("DELETE", "/api/v1/namespaces/default/pods/any", None),
    ("DELETE", "/api/v1/nodes/kwok-std-node-0", None),
    ("PUT", "/api/v1/nodes/kwok-std-node-0", {"metadata": {"name": "kwok-std-node-0"}}),
    ("GET", "/api/v1/namespaces/kube-system/secrets", None),
    ("GET", "/api/v1/namespaces/aaml/configmaps", None),
    ("POST", "/api/v1/namespaces/default/pods/any/eviction", {"metadata": {"name": "any"}}),
    ("POST", "/apis/coordination.k8s.io/v1/namespaces/aaml/leases", {"metadata": {"name": "other"}}),
    ("PUT", "/apis/coordination.k8s.io/v1/namespaces/aaml/leases/other", {"metadata": {"name": "other"}}),
    ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", None),
    ("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/aaml/leases/{NAME}", None),
    ("POST", "/api/v1/namespaces/aaml/serviceaccounts/default/token", {}),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {"metadata": {"name": "more"}}),
    ("GET", "/apis/apps/v1/deployments", None),
]


@pytest.mark.parametrize(("method", "path", "body"), FORBIDDEN, ids=lambda value: value if type(value) is str else "")
def test_the_service_account_cannot_do_more(account: Path, method: str, path: str, body: Any) -> None:
    with pytest.raises(ApiError) as refusal:
        Transport(account).request(method, path, body)
    assert refusal.value.status == 403


def rules(kubeconfig: Path) -> set[tuple[str, str, str]]:
    """Return (verb, resource, name) of all that an account may do in the namespace aaml beyond every account's."""
    review = {"kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1", "spec": {"namespace": "aaml"}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    found = json.loads(Transport(kubeconfig).request("POST", path, review))["status"]["resourceRules"]
    return {
        (verb, resource, name)
        for rule in found if not OF_EVERY_ACCOUNT & set(rule["apiGroups"])
        for verb in rule["verbs"] for resource in rule["resources"] for name in rule.get("resourceNames", [""])
    }  # fmt: skip


OF_EVERY_ACCOUNT = {"authorization.k8s.io", "authentication.k8s.io", "certificates.k8s.io"}
READS = ("nodes", "pods", "namespaces", "persistentvolumeclaims", "persistentvolumes", "storageclasses", "csinodes")
ALSO_TO_PLACE = ("volumeattachments", "csidrivers", "csistoragecapacities")


def test_the_rules_are_these_and_no_others(deployed: KwokCluster, account: Path) -> None:
    reads = {(verb, resource, "") for verb in ("list", "watch") for resource in READS}
    also = {(verb, resource, "") for verb in ("list", "watch") for resource in ALSO_TO_PLACE}
    groups = {("list", "podgroups", ""), ("watch", "podgroups", ""), ("patch", "podgroups/status", "")}
    assert rules(account) == reads | also | groups | {
        ("patch", "persistentvolumeclaims", ""), ("patch", "persistentvolumes", ""),
        ("get", "pods", ""), ("create", "pods/binding", ""), ("patch", "pods/status", ""), ("create", "events", ""),
        ("patch", "events", ""), ("get", "leases", NAME), ("update", "leases", NAME),
    }  # fmt: skip
    extender = deployed.service_account_kubeconfig("aaml", "aaml-extender")
    assert rules(extender) == reads | {("create", "pods/binding", ""), ("get", "pods", "")}


def test_a_shadow_may_read_alone_and_needs_no_more(deployed: KwokCluster, namespace: str, tmp_path: Path) -> None:
    shadow, api, log = (
        deployed.service_account_kubeconfig("aaml", "aaml-shadow"),
        deployed.api(),
        tmp_path / "log.jsonl",
    )
    reads = (*READS, *ALSO_TO_PLACE)
    assert rules(shadow) == {(verb, resource, "") for verb in ("list", "watch") for resource in reads}
    deployment = yaml.safe_load((DEPLOY / "shadow" / "deployment.yaml").read_text())
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    kept = [each for each in arguments[1:] if not each.startswith(("--health-", "--shadow-log"))]
    flags = [f"--shadow-log={log}", f"--kubeconfig={shadow}", f"--namespaces={namespace}"]
    with Process([AAML, *kept, *flags], tmp_path / "shadow.log") as process:
        process.wait_for("looks on")
        path = f"/api/v1/namespaces/{namespace}/pods"
        for number in range(5):
            api.request("POST", path, pod(f"p{number}", schedulerName="default-scheduler"))
        until(lambda: log.exists() and len(log.read_text().splitlines()) == 5, "a line for each pod")
        assert process.stop() == 0
        assert "403" not in process.output()
    command = [AAML, "report", "shadow", str(log)]
    report = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert "5" in report.stdout


def test_a_scheduler_that_may_not_bind_ends_with_what_is_missing(deployed: KwokCluster, tmp_path: Path) -> None:
    """Before, each pod ended in a 403 and was tried again for ever."""
    shadow = deployed.service_account_kubeconfig("aaml", "aaml-shadow")
    ended = subprocess.run(
        [AAML, "schedule", "policy", f"--kubeconfig={shadow}"], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "this account may not create pods/binding, get pods" in ended.stderr


def test_of_two_replicas_one_decides_and_the_other_goes_on_when_it_is_killed(
    deployed: KwokCluster, account: Path, namespace: str, tmp_path: Path
) -> None:
    api = deployed.api()
    first = Process(command(account, *QUICK), tmp_path / "first.log")
    with first:
        first.wait_for("places the pods")
        with Process(command(account, *QUICK), tmp_path / "second.log") as second:
            second.wait_for("standing by")
            names = [f"a{i}" for i in range(20)]
            create(api, namespace, names)
            until(lambda: len(bound(api, namespace)) == 20, "20 pods bound")
            assert " -> " not in second.output(), "the replica that stands by decides nothing"
            before = bound(api, namespace)
            create(api, namespace, [f"b{i}" for i in range(40)])
            first.kill()  # as a crash: with binds on their way, and the lease still held
            killed = time.monotonic()
            create(api, namespace, [f"c{i}" for i in range(20)])
            until(lambda: len(bound(api, namespace)) == 80, "all 80 pods bound")
            print(f"all bound {time.monotonic() - killed:.1f} s after the leader was killed (lease of 4 s)")
            after = bound(api, namespace)
            assert {name: after[name] for name in before} == before, "no pod moves"
            until(lambda: sum(events(api, namespace, "Scheduled").values()) > 20, "events of the second")
            assert second.stop() == 0
            assert max(events(api, namespace, "Scheduled").values()) == 1, "no pod is bound twice"
            assert "conflict" not in second.output()


def test_a_leader_that_loses_its_lease_ends_with_an_error(deployed: KwokCluster, account: Path, tmp_path: Path) -> None:
    api, path = deployed.api(), f"/apis/coordination.k8s.io/v1/namespaces/aaml/leases/{NAME}"
    with Process(command(account, *QUICK), tmp_path / "robbed.log") as scheduler:
        scheduler.wait_for("places the pods")
        for _ in range(20):  # it renews meanwhile
            lease = json.loads(api.request("GET", path))
            lease["spec"]["holderIdentity"] = "thief"
            try:
                api.request("PUT", path, lease)
                break
            except ApiError as error:
                if error.status != 409:
                    raise
        assert scheduler.process.wait(60) == 1
        assert "lost to thief" in scheduler.output()
    lease = json.loads(api.request("GET", path))
    assert lease["spec"]["holderIdentity"] == "thief", "what is not ours is not given up"
    api.request("PUT", path, lease | {"spec": {"holderIdentity": ""}})


def test_pods_are_preempted_once_the_account_may_delete_them(
    deployed: KwokCluster, account: Path, namespace: str, tmp_path: Path
) -> None:
    """Under the plain rules an important pod waits; under those of scheduler-preemption the same process makes room."""
    api, classes = deployed.api(), "/apis/scheduling.k8s.io/v1/priorityclasses"
    plain = rules(account)
    here = {"nodeSelector": {"kubernetes.io/hostname": "kwok-std-node-4"}}
    api.request("POST", classes, {"metadata": {"name": "rbac-important"}, "value": 1000})
    try:
        with Process(command(account), tmp_path / "scheduler.log") as scheduler:
            scheduler.wait_for("places the pods")
            api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod("low", "60", schedulerName=NAME, **here))
            until(lambda: "low" in bound(api, namespace), "the first pod bound")
            vip = pod("vip", "60", schedulerName=NAME, priorityClassName="rbac-important", **here)
            api.request("POST", f"/api/v1/namespaces/{namespace}/pods", vip)
            scheduler.wait_for("scheduling goes on without preemption")
            create(api, namespace, ["next"])
            until(lambda: "next" in bound(api, namespace), "a pod that fits bound")
            assert set(bound(api, namespace)) == {"low", "next"}
            apply(deployed, "scheduler-preemption")
            until(lambda: set(bound(api, namespace)) == {"vip", "next"}, "the important pod in the other one's place")
            assert scheduler.output().count("scheduling goes on without preemption") == 1
            assert scheduler.stop() == 0
        more = {("delete", "pods", ""), ("list", "poddisruptionbudgets", ""), ("watch", "poddisruptionbudgets", "")}
        assert rules(account) == plain | more
    finally:
        apply(deployed, "scheduler")
        api.request("DELETE", f"{classes}/rbac-important")
