"""A cluster that is only looked at, fed with what reflectors would say."""

from typing import Any, cast

import pytest

from aaml.cluster import audit
from aaml.cluster.objects import GpuRequest, Node, Pod
from aaml.kube.reflector import Changes, Delta
from aaml.kube.sources import NODES, PODS, SeenPod
from aaml.kube.watcher import ClusterWatch


@pytest.mark.parametrize(("noted", "free"), [((7,), [600, 1000]), ((0, 0), [600, 1000]), ((1,), [1000, 600])])
def test_devices_that_a_node_cannot_have_are_not_believed(noted: tuple[int, ...], free: list[int]) -> None:
    """Of two devices the eighth, or one twice: the best-fitting device is taken instead."""
    watch = ClusterWatch(cast("Any", None))
    watch._take(Changes(NODES.name, (Delta("added", Node("n", {"cpu": 1000}, gpu_count=2)),)))
    pod = Pod("p", node_name="n", gpu=GpuRequest(1, 400))
    watch._take(Changes(PODS.name, (Delta("added", SeenPod(pod, noted)),)))
    assert watch.state.gpu_free.tolist() == [free]
    audit.check(watch.state)
