"""Posted objects as a cluster state: device use as the GPU-sharing simulator writes it on its nodes."""

import json
from typing import Any

import pytest

from aaml.cluster import audit
from aaml.errors import UserError
from aaml.kube.state_from_objects import state_from_objects

POD_OF_A_SHARE = {"alibabacloud.com/gpu-count": "1", "alibabacloud.com/gpu-milli": "400"}


def node(name: str, devices: dict[int, tuple[int, list[str] | None]] | None = None, gpus: int = 4) -> bytes:
    """A node as Go writes it; `devices`: index -> (thousandths in use, the pods that use them)."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "1001", "alibabacloud.com/gpu-count": str(gpus)}
    metadata: dict[str, Any] = {"name": name, "creationTimestamp": None}
    if devices is not None:
        brief = {
            str(index): {"Idx": index, "Model": "T4", "PodList": pods, "GpuUsedMilli": used}
            for index, (used, pods) in devices.items()
        }
        numbers = {"GpuUsedMilli": sum(used for used, _ in devices.values()), "NumPods": 1}
        share = {"DevsBrief": brief, "GpuCount": gpus, "GpuModel": "T4", **numbers}
        metadata["annotations"] = {"simon/node-gpu-share": json.dumps(share)}
    status = {"capacity": amounts, "allocatable": amounts, "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}}
    return json.dumps({"metadata": metadata, "spec": {}, "status": status}).encode()


def pod(name: str, on: str, **annotations: str) -> bytes:
    metadata = {"name": name, "namespace": "default", "uid": name, "annotations": {**POD_OF_A_SHARE, **annotations}}
    containers = [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]
    return json.dumps({"metadata": metadata, "spec": {"nodeName": on, "containers": containers}}).encode()


def test_devices_are_in_use_as_the_annotation_says() -> None:
    whole = ["default/whole"]
    devices = {0: (300, ["default/a", "default/b"]), 1: (1000, whole), 2: (1000, whole), 3: (0, None)}
    state = state_from_objects([node("used", devices), node("new")])
    assert state.gpu_free.tolist() == [[700, 0, 0, 1000], [1000] * 4]
    requests = sorted((each.gpu.count, each.gpu.milli) for each in state.node_pods[0].values())
    assert requests == [(1, 150), (1, 150), (2, 1000)]
    # Three pods run there. What CPU and memory they use is not told, and no default is counted for it.
    assert state.requested[0].tolist()[:4] == [0, 0, 0, 3]
    assert state.nonzero.tolist() == [[0, 0], [0, 0]]
    audit.check(state)


def test_use_without_names_is_use() -> None:
    assert state_from_objects([node("a", {1: (250, None), 2: (1000, [])})]).gpu_free.tolist() == [[1000, 750, 0, 1000]]


def test_a_posted_pod_is_not_counted_again_where_the_annotation_names_it() -> None:
    devices = {0: (0, None), 1: (1000, ["default/known", "default/other"])}
    for annotations in ({}, {"alibabacloud.com/gpu-index": "1"}):
        state = state_from_objects([node("a", devices)], [pod("known", "a", **annotations)])
        assert state.placements["known"].gpus == (1,)
        assert state.gpu_free.tolist() == [[1000, 0, 1000, 1000]]
        assert sorted(each.gpu.milli for each in state.node_pods[0].values()) == [400, 600]
        assert state.requested[0].tolist()[:4] == [2000, 0, 0, 2]
        audit.check(state)


def test_devices_of_posted_pods_are_those_of_their_own_annotation() -> None:
    pods = [pod("a", "n", **{"alibabacloud.com/gpu-index": "2"}), pod("b", "n", **{"alibabacloud.com/gpu-index": "9"})]
    state = state_from_objects([node("n")], pods)
    assert state.placements["a"].gpus == (2,)
    assert state.placements["b"].gpus == (2,)  # a device that does not exist is chosen anew: the best fit


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ('{"4": {"Idx": 4, "GpuUsedMilli": 1}}', "Idx: 4 is not accepted; expected a different device of the node's 4"),
        ('{"0": {"Idx": 0}, "1": {"Idx": 0}}', "Idx: 0 is not accepted"),
        ('{"0": {"Idx": 0, "GpuUsedMilli": 1001}}', "GpuUsedMilli: 1001 is not accepted; expected 0 to 1000"),
        ('{"0": {"Idx": 0, "GpuUsedMilli": -1}}', "GpuUsedMilli: -1 is not accepted"),
        ('{"0": {"Idx": 0, "GpuUsedMilli": "much"}}', "Expected `int`, got `str`"),
        ("{", "truncated"),
    ],
)
def test_an_annotation_that_does_not_fit_its_node_is_refused(devices: str, words: str) -> None:
    body = json.loads(node("b"))
    body["metadata"]["annotations"] = {"simon/node-gpu-share": f'{{"DevsBrief": {devices}}}'}
    with pytest.raises(UserError) as refused:
        state_from_objects([node("a"), json.dumps(body).encode()])
    assert str(refused.value).startswith("nodes[1].metadata.annotations[simon/node-gpu-share]: ")
    assert words in str(refused.value)
