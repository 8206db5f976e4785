"""The HTTP service as its clients see it: answers, limits, refusals, and a fuzz run from its own OpenAPI document."""

import json
from typing import Any

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from aaml.cluster.objects import Node, Pod
from aaml.cluster.state import ClusterState
from aaml.kube.convert import node_from_json, pod_from_json
from aaml.scheduling.observation import Context, Featurizer
from aaml.scheduling.ports import Decision
from aaml.serve.app import create_app
from aaml.serve.metrics import Metrics
from aaml.serve.service import Readers, SchedulingService, spread


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
        self.synced = True
        self.bound: list[tuple[str, str]] = []

    def refresh(self) -> None:
        pass

    def feasible(self, pod: Pod) -> np.ndarray:
        return self.state.allocatable[:, 0] >= pod.request("cpu")

    def failures(self, pod: Pod) -> dict[str, tuple[str, bool]]:
        failed = np.flatnonzero(~self.feasible(pod))
        return {self.state.names[row]: ("Insufficient cpu", row != 0) for row in failed}

    def bind_now(self, namespace: str, name: str, uid: str, node_name: str) -> str:
        self.bound.append((name, node_name))
        return "" if node_name in self.state.index else f"node {node_name} not found"


def pod_json(cpu: str = "1500m", **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
    return {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": {"containers": containers, **spec}}


def node_json(name: str, cpu: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "memory": "4Gi", "pods": "10"}}}


def service(view: View | None) -> SchedulingService:
    return SchedulingService(MostFree(), Readers(pod_from_json, node_from_json), Featurizer(), view)


@pytest.fixture
def view() -> View:
    return View()


@pytest.fixture
def client(view: View) -> TestClient:
    return TestClient(create_app(service(view), Metrics()))


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
    args = {"podName": "p", "podNamespace": "default", "podUID": "u", "node": "n1"}
    assert client.post("/bind", json=args).json() == {}
    assert client.post("/bind", json=args | {"node": "gone"}).json() == {"error": "node gone not found"}
    assert view.bound == [("p", "n1"), ("p", "gone")]


def test_posted_nodes_are_scored_with_the_pods_that_run_there() -> None:
    client = TestClient(create_app(service(None), Metrics()))
    body: dict[str, Any] = {"pod": pod_json("1"), "nodes": [node_json("a", "4"), node_json("b", "3")]}
    assert client.post("/score", json=body).json() == {"scores": {"a": 100, "b": 0}}
    body["pods"] = [pod_json("2", nodeName="a") | {"metadata": {"name": "q", "uid": "v"}}]
    assert client.post("/score", json=body).json() == {"scores": {"a": 0, "b": 100}}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/score", b"{", 400, "body"),
        ("/score", b'{"pod": {}, "nodes": 3}', 400, "Expected `array`"),
        ("/score", json.dumps({"pod": pod_json("1 litre"), "nodes": []}).encode(), 422, "1 litre"),
        ("/score", json.dumps({"pod": pod_json(), "nodes": [node_json("a", "1")] * 2}).encode(), 422, "must differ"),
        ("/score", json.dumps({"pod": pod_json(), "nodes": [], "pods": [pod_json(nodeName="x")]}).encode(), 422, "'x'"),
        ("/filter", json.dumps({"pod": pod_json()}).encode(), 422, "nodenames"),
        ("/score", b"[" * 100_000, 400, "body"),
        ("/bind", b'{"podName": "p"}', 400, "podnamespace"),
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
    client = TestClient(create_app(service(view), Metrics(), token="secret"))
    assert client.get("/healthz").status_code == 200
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer secret"}).status_code == 200
    refused = client.post("/prioritize", json={"pod": pod_json(), "nodenames": []})
    assert refused.status_code == 401
    assert "secret" not in refused.text


def test_readiness_follows_the_watch_cache_and_metrics_count(client: TestClient, view: View) -> None:
    assert client.get("/readyz").status_code == 200
    view.synced = False
    assert client.get("/readyz").status_code == 503
    client.post("/filter", json={"pod": pod_json(), "nodenames": ["n3"]})
    assert 'aaml_http_requests_total{endpoint="/filter",status="200"} 1.0' in client.get("/metrics").text


def test_without_a_cluster_the_extender_says_so() -> None:
    client = TestClient(create_app(service(None), Metrics()))
    reply = client.post("/prioritize", json={"pod": pod_json(), "nodenames": ["a"]})
    assert (reply.status_code, "none is watched" in reply.json()["error"]) == (422, True)


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
    client = TestClient(create_app(service(View()), Metrics()), raise_server_exceptions=True)
    assert 400 <= client.post(path, content=body).status_code < 500


schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(service(View()), Metrics()))


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_service_keeps_its_own_openapi_document(case: schemathesis.Case) -> None:
    # Two checks do not apply: a v1.Pod that obeys the schema can still hold an impossible quantity (422), and a part
    # that is not read (full nodes beside nodenames, a label) is not judged.
    names = ("positive_data_acceptance", "negative_data_rejection")
    case.call_and_validate(excluded_checks=[schemathesis.checks.CHECKS.get_one(name) for name in names])
