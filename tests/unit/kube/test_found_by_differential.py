"""What the differential test against the real kube-scheduler has found, a test each, with kube-scheduler's numbers."""

from dataclasses import replace

import numpy as np

from aaml.cluster.objects import Node
from aaml.cluster.state import ClusterState
from aaml.kube.objects.convert import pod_from_json
from aaml.policies.kube_scores import plugin_scores

ROOM = {"cpu": 4000, "memory": 8 << 30, "pods": 10}


def score(plugin, spec, *nodes):
    pod = pod_from_json({"metadata": {"name": "p", "uid": "u"}, "spec": spec})
    state = ClusterState(nodes or [Node("a", ROOM)])
    return plugin_scores(state, pod, np.ones(len(state), dtype=bool))[plugin].tolist()


def test_images_of_init_containers_count_for_image_locality():
    node = Node("a", ROOM, images={"registry.example/web:1": 400 << 20})
    other = {"name": "c", "image": "other"}
    web = {"name": "i", "image": "registry.example/web:1"}
    # Two containers raise the upper bound to 2000 MiB: 100 * (400 - 23) / (2000 - 23) = 19, wherever the image is used.
    assert score("ImageLocality", {"containers": [other], "initContainers": [web]}, node) == [19]
    assert score("ImageLocality", {"containers": [web], "initContainers": [other]}, node) == [19]
    assert score("ImageLocality", {"containers": [web]}, node) == [38]


def test_the_fit_score_of_a_waiting_pod_leaves_out_its_pod_level_resources():
    spec = {"containers": [{"name": "c"}], "resources": {"requests": {"cpu": "2500m", "memory": "5Gi"}}}
    # The container's defaults of 100m and 200Mi: (97 + 97) / 2, not (37 + 37) / 2.
    assert score("NodeResourcesFit", spec) == [97]


def test_pod_level_resources_count_once_the_pod_is_placed():
    spec = {"containers": [{"name": "c"}], "resources": {"requests": {"cpu": "2500m", "memory": "5Gi"}}}
    placed = pod_from_json({"metadata": {"name": "q", "uid": "q"}, "spec": {**spec, "nodeName": "a"}})
    state = ClusterState([Node("a", ROOM)])
    state.upsert_pod(placed)
    assert state.nonzero.tolist() == [[2500, 5 << 30]]
    waiting = replace(placed, uid="w", node_name="", nonzero=None, nonzero_containers=None, requests={"cpu": 1500})
    # CPU: nothing left; memory: (8192 - 5120 - 200) MiB of 8192 MiB.
    assert plugin_scores(state, waiting, np.ones(1, dtype=bool))["NodeResourcesFit"].tolist() == [35 // 2]
