"""Values that an API server takes and nobody expects: none ends a scheduler, and none makes it bind wrongly."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaml.cluster.filters import feasible
from aaml.cluster.objects import Requirement
from aaml.cluster.quantity import LARGEST, parse_quantity
from aaml.cluster.selectors import matches_requirement
from aaml.cluster.state import ClusterState
from aaml.kube.objects import wire
from aaml.kube.objects.convert import gpu_indices, node_from_json, pod_from_json, read_object
from aaml.kube.sources import see_pod
from aaml.policies.kube_scores import plugin_scores

HUGE = st.sampled_from([
    "0", "1n", "1", "8Ei", "9223372036854775807", "9223372036854775", "1e18", "12E", "4611686018427387904", "512Ti",
    "1P",
])  # fmt: skip


def node(name: str, **offered: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {}, "status": {"allocatable": {"pods": "110", **offered}}}


def pod(uid: str, *requests: dict[str, str], **spec: Any) -> dict[str, Any]:
    containers = [{"name": f"c{n}", "image": "i", "resources": {"requests": each}} for n, each in enumerate(requests)]
    return {"metadata": {"name": uid, "uid": uid}, "spec": {"containers": containers, **spec}}


@given(st.lists(HUGE, min_size=1, max_size=3), st.lists(HUGE, max_size=3), HUGE)
def test_no_amount_overflows_into_room_that_is_not_there(asked, taken, offered):
    """Against exact arithmetic: what does not fit is never feasible, and scores are computed all the same."""
    state = ClusterState([node_from_json(node("a", cpu=offered, memory=offered))])
    for number, amount in enumerate(taken):
        state.upsert_pod(pod_from_json(pod(f"t{number}", {"cpu": amount, "memory": amount}, nodeName="a")))
    waiting = pod_from_json(pod("w", *({"cpu": each, "memory": each} for each in asked)))
    mask = feasible(state, waiting).mask
    left = parse_quantity(offered) - sum(map(parse_quantity, taken), Fraction(0))
    needed = sum(map(parse_quantity, asked), Fraction(0))
    assert not (mask[0] and needed > max(left, 0) + 1)  # one unit of rounding
    feasible(state, waiting).message()
    plugin_scores(state, waiting, mask)
    for number in range(len(taken)):
        state.remove_pod(f"t{number}")
    assert not state.requested.any()


def test_an_amount_beyond_the_largest_is_offered_as_the_largest_and_fits_nowhere():
    assert LARGEST == 2**50
    state = ClusterState([node_from_json(node("a", memory="8Ei"))])
    assert state.allocatable[0, state.resource_index["memory"]] == LARGEST
    assert feasible(state, pod_from_json(pod("p", {"memory": "1Pi"}))).mask.tolist() == [True]
    assert feasible(state, pod_from_json(pod("q", {"memory": "2Pi"}))).mask.tolist() == [False]


@pytest.mark.parametrize(
    ("resource", "quantity", "offered"),
    [
        ("cpu", "9223372036854775", 2**50), ("cpu", "9223372036854776", 0), ("cpu", "8Ei", 0), ("cpu", "1e30", 0),
        ("memory", "9223372036854775807", 2**50), ("memory", "9" * 40, 2**50), ("memory", "9Ei", 2**50),
        ("memory", "9E", 2**50), ("memory", "12E", 0), ("memory", "1e19", 0),
    ],
)  # fmt: skip
def test_what_leaves_64_bits_is_not_offered(resource, quantity, offered):
    """As the real kube-scheduler counts it: 9,223,372,036,854,775,807 is the largest number of 64 bits."""
    assert node_from_json(node("a", **{resource: quantity})).allocatable[resource] == offered


@pytest.mark.parametrize("resource", [wire.GPU_COUNT, wire.NVIDIA_GPU])
def test_a_node_that_claims_a_trillion_gpus_needs_no_memory_for_them(resource):
    state = ClusterState([node_from_json(node("a", **{resource: "1000000000000"}))])
    assert state.gpu_count.tolist() == [1024]
    asks = pod_from_json(pod("p", {wire.NVIDIA_GPU: "9223372036854775807"}))
    assert feasible(state, asks).mask.tolist() == [False]


@pytest.mark.parametrize("text", ["9" * 5000, "9223372036854775808", "1_000", "1.5", "", " 7"])
def test_bounds_of_gt_and_lt_are_64_bit_integers_or_match_nothing(text):
    """As Go's strconv.ParseInt(text, 10, 64) reads them."""
    for operator in ("Gt", "Lt"):
        assert not matches_requirement(Requirement("cores", operator, (text,)), {"cores": "1"})
        assert not matches_requirement(Requirement("cores", operator, ("1",)), {"cores": text})
    assert matches_requirement(Requirement("cores", "Lt", ("9223372036854775807",)), {"cores": "-9223372036854775808"})


@pytest.mark.parametrize("index", ["²", "9" * 5000, "1-²", "-1"])
def test_a_gpu_index_that_is_no_number_counts_as_none(index):
    raw = pod("p", {}, nodeName="a")
    raw["metadata"]["annotations"] = {wire.GPU_INDEX: index}
    assert gpu_indices(read_object(raw, wire.PodObject, "pod")) is None


@pytest.mark.parametrize("annotations", [{wire.GPU_MILLI: "abc"}, {wire.GPU_COUNT: "-1"}, {wire.GPU_MILLI: "1e999"}])
def test_a_pod_with_an_unreadable_gpu_annotation_still_counts_on_its_node(annotations):
    raw = pod("p", {"cpu": "2"}, nodeName="a")
    raw["metadata"]["annotations"] = annotations
    seen = see_pod(read_object(raw, wire.PodObject, "pod"))
    assert (seen.pod.node_name, seen.pod.requests, seen.pod.gpu.count) == ("a", {"cpu": 2000}, 0)


def test_a_pod_that_asks_for_devices_of_dynamic_resource_allocation_goes_nowhere():
    """AAML allocates no devices: bound without them the pod could never start."""
    state = ClusterState([node_from_json(node("a", cpu="4"))])
    claims = pod("p", {"cpu": "1"}, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}])
    found = feasible(state, pod_from_json(claims))
    assert found.mask.tolist() == [False]
    assert found.plugins == {"DynamicResources"}
    assert found.message() == (
        "0/1 nodes are available: the pod has resource claims (gpu), for which AAML allocates no devices; "
        "kube-scheduler does, with the policy as its plugin (aaml export) or its extender (aaml serve), or with a "
        "configuration (aaml search scheduler)."
    )
