"""The real API server, and what goes wrong with it: nothing is lost, bound twice or forgotten."""

import json
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from aaml.cluster import audit
from aaml.cluster.fleet import NodeShape, node, registered
from aaml.errors import UserError
from aaml.kube.cluster import KubeCluster, LiveOptions
from aaml.kube.objects.manifest import node_to_json
from aaml.kube.provision import KwokCluster
from aaml.kube.transport import Transport
from aaml.policies.registry import make_policy, make_reward
from aaml.scheduling.observation import Context
from aaml.scheduling.play import Stats, play
from aaml.scheduling.ports import Decision, Transition
from support.kwok import answers, pod, pods, until
from support.live_scheduler import LiveScheduler, Results, result_of, take

SCHEDULER = "aaml-failures"
PATIENT = LiveOptions(sync_s=30.0, close_s=30.0)


def submit(api: Transport, namespace: str, names: list[str], scheduler: str = SCHEDULER, **spec: Any) -> None:
    for name in names:
        api.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod(name, schedulerName=scheduler, **spec))


def nodes_of(api: Transport, namespace: str) -> dict[str, str]:
    return {each["metadata"]["name"]: each["spec"].get("nodeName", "") for each in pods(api, namespace)}


def read(api: Transport, path: str) -> Any:
    return json.loads(api.request("GET", path))


def assert_state_is_the_clusters(scheduler: KubeCluster, api: Transport, namespace: str) -> None:
    """What the scheduler believes is what the API server says."""
    audit.check(scheduler.state)
    believed = {
        placement.pod.name: placement.node_name
        for placement in scheduler.state.pods()
        if placement.pod.namespace == namespace
    }
    assert believed == {name: node for name, node in nodes_of(api, namespace).items() if node}


