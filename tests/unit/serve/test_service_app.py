"""The HTTP service as its clients see it: answers, limits, refusals, and a fuzz run from its own OpenAPI document."""

import json
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from aaml import threads
from aaml.cluster.objects import GpuRequest, Node, Pod
from aaml.cluster.state import ClusterState
from aaml.commands.serve import Args, run
from aaml.errors import UserError
from aaml.evaluation.policies import load_policy
from aaml.policies.formula_file import save_formula
from aaml.policies.formulas.policy import Formula
from aaml.policies.formulas.text import parse
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision
from aaml.serve.app import Access, create_app
from aaml.serve.health import HealthServer
from aaml.serve.listen import PatientServer
from aaml.serve.metrics import Metrics
from aaml.serve.service import SchedulingService, spread
from support.kwok import until

BIND = {"podName": "p", "podNamespace": "default", "podUID": "u", "node": "n1"}


class MostFree:
    """Grades a node by its free CPU."""

    name = "most-free"

    def scores(self, context: Context) -> np.ndarray:
        return (context.state.allocatable[:, 0] - context.state.requested[:, 0]).astype(float)

    def act(self, context: Context) -> Decision:
        return Decision(int(np.where(context.mask, self.scores(context), -np.inf).argmax()))


class View:
    """Three nodes of 1, 2 and 3 CPUs; a pod passes where its CPU fits."""

    def __init__(self) -> None:
        self.state = ClusterState(Node(f"n{i}", {"cpu": 1000 * i, "pods": 9}) for i in (1, 2, 3))
        self.bound: list[tuple[str, str]] = []

    def refresh(self) -> None:
        pass

    def feasible(self, pod: Pod) -> np.ndarray:
        return self.state.allocatable[:, 0] >= pod.request("cpu")

    def failures(self, pod: Pod) -> dict[str, tuple[str, bool]]:
        failed = np.flatnonzero(~self.feasible(pod))
        return {self.state.names[node_index]: ("Insufficient cpu", node_index != 0) for node_index in failed}

    def bind_now(self, namespace: str, name: str, uid: str, node_name: str) -> str:
        self.bound.append((name, node_name))
        return "" if node_name in self.state.index else f"node {node_name} not found"


def pod_json(cpu: str = "1500m", **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
    return {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": {"containers": containers, **spec}}


def node_json(name: str, cpu: str, memory: str = "4Gi") -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "10"}}}


def service(view: View | None, policy: str = "", expected: Sequence[Pod] = ()) -> SchedulingService:
    made = make_policy(policy, PolicyOptions(expected=expected)) if policy else MostFree()
    return SchedulingService(made, view)


@pytest.fixture
def view() -> View:
    return View()


@pytest.fixture
def client(view: View) -> TestClient:
    return TestClient(create_app(service(view), Metrics(), binds=True))


def test_filter_keeps_what_fits_and_says_why_the_rest_does_not(client: TestClient) -> None:
    body = {"pod": pod_json("2500m"), "nodenames": ["n1", "n2", "n3", "new"]}
    reply = client.post("/filter", json=body).json()
    assert reply["nodenames"] == ["n3"]
    assert reply["failedNodes"] == {"n2": "Insufficient cpu", "new": "node is not known yet"}
    assert reply["failedAndUnresolvableNodes"] == {"n1": "Insufficient cpu"}


def test_prioritize_scores_0_to_10_with_one_best(client: TestClient) -> None:
    reply = client.post("/prioritize", json={"pod": pod_json(), "nodenames": ["n3", "n1", "n2", "new"]}).json()
    assert reply == [
        {"host": "n3", "score": 10},
        {"host": "n1", "score": 0},
        {"host": "n2", "score": 5},
        {"host": "new", "score": 0},
    ]


def test_names_are_read_as_kube_scheduler_writes_them(client: TestClient, view: View) -> None:
    reply = client.post("/filter", json={"Pod": pod_json("2500m"), "Nodes": None, "NodeNames": ["n1", "n2", "n3"]})
    assert reply.json()["nodenames"] == ["n3"]
    bound = client.post("/bind", json={"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n1"})
    assert (bound.status_code, bound.json()) == (200, {})


def test_full_nodes_are_understood_too(client: TestClient) -> None:
    nodes = {"items": [node_json("n1", "1"), node_json("n3", "3")]}
    reply = client.post("/filter", json={"pod": pod_json("2"), "nodes": nodes}).json()
    assert [item["metadata"]["name"] for item in reply["nodes"]["items"]] == ["n3"]