@pytest.fixture
def connect(kwok: KwokCluster, namespace: str):
    made: list[KubeCluster] = []

    def make(options: LiveOptions = PATIENT, scheduler: str = SCHEDULER) -> KubeCluster:
        made.append(KubeCluster.connect(scheduler, kubeconfig=kwok.kubeconfig, options=options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def spare_node(kwok: KwokCluster):
    """Create a node with a label of its own, gone after the test; call it with the label's value."""
    api, made = kwok.api(), []

    def make(label: str) -> str:
        name = f"spare-{secrets.token_hex(4)}"
        api.request(
            "POST", "/api/v1/nodes", node_to_json(registered(node(name, NodeShape(labels=(f"spare={label}",)))))
        )
        made.append(name)
        return name

    yield make
    for name in made:
        if answers(api, f"/api/v1/nodes/{name}"):
            api.request("DELETE", f"/api/v1/nodes/{name}")


def schedulable(api: Transport, node: str) -> bool:
    return not read(api, f"/api/v1/nodes/{node}")["spec"].get("taints")


def test_an_api_server_that_crashes_and_returns(kwok: KwokCluster, namespace: str):
    """Killed among binds in flight, with more pods waiting: afterwards each pod is bound, and once."""
    api, count = kwok.api(), 150
    submit(api, namespace, [f"p{index}" for index in range(count)])
    options = LiveOptions(binds_at_once=4, close_s=30.0)  # a long queue: the server dies with much to do
    with LiveScheduler(SCHEDULER, kwok.kubeconfig, options) as scheduler:
        until(lambda: len(scheduler.bound()) >= 20, "the first binds")
        kwok.stop_component("kube-apiserver", kill=True)
        assert len(scheduler.bound()) < count, "the server died too late for this test to mean anything"
        kwok.start_component("kube-apiserver")
        until(lambda: len(scheduler.bound()) == count, "every pod reported bound")
        submit(api, namespace, ["late"])
        until(lambda: nodes_of(api, namespace)["late"], "a pod that came after the outage")
    assert set(scheduler.bound().values()) == {1}
    assert all(nodes_of(api, namespace).values())
    assert_state_is_the_clusters(scheduler.cluster, api, namespace)


def test_closing_during_an_outage_leaves_pods_to_the_next_scheduler(kwok: KwokCluster, namespace: str, connect):
    api = kwok.api()
    submit(api, namespace, ["p"])
    cluster = connect(LiveOptions(close_s=1.0))
    chosen = take(cluster)
    kwok.stop_component("kube-apiserver", kill=True)
    cluster.bind(chosen, cluster.state.index["kwok-std-node-1"])
    cluster.close()
    assert [result.status for result in cluster.results()] == ["failed"]
    kwok.start_component("kube-apiserver")
    with LiveScheduler(SCHEDULER, kwok.kubeconfig):
        until(lambda: nodes_of(api, namespace)["p"], "the pod bound by the next scheduler")


def test_a_pod_deleted_before_its_bind(kwok: KwokCluster, namespace: str, connect):
    api = kwok.api()
    cluster = connect()
    submit(api, namespace, ["p"])
    chosen = take(cluster)
    api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/p?gracePeriodSeconds=0")
    cluster.bind(chosen, cluster.state.index["kwok-std-node-1"])
    assert result_of(cluster, chosen).status == "gone"
    until(lambda: cluster.next_pod(0.1) is None and not cluster.pending_count(), "the pod forgotten")
    assert_state_is_the_clusters(cluster, api, namespace)


def test_a_new_pod_of_the_same_name_is_not_meant(kwok: KwokCluster, namespace: str, connect):
    api = kwok.api()
    cluster = connect()
    submit(api, namespace, ["p"])
    first = take(cluster)
    api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/p?gracePeriodSeconds=0")
    submit(api, namespace, ["p"], scheduler="nobody")
    cluster.bind(first, cluster.state.index["kwok-std-node-1"])
    assert result_of(cluster, first).status == "gone"
    assert nodes_of(api, namespace) == {"p": ""}


def test_another_scheduler_that_binds_first(kwok: KwokCluster, namespace: str, connect):
    api = kwok.api()
    cluster = connect()
    submit(api, namespace, ["p"])
    chosen = take(cluster)
    binding = {"metadata": {"name": "p"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "kwok-std-node-2"}}
    api.request("POST", f"/api/v1/namespaces/{namespace}/pods/p/binding", binding)
    cluster.bind(chosen, cluster.state.index["kwok-std-node-1"])
    result = result_of(cluster, chosen)
    assert (result.status, result.node_name) == ("conflict", "kwok-std-node-1")
    assert "kwok-std-node-2" in result.message
    until(lambda: cluster.next_pod(0.1) is None and not cluster.pending_count(), "the pod left to the other")
    assert_state_is_the_clusters(cluster, api, namespace)


def test_two_schedulers_of_one_name_share_the_pods(kwok: KwokCluster, namespace: str):
    """Two replicas without leader election: most binds collide, every pod is bound once and counts for one of them."""
    api, count = kwok.api(), 60
    submit(api, namespace, [f"p{index}" for index in range(count)])
    first = LiveScheduler(SCHEDULER, kwok.kubeconfig, PATIENT)
    second = LiveScheduler(SCHEDULER, kwok.kubeconfig, PATIENT)
    with first, second:
        until(lambda: all(nodes_of(api, namespace).values()), "every pod bound")
        until(lambda: not first.cluster._flights and not second.cluster._flights, "every bind answered")
        until(lambda: not first.cluster.pending_count() + second.cluster.pending_count(), "nothing waits")
    assert first.bound() + second.bound() == Counter(each["metadata"]["uid"] for each in pods(api, namespace))
    for each in (first, second):
        assert_state_is_the_clusters(each.cluster, api, namespace)


class Overtaken:
    """Chooses a node, and lets somebody else bind the pod to another one just before."""

    name = "overtaken"

    def __init__(self, api: Transport) -> None:
        self._api = api
        self.seen: list[Transition] = []

    def observation_of(self, context: Context) -> str:
        return context.pod.name

    def act(self, context: Context) -> Decision:
        first, second = np.flatnonzero(context.mask)[:2]
        pod, node = context.pod, context.state.names[second]
        binding = {"metadata": {"name": pod.name}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
        if pod.name == "wanted":
            self._api.request("POST", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/binding", binding)
        return Decision(int(first))

    def observe(self, transition: Transition) -> None:
        self.seen.append(transition)

    def learn(self) -> Mapping[str, float]:
        return {}

    def save(self, directory: str, stem: str) -> list[str]:
        return []


def test_a_bind_that_came_too_late_reaches_the_learner(kwok: KwokCluster, namespace: str, connect):
    api = kwok.api()
    cluster, learner, stats = connect(), Overtaken(api), Stats()
    for number, name in enumerate(["wanted", "free"], 1):
        submit(api, namespace, [name])
        play(
            cluster,
            learner,
            make_reward("compress"),
            learn=True,
            observers=[stats],
            stop=lambda number=number: stats.binds.total() == number,
        )
    assert stats.binds == {"conflict": 1, "bound": 1}
    late, bound = learner.seen
    assert (late.observation, late.reward) == ("wanted", -1.0)  # in an empty cluster every node is worth its use
    assert bound.observation == "free"
    assert -1.0 < bound.reward < 0.0  # an empty node was opened where a used one was to be had
    assert_state_is_the_clusters(cluster, api, namespace)


def test_a_node_deleted_while_binds_to_it_are_under_way(kwok: KwokCluster, namespace: str, connect, spare_node):
    """What was not sent yet is placed elsewhere; what the API server took stays as it says."""
    api = kwok.api()
    node = spare_node(namespace)
    until(lambda: schedulable(api, node), "the new node untainted")
    cluster = connect(LiveOptions(binds_at_once=1))
    submit(api, namespace, [f"p{index}" for index in range(12)])
    chosen = [take(cluster) for _ in range(12)]
    for each in chosen:
        cluster.bind(each, cluster.state.index[node])
    api.request("DELETE", f"/api/v1/nodes/{node}")
    seen = Results()
    play(
        cluster,
        make_policy("least-allocated"),
        observers=[seen],
        stop=lambda: all(nodes_of(api, namespace).values()),
    )
    where = nodes_of(api, namespace)
    told = {result.pod.name: result.node_name for result in seen.list if result.status == "bound"}
    assert told == where
    audit.check(cluster.state)
    assert node not in cluster.state.index


def failed_event(api: Transport, namespace: str, name: str) -> dict[str, Any] | None:
    items = read(api, f"/api/v1/namespaces/{namespace}/events")["items"]
    return next((e for e in items if e["involvedObject"]["name"] == name and e["reason"] == "FailedScheduling"), None)


def condition(api: Transport, namespace: str, name: str) -> dict[str, Any]:
    found = read(api, f"/api/v1/namespaces/{namespace}/pods/{name}")["status"].get("conditions", [])
    return next((each for each in found if each["type"] == "PodScheduled"), {})


def test_a_pod_that_fits_nowhere_says_so_as_kube_scheduler_does_and_is_tried_again(
    kwok: KwokCluster, namespace: str, spare_node: Callable[[str], str]
):
    api = kwok.api()
    with LiveScheduler(SCHEDULER, kwok.kubeconfig, PATIENT):
        wanted = {"nodeSelector": {"spare": namespace}}
        submit(api, namespace, ["ours"], **wanted)
        submit(api, namespace, ["theirs"], scheduler="default-scheduler", **wanted)
        until(lambda: failed_event(api, namespace, "ours") and failed_event(api, namespace, "theirs"), "both events")
        until(lambda: condition(api, namespace, "ours"), "the condition")
        ours, theirs = (failed_event(api, namespace, name) for name in ("ours", "theirs"))
        assert ours is not None
        assert theirs is not None
        # kube-scheduler speaks of dynamic resource allocation too, which AAML leaves out.
        assert ours["message"] == theirs["message"].replace(" no new claims to deallocate,", "")
        assert ours["type"] == theirs["type"] == "Warning"
        said, reference = condition(api, namespace, "ours"), condition(api, namespace, "theirs")
        assert (said["status"], said["reason"]) == (reference["status"], reference["reason"])
        assert said["message"] == ours["message"]
        node = spare_node(namespace)
        until(lambda: nodes_of(api, namespace)["ours"] == node, "the pod on the node that came")
        until(lambda: condition(api, namespace, "ours")["status"] == "True", "the condition of a bound pod")


def test_a_pod_too_large_waits_until_room_is_made(kwok: KwokCluster, namespace: str):
    api = kwok.api()
    with LiveScheduler(SCHEDULER, kwok.kubeconfig, PATIENT):
        path = f"/api/v1/namespaces/{namespace}/pods"
        here = {"nodeSelector": {"kubernetes.io/hostname": "kwok-std-node-3"}}
        api.request("POST", path, pod("big", "60", schedulerName=SCHEDULER, **here))
        until(lambda: nodes_of(api, namespace)["big"], "the first pod bound")
        api.request("POST", path, pod("next", "60", schedulerName=SCHEDULER, **here))
        until(lambda: failed_event(api, namespace, "next"), "the event")
        event = failed_event(api, namespace, "next")
        assert event is not None
        assert "1 Insufficient cpu" in event["message"]
        api.request("DELETE", f"{path}/big?gracePeriodSeconds=0")
        until(lambda: nodes_of(api, namespace)["next"] == "kwok-std-node-3", "the second pod bound")


def test_watches_that_are_cut_off(kwok: KwokCluster, namespace: str):
    api = kwok.api()
    with LiveScheduler(SCHEDULER, kwok.kubeconfig, PATIENT) as scheduler:
        reflectors = scheduler.cluster.reflectors
        for round_ in range(3):
            for name in ("nodes", "pods"):
                until(lambda name=name: reflectors[name]._watch is not None, "an open watch")
                reflectors[name]._watch.cut()
            submit(api, namespace, [f"p{round_}"])
            until(lambda: all(nodes_of(api, namespace).values()), "the pod bound after the cut")
    assert scheduler.cluster.reflectors["pods"].watches >= 4
    assert scheduler.cluster.reflectors["pods"].lists == 1


def test_a_gated_pod_waits_for_its_gates(kwok: KwokCluster, namespace: str, connect):
    api = kwok.api()
    cluster = connect()
    submit(api, namespace, ["gated"], schedulingGates=[{"name": "example.com/hold"}])
    submit(api, namespace, ["open"])
    assert take(cluster).name == "open"
    assert cluster.next_pod(0.5) is None
    patch = [{"op": "remove", "path": "/spec/schedulingGates"}]
    api.request(
        "PATCH", f"/api/v1/namespaces/{namespace}/pods/gated", patch, content_type="application/json-patch+json"
    )
    assert take(cluster).name == "gated"


def test_a_dry_run_decides_once_and_writes_nothing(kwok: KwokCluster, namespace: str):
    api = kwok.api()
    submit(api, namespace, ["p", "q"], scheduler="nobody-else")
    submit(api, namespace, ["r"], scheduler="nobody-else", nodeSelector={"spare": "none"})
    options = LiveOptions(dry_run=True, dry_run_wait_s=0.5)  # no other scheduler comes
    with LiveScheduler("nobody-else", kwok.kubeconfig, options) as scheduler:
        until(lambda: len(scheduler.results) == 2, "two decisions")
        submit(api, namespace, ["s"], scheduler="nobody-else")
        until(lambda: len(scheduler.results) == 3, "the third")
    assert {result.status for result in scheduler.results} == {"shadow"}
    assert set(nodes_of(api, namespace).values()) == {""}
    assert failed_event(api, namespace, "r") is None
    assert scheduler.cluster.state.requested.sum() == sum(
        scheduler.cluster.state.request_vector(each.pod).sum() for each in scheduler.cluster.state.pods()
    )


def test_a_shadow_beside_the_default_scheduler_decides_on_every_pod_that_it_places(kwok: KwokCluster, namespace: str):
    api, count = kwok.api(), 20
    options = LiveOptions(dry_run=True, namespaces=(namespace,))
    with LiveScheduler("default-scheduler", kwok.kubeconfig, options) as scheduler:
        submit(api, namespace, [f"p{index}" for index in range(count)], scheduler="default-scheduler")
        until(lambda: len(scheduler.results) == count, "a decision on each pod")
        until(lambda: all(nodes_of(api, namespace).values()), "each pod bound by kube-scheduler")
    assert {result.status for result in scheduler.results} == {"shadow"}


def test_stop_from_another_thread_ends_a_wait(connect):
    cluster = connect()
    threading.Timer(0.2, cluster.stop).start()
    assert cluster.next_pod(3600.0) is None
    cluster.close()
    cluster.close()


class TestClearLines:
    """What a person reads when there is no cluster to speak to."""

    def message(self, **connection: Any) -> str:
        with pytest.raises(UserError) as error:
            KubeCluster.connect(SCHEDULER, **connection)
        assert "\n" not in str(error.value)
        return str(error.value)

    def edited(self, kwok: KwokCluster, tmp_path: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
        document = yaml.safe_load(kwok.kubeconfig.read_text())
        edit(document)
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    def test_nobody_listens(self):
        assert "Connection refused" in self.message(server="http://127.0.0.1:1")

    def test_no_such_kubeconfig(self, tmp_path: Path):
        assert "does not exist" in self.message(kubeconfig=tmp_path / "none")

    def test_no_such_context(self, kwok: KwokCluster):
        assert "elsewhere" in self.message(kubeconfig=kwok.kubeconfig, context="elsewhere")

    def test_a_file_that_is_no_kubeconfig(self, tmp_path: Path):
        path = tmp_path / "text"
        for content in ("just text", "{", "- 1", "", "\x00\x01"):
            path.write_text(content)
            assert "kubeconfig" in self.message(kubeconfig=path)

    def test_credentials_that_the_server_refuses(self, kwok: KwokCluster, tmp_path: Path):
        def edit(document: dict[str, Any]) -> None:
            document["users"][0]["user"] = {"token": "wrong"}

        assert "401" in self.message(kubeconfig=self.edited(kwok, tmp_path, edit))

    def test_a_user_without_rights(self, kwok: KwokCluster, namespace: str, tmp_path: Path):
        api = kwok.api()
        request = api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token", {"spec": {}})
        token = json.loads(request)["status"]["token"]

        def edit(document: dict[str, Any]) -> None:
            document["users"][0]["user"] = {"token": token}

        said = self.message(kubeconfig=self.edited(kwok, tmp_path, edit))
        assert "this account may not list nodes, watch nodes, list pods, watch pods, create pods/binding" in said

    def test_the_server_of_another_cluster(self, kwok: KwokCluster, tmp_path: Path):
        def edit(document: dict[str, Any]) -> None:
            del document["clusters"][0]["cluster"]["certificate-authority-data"]

        assert "TLS" in self.message(kubeconfig=self.edited(kwok, tmp_path, edit))

    def test_plain_http_to_a_tls_port(self, kwok: KwokCluster):
        port = kwok.api().server.rpartition(":")[2]
        assert "400" in self.message(server=f"http://127.0.0.1:{port}")

    def test_an_api_server_that_is_down(self, kwok: KwokCluster, namespace: str):
        kwok.stop_component("kube-apiserver", kill=True)
        assert "no Kubernetes API answers" in self.message(kubeconfig=kwok.kubeconfig)