def test_bind_reports_success_and_failure(client: TestClient, view: View) -> None:
    assert client.post("/bind", json=BIND).json() == {}
    assert client.post("/bind", json=BIND | {"node": "gone"}).json() == {"error": "node gone not found"}
    assert view.bound == [("p", "n1"), ("p", "gone")]


def test_posted_nodes_are_scored_with_the_pods_that_run_there() -> None:
    client = TestClient(create_app(service(None), Metrics()))
    body: dict[str, Any] = {"pod": pod_json("1"), "nodes": [node_json("a", "4"), node_json("b", "3")]}
    assert client.post("/score", json=body).json() == {"scores": {"a": 100, "b": 0}}
    body["pods"] = [pod_json("2", nodeName="a") | {"metadata": {"name": "q", "uid": "v"}}]
    assert client.post("/score", json=body).json() == {"scores": {"a": 0, "b": 100}}


def test_a_formula_is_served(tmp_path: Path) -> None:
    path = tmp_path / "emptiest.formula"
    save_formula(Formula(parse("-node.cpu_used - 0.001 * pair.cpu_after")), path)
    policy = load_policy(str(path))
    served = SchedulingService(policy, None)
    client = TestClient(create_app(served, Metrics()))
    body: dict[str, Any] = {"pod": pod_json("1"), "nodes": [node_json("a", "4"), node_json("b", "3")]}
    assert client.post("/score", json=body).json() == {"scores": {"a": 100, "b": 0}}
    body["pods"] = [pod_json("2", nodeName="a") | {"metadata": {"name": "q", "uid": "v"}}]
    assert client.post("/score", json=body).json() == {"scores": {"a": 0, "b": 100}}


def running(name: str, node: str, cpu: str, memory: str = "1Gi") -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]
    return {"metadata": {"name": name, "uid": name}, "spec": {"containers": containers, "nodeName": node}}


def test_kube_schedulers_own_sums_are_served_the_same_for_every_request() -> None:
    client = TestClient(create_app(service(None, "kube-scheduler"), Metrics()))
    nodes = [node_json(name, "4", "8Gi") for name in ("a", "b", "c", "d")]
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": running("p", "", "1")["spec"]}
    body = {"pod": pod, "nodes": nodes, "pods": [running("q", "b", "2"), running("r", "c", "1")]}
    # TaintToleration: 3 * 100 to each node. LeastAllocated: a and d (75 + 87) / 2, b (25 + 75) / 2, c (50 + 75) / 2.
    # BalancedAllocation: a and d 71, b 72, c 72. Sums 452, 422, 434, 452: from 0 to 100 that is 100, 0, 40, 100.
    for _ in range(4):
        assert client.post("/score", json=body).json() == {"scores": {"a": 100, "b": 0, "c": 40, "d": 100}}


OWN = """
from aaml.scheduling.ports import Decision
def raises(context):
    return context.nothing
def short(context):
    return [1.0]
def words(context):
    return ["a"] * len(context.mask)
class Away:
    name = "away"
    def act(self, context):
        return Decision(-1)
class Ranks(Away):
    def scores(self, context):
        return [1.0]
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "own.py, line 4: AttributeError: 'Context' object has no attribute 'nothing'"),
        ("short", "the score has shape (1,), expected (3,)"),
        ("Ranks", "scores of shape [1] for 3 nodes"),
        ("words", "could not convert string to float: 'a'"),
        ("Away", "chose node -1 of 3"),
    ],
)
def test_a_policy_that_fails_is_answered_counted_and_logged_in_a_line(
    name: str, said: str, view: View, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    policy, metrics = load_policy(f"{tmp_path / 'own.py'}:{name}"), Metrics()
    served = SchedulingService(policy, view)
    client = TestClient(create_app(served, metrics), raise_server_exceptions=True)
    answer = client.post("/prioritize", json={"pod": pod_json(), "nodenames": ["n1", "n2"]})
    assert (answer.status_code, answer.json()) == (500, {"error": f"policy {policy.name}: {said}"})
    assert f"/prioritize: policy {policy.name}: {said}" in caplog.messages
    assert b'aaml_http_requests_total{endpoint="/prioritize",status="500"} 1.0' in metrics.text()


def test_a_policy_that_fails_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(UserError, match=r"own.py:raises: line 4: AttributeError"):
        run(Args(policy=f"{tmp_path / 'own.py'}:raises", cluster=False, port=0))


def test_a_policy_that_only_chooses_gives_its_choice_the_highest_score() -> None:
    client = TestClient(create_app(service(None, "round-robin"), Metrics()))
    body = {"pod": pod_json("1"), "nodes": [node_json("a", "4"), node_json("b", "3")]}
    assert client.post("/score", json=body).json() == {"scores": {"a": 100, "b": 0}}
    assert client.post("/score", json=body).json() == {"scores": {"a": 0, "b": 100}}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "expected-pods: none; expected an openb trace or a file of pods, as policy fgd weighs"),
        ("FOLDER/plain.yaml", "expected-pods: no pod with a GPU in FOLDER/plain.yaml; expected an openb trace"),
        ("FOLDER/missing.csv", "path: 'FOLDER/missing.csv' is not accepted"),
    ],
)
def test_fgd_is_not_served_without_pods_to_expect(given: str | None, words: str, tmp_path: Path) -> None:
    plain = {"apiVersion": "v1", "kind": "Pod", **pod_json("1")}
    (tmp_path / "plain.yaml").write_text(json.dumps(plain), encoding="utf-8")
    asked = None if given is None else given.replace("FOLDER", str(tmp_path))
    with pytest.raises(UserError) as refused:
        run(Args(policy="fgd", cluster=False, port=0, expected_pods=asked))
    assert words.replace("FOLDER", str(tmp_path)) in str(refused.value)


def simulated(name: str, *devices: int) -> dict[str, Any]:
    """A node as the GPU-sharing simulator posts it; `devices`: the thousandths of each that are in use by shares."""
    amounts = {"cpu": "96", "memory": "384Gi", "pods": "1001"}
    amounts |= {"alibabacloud.com/gpu-count": str(len(devices)), "alibabacloud.com/gpu-milli": "1000"}
    metadata: dict[str, Any] = {"name": name, "creationTimestamp": None}
    metadata["labels"] = {"alibabacloud.com/gpu-card-model": "T4", "kubernetes.io/hostname": name}
    if any(devices):  # the simulator writes the annotation with the first pod of a node
        brief = {
            str(index): {"Idx": index, "Model": "T4", "PodList": [f"default/p{index}"] if used else None,
                         "GpuUsedMilli": used}
            for index, used in enumerate(devices)
        }  # fmt: skip
        share = {"DevsBrief": brief, "GpuCount": len(devices), "GpuModel": "T4", "GpuUsedMilli": sum(devices)}
        metadata["annotations"] = {"simon/node-gpu-share": json.dumps(share | {"NumPods": sum(map(bool, devices))})}
    return {"metadata": metadata, "spec": {}, "status": {"capacity": amounts, "allocatable": amounts}}


def share_json() -> dict[str, Any]:
    """A pod that asks for half a GPU, as the GPU-sharing simulator posts it."""
    pod = pod_json("4")
    annotations = {"alibabacloud.com/gpu-count": "1", "alibabacloud.com/gpu-milli": "500"}
    pod["metadata"] |= {"creationTimestamp": None, "annotations": annotations}
    return pod


@pytest.mark.parametrize(
    ("policy", "scores"),
    [
        # An unused node: max(33 - 2, 2) = 31. A free device of a used node: 50 - 1 = 49. A device with 700 left, as
        # the fuller of two: 100 - 70 / 10 = 93. And one with 500 left: 95. From 31 to 95 that is:
        ("gpu-packing", {"unused": 0, "new-device": 28, "shared": 96, "fitting": 100}),
        # Base scores of 2000, 1400, 1700 and 1500 free thousandths of 8000: 18, 20, 19, 20; 25 more where no GPU pod
        # runs and 75 more where shares do. From 43 to 95 that is:
        ("gpu-clustering", {"unused": 0, "new-device": 100, "shared": 98, "fitting": 100}),
    ],
)
def test_the_gpu_sharing_simulator_is_told_about_the_devices_that_its_pods_use(
    policy: str, scores: dict[str, int]
) -> None:
    client = TestClient(create_app(service(None, policy), Metrics()))
    nodes = [simulated("unused", 0, 0), simulated("new-device", 600, 0), simulated("shared", 300, 0),
             simulated("fitting", 0, 500)]  # fmt: skip
    assert client.post("/score", json={"pod": share_json(), "nodes": nodes}).json() == {"scores": scores}


def test_fgd_scores_by_the_pods_to_expect() -> None:
    # Whole devices are expected. Half of an unused one makes the other half a fragment: 100 s(-0.5) = 38; the pod on
    # the half that is left of a device mends one: 100 s(0.5) = 62.
    expected = [Pod("e", requests={"cpu": 1000}, gpu=GpuRequest(1, 1000))]
    client = TestClient(create_app(service(None, "fgd", expected), Metrics()))
    nodes = [simulated("unused", 0), simulated("half", 500, 0), simulated("other", 0, 0)]
    body = {"pod": share_json(), "nodes": nodes}
    assert client.post("/score", json=body).json() == {"scores": {"unused": 0, "half": 100, "other": 0}}


def test_posted_nodes_are_no_part_of_the_watched_cluster(view: View) -> None:
    # The watched node changes until both clusters, this one and that of four posted nodes, have changed four times.
    view.state = ClusterState([Node("watched", {"cpu": 1000, "memory": 1 << 32, "pods": 9})])
    for version in "123":
        view.state.upsert_node(Node("watched", {"cpu": 1000, "memory": 1 << 32, "pods": 9}, {"version": version}))
    nodes = [node_json(name, cpu) for name, cpu in (("small", "2"), ("b", "8"), ("c", "16"), ("large", "64"))]
    prioritize = ("/prioritize", {"pod": pod_json("500m"), "nodenames": ["watched"]})
    score = ("/score", {"pod": pod_json("500m"), "nodes": nodes})
    answers = []
    for requests in ((prioritize, score), (score, prioritize)):
        client = TestClient(create_app(service(view, "kube-scheduler"), Metrics()))
        answers.append({path: client.post(path, json=body).json() for path, body in requests})
    assert answers[0] == answers[1]
    assert answers[0]["/score"]["scores"]["small"] == 0
    assert answers[0]["/score"]["scores"]["large"] == 100


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/score", b"{", 400, "body"),
        ("/score", b'{"pod": {}, "nodes": 3}', 400, "Expected `array`"),
        ("/score", json.dumps({"pod": pod_json("1 litre"), "nodes": []}).encode(), 422, "1 litre"),
        ("/score", json.dumps({"pod": pod_json(), "nodes": [node_json("a", "1")] * 2}).encode(), 422, "must differ"),
        ("/score", json.dumps({"pod": pod_json(), "nodes": [], "pods": [pod_json(nodeName="x")]}).encode(), 422, "'x'"),
        ("/score", json.dumps({"pod": pod_json(), "nodes": [simulated("a", 1001)]}).encode(), 422, "1001"),
        ("/filter", json.dumps({"pod": pod_json()}).encode(), 422, "nodenames"),
        ("/score", b"[" * 100_000, 400, "body"),
        ("/bind", b'{"podName": "p"}', 400, "podnamespace"),
        *(
            ("/bind", json.dumps(BIND | {field: name}).encode(), 400, f"$.{field.lower()}")
            for field in ("podName", "podNamespace", "node")
            for name in ("", "../../nodes/n1", "p/status?x=", "a b", "p" * 254)
        ),
    ],
)
def test_bad_input_gets_one_line(client: TestClient, path: str, body: bytes, status: int, words: str) -> None:
    reply = client.post(path, content=body)
    assert reply.status_code == status
    assert words in reply.json()["error"]
    assert "\n" not in reply.json()["error"]


def test_large_bodies_are_refused_declared_or_not(view: View) -> None:
    client = TestClient(create_app(service(view), Metrics(), max_body_bytes=100))
    assert client.post("/score", content=b"x" * 101).status_code == 413
    assert client.post("/score", content=(b"x" * 60 for _ in range(2))).status_code == 413


def test_a_token_guards_all_but_the_probes(view: View) -> None:
    client = TestClient(create_app(service(view), Metrics(), access=Access(token="secret")))
    assert client.get("/healthz").status_code == 200
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer secret"}).status_code == 200
    refused = client.post("/prioritize", json={"pod": pod_json(), "nodenames": []})
    assert refused.status_code == 401
    assert "secret" not in refused.text


def test_it_is_ready_and_metrics_count(client: TestClient) -> None:
    assert client.get("/readyz").status_code == 200
    client.post("/filter", json={"pod": pod_json(), "nodenames": ["n3"]})
    assert 'aaml_http_requests_total{endpoint="/filter",status="200"} 1.0' in client.get("/metrics").text


def test_without_a_cluster_the_extender_says_so() -> None:
    client = TestClient(create_app(service(None), Metrics()))
    reply = client.post("/prioritize", json={"pod": pod_json(), "nodenames": ["a"]})
    assert (reply.status_code, "none is watched" in reply.json()["error"]) == (422, True)


@example([1.7976931348623157e308, -9.9792015476736e291], False)
@given(st.lists(st.floats(allow_nan=True), max_size=20), st.booleans())
def test_scaled_scores_stay_in_range_and_keep_the_best(scores: list[float], unique: bool) -> None:
    scaled = spread(np.array(scores), 10, unique=unique)
    assert all(0 <= value <= 10 for value in scaled)
    finite = [value for value in scores if np.isfinite(value)]
    if finite and len(finite) == len(scores):
        assert scaled[int(np.argmax(scores))] == 10


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(["/filter", "/prioritize", "/bind", "/score"]), st.binary(max_size=300))
def test_hostile_bytes_never_make_an_error_of_the_server(path: str, body: bytes) -> None:
    client = TestClient(create_app(service(View()), Metrics(), binds=True), raise_server_exceptions=True)
    assert 400 <= client.post(path, content=body).status_code < 500


schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(service(View()), Metrics(), binds=True))


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_service_keeps_its_own_openapi_document(case: schemathesis.Case) -> None:
    # Two checks do not apply: a v1.Pod that obeys the schema can still hold an impossible quantity (422), and a part
    # that is not read (full nodes beside nodenames, a label) is not judged.
    names = ("positive_data_acceptance", "negative_data_rejection")
    case.call_and_validate(excluded_checks=[schemathesis.checks.CHECKS.get_one(name) for name in names])


class Binding(View):
    """Binds when it is told to go on, as an API server that is busy does."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.turns = 0

    def refresh(self) -> None:
        self.turns += 1
        if self.turns == 1000:
            raise ZeroDivisionError("in taking in what happened")

    def bind_now(self, namespace: str, name: str, uid: str, node_name: str) -> str:
        self.begun.set()
        self.go_on.wait(30)
        return super().bind_now(namespace, name, uid, node_name)


BIND = {"podName": "p", "podNamespace": "default", "podUID": "u", "node": "n1"}


def test_a_bind_that_takes_its_time_holds_up_no_probe_and_no_score() -> None:
    view, answers = Binding(), []
    with HealthServer("127.0.0.1", 0, create_app(service(view), Metrics(), binds=True)) as server:
        where = f"http://127.0.0.1:{server.port}"
        asking = threading.Thread(target=lambda: answers.append(httpx.post(f"{where}/bind", json=BIND, timeout=30)))
        asking.start()
        try:
            assert view.begun.wait(30)
            assert httpx.get(f"{where}/healthz", timeout=10).text == "ok"
            asked = {"pod": pod_json(), "nodenames": ["n1"]}
            assert httpx.post(f"{where}/prioritize", json=asked, timeout=10).status_code == 200
            assert not answers
        finally:
            view.go_on.set()
            asking.join(30)
    assert answers[0].json() == {}


def test_all_bodies_together_have_a_bound(view: View) -> None:
    """Four clients that have sent nearly all of a large body, and then one that asks in earnest."""
    app = create_app(service(view), Metrics(), max_body_bytes=10_000)
    with HealthServer("127.0.0.1", 0, app) as server:
        slow = []
        for _ in range(5):
            client = socket.create_connection(("127.0.0.1", server.port))
            client.sendall(b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10000\r\n\r\n" + b" " * 9900)
            slow.append(client)
        where = f"http://127.0.0.1:{server.port}"
        body = {"pod": pod_json(), "nodes": [node_json("n1", "4")], "pad": "x" * 4000}
        until(lambda: httpx.post(f"{where}/score", json=body).status_code == 503, "a refusal")
        assert httpx.get(f"{where}/healthz").text == "ok"
        for client in slow:
            client.close()
        until(lambda: httpx.post(f"{where}/score", json=body).status_code == 200, "an answer")


def test_who_serves_takes_in_what_happens_while_nobody_asks() -> None:
    """Else it would keep all that a cluster tells, and answer its first question from a state of long ago."""
    view = Binding()
    server = PatientServer(create_app(service(view), Metrics()), turn=service(view).refresh)
    with socket.create_server(("127.0.0.1", 0)) as there, threads.Background(lambda: server.run([there]), "serve"):
        until(lambda: view.turns >= 2, "two turns")
        server.should_exit = True


def test_an_error_in_taking_in_what_happens_ends_the_service() -> None:
    view = Binding()
    view.turns = 999
    server = PatientServer(create_app(service(view), Metrics()), turn=service(view).refresh)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(ZeroDivisionError):
        server.run([listener])
