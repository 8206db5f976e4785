"""Each filter plugin on small clusters; what is expected follows the Kubernetes documentation of the field."""

from dataclasses import replace

import pytest

from aaml.cluster.filters import feasible
from aaml.cluster.objects import (
    Affinity,
    GpuRequest,
    HostPort,
    LabelSelector,
    Node,
    NodeSelectorTerm,
    Pod,
    PodAffinityTerm,
    Requirement,
    Taint,
    Toleration,
    TopologySpread,
    VolumeNeeds,
)
from support import make


def node(name, zone=None, **fields):
    labels = {"kubernetes.io/hostname": name, **({"zone": zone} if zone else {}), **fields.pop("labels", {})}
    return make.node(name, labels=labels, **fields)


def cluster(*nodes, **placed):
    """A cluster with these nodes and `placed`: node name -> pods that run there, under names of their own."""
    pods = {
        name: [replace(pod, name=f"{pod.name}-{name}-{number}", uid="") for number, pod in enumerate(each)]
        for name, each in placed.items()
    }
    return make.cluster(nodes, **pods)


def names(state, pod):
    return [name for name, ok in zip(state.names, feasible(state, pod).mask, strict=True) if ok]


def has(**labels):
    return LabelSelector(tuple(Requirement(key, "In", (value,)) for key, value in labels.items()))


# ---- NodeResourcesFit ------------------------------------------------------------------------------------------------


def test_what_is_free_decides_not_what_is_allocatable():
    state = cluster(node("a"), node("b"), a=[Pod("p", requests={"cpu": 3500})])
    assert names(state, Pod("q", requests={"cpu": 500})) == ["a", "b"]
    assert names(state, Pod("q", requests={"cpu": 501})) == ["b"]


def test_a_resource_that_is_not_requested_is_not_checked():
    state = cluster(node("a", cpu=100))
    state.upsert_pod(Pod("big", requests={"cpu": 200}, node_name="a"))  # overcommitted, by a static pod say
    assert names(state, Pod("q", requests={"memory": 0, "cpu": 0})) == ["a"]


def test_the_number_of_pods_is_limited():
    state = cluster(node("a", pods=1), a=[Pod("p")])
    verdict = feasible(state, Pod("q"))
    assert not verdict.mask.any()
    assert verdict.message() == "0/1 nodes are available: 1 Too many pods."
    assert not verdict.diagnosis.unresolvable.any()


def test_a_node_names_every_short_resource():
    with_fpga = Node("b", {**node("b").allocatable, "example.com/fpga": 1})
    state = cluster(node("a"), with_fpga, node("c"))
    state.upsert_pod(Pod("p", requests={"cpu": 4000}, node_name="c"))
    verdict = feasible(state, Pod("q", requests={"cpu": 2000, "memory": 9 << 30, "example.com/fpga": 2}))
    assert verdict.message() == (
        "0/3 nodes are available: 1 Insufficient cpu, 3 Insufficient example.com/fpga, 3 Insufficient memory."
    )
    assert verdict.diagnosis.unresolvable.tolist() == [True, True, True]
    assert verdict.plugins == {"NodeResourcesFit"}


def test_a_resource_that_no_node_has():
    verdict = feasible(cluster(node("a")), Pod("q", requests={"hugepages-2Mi": 2 << 20}))
    assert verdict.message() == "0/1 nodes are available: 1 Insufficient hugepages-2Mi."
    assert feasible(cluster(node("a")), Pod("q", requests={"hugepages-2Mi": 0})).mask.all()


# ---- GpuDevices ------------------------------------------------------------------------------------------------------


def test_a_share_needs_one_device_with_enough_left():
    state = cluster(node("a", gpus=2, gpu_model="T4"), node("b", gpus=1, gpu_model="A10"), node("c"))
    state.upsert_pod(Pod("p", gpu=GpuRequest(1, 600), node_name="a"), gpus=(0,))
    state.upsert_pod(Pod("q", gpu=GpuRequest(1, 600), node_name="a"), gpus=(1,))
    # 400 + 400 thousandths are left on a, but on two devices.
    assert names(state, Pod("x", gpu=GpuRequest(1, 500))) == ["b"]
    assert names(state, Pod("x", gpu=GpuRequest(1, 400))) == ["a", "b"]
    assert names(state, Pod("x", gpu=GpuRequest(2, 1000))) == []
    verdict = feasible(state, Pod("x", gpu=GpuRequest(1, 500, frozenset({"T4"}))))
    assert verdict.message() == (
        "0/3 nodes are available: 1 Insufficient GPU devices, 2 node(s) didn't have the requested GPU model."
    )
    assert verdict.diagnosis.unresolvable.tolist() == [False, True, True]


# ---- NodeName, NodeUnschedulable, TaintToleration --------------------------------------------------------------------


def test_node_name():
    state = cluster(node("a"), node("b"))
    assert names(state, Pod("p", node_name="b")) == ["b"]
    assert feasible(state, Pod("p", node_name="x")).message() == (
        "0/2 nodes are available: 2 node(s) didn't match the requested node name."
    )


def test_a_pod_that_requires_a_feature_goes_where_it_is_declared():
    features = frozenset({"RestartAllContainersOnContainerExits"})
    state = cluster(
        node("a"), node("b", declared_features=features | {"Other"}), node("c", declared_features={"Other"})
    )
    verdict = feasible(state, Pod("p", required_features=features))
    assert verdict.mask.tolist() == [False, True, False]
    assert verdict.diagnosis.unresolvable.tolist() == [True, False, True]
    assert verdict.plugins == {"NodeDeclaredFeatures"}
    state.upsert_node(node("b"))
    assert feasible(state, Pod("p", required_features=features)).message() == (
        "0/3 nodes are available: 3 node(s) didn't match Pod's required features."
    )
    assert feasible(state, Pod("q")).mask.all()


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (None, False),
        (Toleration("node.kubernetes.io/unschedulable", "Exists"), True),
        (Toleration("node.kubernetes.io/unschedulable", "Exists", effect="NoSchedule"), True),
        (Toleration("node.kubernetes.io/unschedulable", "Exists", effect="NoExecute"), False),
        (Toleration(operator="Exists"), True),
    ],
)
def test_a_cordoned_node_needs_the_toleration(toleration, fits):
    state = cluster(node("a", unschedulable=True))
    verdict = feasible(state, Pod("p", tolerations=(toleration,) if toleration else ()))
    assert verdict.mask.tolist() == [fits]
    if not fits:
        assert verdict.message() == "0/1 nodes are available: 1 node(s) were unschedulable."


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (Toleration("gpu", "Equal", "true", "NoSchedule"), True),
        (Toleration("gpu", "Equal", "true", ""), True),
        (Toleration("gpu", "Equal", "false", "NoSchedule"), False),
        (Toleration("gpu", "Exists", "", "NoSchedule"), True),
        (Toleration("gpu", "Exists", "", "NoExecute"), False),
        (Toleration("", "Exists"), True),
        (Toleration("other", "Exists"), False),
        (Toleration("gpu", "Gt", "0", "NoSchedule"), False),  # behind a feature gate that is off
    ],
)
def test_tolerations(toleration, fits):
    state = cluster(node("a", taints=(Taint("gpu", "true"),)))
    assert feasible(state, Pod("p", tolerations=(toleration,))).mask.tolist() == [fits]


def test_every_hard_taint_must_be_tolerated_and_soft_ones_do_not_filter():
    state = cluster(
        node("two", taints=(Taint("a"), Taint("b", effect="NoExecute"))),
        node("soft", taints=(Taint("a", effect="PreferNoSchedule"),)),
    )
    assert names(state, Pod("p", tolerations=(Toleration("a", "Exists"),))) == ["soft"]
    assert feasible(state, Pod("p", requests={"cpu": 9000})).message() == (
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."
    )


# ---- NodeAffinity ----------------------------------------------------------------------------------------------------


def wants(*requirements, fields=()):
    return Affinity(required_nodes=(NodeSelectorTerm(requirements, fields),))


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        (Requirement("cores", "In", ("8", "16")), ["b"]),
        (Requirement("cores", "NotIn", ("8",)), ["a", "c", "d"]),
        (Requirement("cores", "Exists"), ["a", "b", "c"]),
        (Requirement("cores", "DoesNotExist"), ["d"]),
        (Requirement("cores", "Gt", ("4",)), ["b"]),
        (Requirement("cores", "Lt", ("8",)), ["a"]),
        (Requirement("cores", "Gt", ("many",)), []),
    ],
)
def test_node_affinity_operators(requirement, expected):
    state = cluster(
        node("a", labels={"cores": "4"}),
        node("b", labels={"cores": "8"}),
        node("c", labels={"cores": "few"}),
        node("d"),
    )
    assert names(state, Pod("p", affinity=wants(requirement))) == expected


def test_terms_are_alternatives_and_requirements_are_not():
    state = cluster(node("a", labels={"x": "1"}), node("b", labels={"x": "1", "y": "1"}), node("c", labels={"z": "1"}))
    exists = [Requirement(key, "Exists") for key in "xyz"]
    assert names(state, Pod("p", affinity=wants(exists[0], exists[1]))) == ["b"]
    either = Affinity(required_nodes=(NodeSelectorTerm((exists[1],)), NodeSelectorTerm((exists[2],))))
    assert names(state, Pod("p", affinity=either)) == ["b", "c"]
    assert names(state, Pod("p", affinity=either, node_selector={"x": "1"})) == ["b"]
    assert names(state, Pod("p", affinity=Affinity(required_nodes=(NodeSelectorTerm(),)))) == []
    assert names(state, Pod("p", affinity=Affinity(required_nodes=()))) == []


def test_match_fields():
    state = cluster(node("a"), node("b"), node("c"))

    def field(operator, name):
        return Requirement("metadata.name", operator, (name,))

    verdict = feasible(state, Pod("p", requests={"cpu": 9000}, affinity=wants(fields=(field("In", "b"),))))
    assert verdict.message() == (
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]."
    )
    assert names(state, Pod("p", affinity=wants(fields=(field("NotIn", "b"),)))) == ["a", "c"]
    both = Pod("p", affinity=wants(fields=(field("In", "a"), field("In", "b"))))
    assert feasible(state, both).message() == "0/3 nodes are available: pod affinity terms conflict."
    assert feasible(state, both).diagnosis.unresolvable.all()


def test_changed_labels_are_seen():
    state = cluster(node("a"))
    pod = Pod("p", node_selector={"disk": "ssd"})
    assert names(state, pod) == []
    state.upsert_node(node("a", labels={"disk": "ssd"}))
    assert names(state, pod) == ["a"]


# ---- NodePorts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (HostPort(80), False),
        (HostPort(80, "UDP"), True),
        (HostPort(81), True),
        (HostPort(80, "TCP", "10.0.0.1"), False),
        (HostPort(80, "TCP", "10.0.0.2"), True),
    ],
)
def test_host_ports(wanted, fits):
    state = cluster(node("a"), a=[Pod("p", host_ports=(HostPort(80, "TCP", "10.0.0.1"),))])
    verdict = feasible(state, Pod("q", host_ports=(wanted,)))
    assert verdict.mask.tolist() == [fits]
    if not fits:
        text = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
        assert verdict.message() == text


def test_a_port_on_all_addresses_takes_it_on_each():
    state = cluster(node("a"), a=[Pod("p", host_ports=(HostPort(80),))])
    pod = Pod("q", host_ports=(HostPort(80, "TCP", "10.0.0.2"),))
    assert names(state, pod) == []
    state.remove_pod("default/p-a-0")
    assert names(state, pod) == ["a"]


# ---- volumes ---------------------------------------------------------------------------------------------------------


def test_bound_volumes_keep_the_pod_near():
    state = cluster(node("a", "z1"), node("b", "z2"), node("c", "z3"))
    terms = tuple(NodeSelectorTerm((Requirement("zone", "In", (zone,)),)) for zone in ("z1", "z2"))
    pod = Pod(
        "p", volumes=VolumeNeeds(node_terms=(terms, (NodeSelectorTerm((Requirement("zone", "NotIn", ("z1",)),)),)))
    )
    assert names(state, pod) == ["b"]
    assert "2 node(s) didn't match PersistentVolume's node affinity" in feasible(state, pod).message()


def test_attached_volumes_count_once_against_the_drivers_limit():
    state = cluster(
        node("a", volume_limits={"ebs": 2}),
        node("b"),
        a=[Pod("p", volumes=VolumeNeeds(attachments=frozenset({("ebs", "v1"), ("nfs", "n1")})))],
    )

    def pod(*volumes):
        return Pod("q", volumes=VolumeNeeds(attachments=frozenset(("ebs", each) for each in volumes)))

    assert names(state, pod("v2")) == ["a", "b"]
    assert names(state, pod("v1", "v2")) == ["a", "b"]
    assert names(state, pod("v2", "v3")) == ["b"]
    assert "1 node(s) exceed max volume count" in feasible(state, replace(pod("v2", "v3"), node_name="a")).message()


def test_read_write_once_pod_claims_have_one_user():
    volumes = VolumeNeeds(exclusive=frozenset({"default/data"}))
    state = cluster(node("a"), node("b"), a=[Pod("p", volumes=volumes)])
    assert names(state, Pod("q", volumes=volumes)) == []
    state.remove_pod("default/p-a-0")
    assert names(state, Pod("q", volumes=volumes)) == ["a", "b"]


def test_unresolved_volumes_and_gates_reject_before_nodes_are_looked_at():
    state = cluster(node("a"), node("b"))
    verdict = feasible(state, Pod("p", volumes=VolumeNeeds(missing="pod has unbound immediate PersistentVolumeClaims")))
    assert verdict.message() == "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    assert not verdict.mask.any()
    assert verdict.plugins == {"VolumeBinding"}
    assert feasible(state, Pod("p", gates=("wait",))).plugins == {"SchedulingGates"}


# ---- PodTopologySpread -----------------------------------------------------------------------------------------------

APP = Pod("app", labels={"app": "x"})


def spread(**fields):
    return Pod(
        "q",
        labels={"app": "x"},
        spread=(TopologySpread(**{"max_skew": 1, "topology_key": "zone", "selector": has(app="x"), **fields}),),
    )


def three_zones():
    return cluster(node("a", "z1"), node("b", "z2"), node("c", "z3"), node("d"), a=[APP, APP], b=[APP])


def test_skew_is_measured_against_the_emptiest_domain():
    # 2, 1, 0 pods: one more makes 3, 2, 1 above the lowest, 0.
    assert names(three_zones(), spread()) == ["c"]
    assert names(three_zones(), spread(max_skew=2)) == ["b", "c"]
    assert names(three_zones(), spread(max_skew=3)) == ["a", "b", "c"]


def test_a_pod_that_its_own_selector_leaves_out_adds_nothing():
    pod = replace(spread(), labels={})
    assert names(three_zones(), pod) == ["b", "c"]


def test_reasons_of_spreading():
    verdict = feasible(three_zones(), replace(spread(), requests={"memory": 9 << 30}))
    assert verdict.message() == "0/4 nodes are available: 4 Insufficient memory."
    state = three_zones()
    state.remove_node("c")
    pod = replace(spread(max_skew=1, min_domains=3))
    assert feasible(state, pod).message() == (
        "0/3 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label), "
        "2 node(s) didn't match pod topology spread constraints."
    )
    assert feasible(state, pod).diagnosis.unresolvable.tolist() == [False, False, True]


def test_min_domains_imagines_an_empty_domain():
    state = cluster(node("a", "z1"), node("b", "z2"), a=[APP], b=[APP])
    assert names(state, spread()) == ["a", "b"]
    assert names(state, spread(min_domains=2)) == ["a", "b"]
    assert names(state, spread(min_domains=3)) == []


def test_node_affinity_policy():
    state = cluster(
        node("a", "z1", labels={"ok": "1"}), node("b", "z2", labels={"ok": "1"}), node("c", "z3"), a=[APP], b=[APP]
    )
    pod = replace(spread(), node_selector={"ok": "1"})
    # Honor (the default): z3 is no domain, the lowest is 1. Ignore: z3 holds 0, so 2 - 0 is too much.
    assert names(state, pod) == ["a", "b"]
    assert names(state, replace(spread(honor_node_affinity=False), node_selector={"ok": "1"})) == []


def test_node_taints_policy():
    state = cluster(node("a", "z1"), node("b", "z2", taints=(Taint("t"),)), a=[APP])
    assert names(state, spread()) == []
    assert names(state, spread(honor_node_taints=True)) == ["a"]


def test_terminating_pods_and_other_namespaces_do_not_count():
    leaving, foreign = replace(APP, terminating=True), replace(APP, namespace="other")
    state = cluster(node("a", "z1"), node("b", "z2"), a=[leaving, foreign])
    assert names(state, spread()) == ["a", "b"]


def test_an_empty_selector_counts_no_placed_pod_and_none_at_all_matches_nothing():
    state = cluster(node("a", "z1"), node("b", "z2"), a=[APP, APP])
    assert names(state, spread(selector=LabelSelector())) == ["a", "b"]
    assert names(state, spread(selector=None)) == ["a", "b"]


def test_a_node_must_have_the_keys_of_all_constraints():
    state = cluster(node("a", "z1"), node("b"))
    pod = replace(spread(), spread=(*spread().spread, *spread(topology_key="kubernetes.io/hostname").spread))
    assert names(state, pod) == ["a"]


def test_soft_constraints_do_not_filter():
    assert names(three_zones(), spread(hard=False)) == ["a", "b", "c", "d"]


# ---- InterPodAffinity ------------------------------------------------------------------------------------------------


def term(key="zone", selector=None, namespaces=("default",), namespace_selector=None):
    return PodAffinityTerm(key, selector or has(app="x"), frozenset(namespaces), namespace_selector)


def near(*terms, **fields):
    return Pod("q", affinity=Affinity(required_pods=terms), **fields)


def far(*terms, **fields):
    return Pod("q", affinity=Affinity(required_anti_pods=terms), **fields)


def zones():
    return cluster(node("a", "z1"), node("b", "z1"), node("c", "z2"), node("d"), a=[APP])


def test_affinity_and_anti_affinity_are_about_the_domain():
    assert names(zones(), near(term())) == ["a", "b"]
    assert names(zones(), near(term("kubernetes.io/hostname"))) == ["a"]
    assert names(zones(), far(term())) == ["c", "d"]
    assert names(zones(), far(term("kubernetes.io/hostname"))) == ["b", "c", "d"]


def test_the_first_of_a_group_may_start_anywhere_with_the_key():
    state = cluster(node("a", "z1"), node("b"))
    assert names(state, near(term(), labels={"app": "x"})) == ["a"]
    assert names(state, near(term())) == []
    assert names(zones(), near(term(), labels={"app": "x"})) == ["a", "b"]


def test_one_pod_must_match_all_affinity_terms():
    web, db, both = ({"app": "x"}, {"tier": "db"}, {"app": "x", "tier": "db"})
    state = cluster(
        node("a", "z1"), node("b", "z2"), a=[Pod("p", labels=web), Pod("p", labels=db)], b=[Pod("p", labels=both)]
    )
    assert names(state, near(term(), term(selector=has(tier="db")))) == ["b"]


def test_anti_affinity_terms_each_keep_away():
    state = cluster(node("a", "z1"), node("b", "z2"), node("c", "z3"), a=[APP], b=[Pod("p", labels={"tier": "db"})])
    assert names(state, far(term(), term(selector=has(tier="db")))) == ["c"]


def test_anti_affinity_is_symmetric():
    state = cluster(node("a", "z1"), node("b", "z1"), node("c", "z2"), a=[far(term())])
    verdict = feasible(state, replace(APP, requests={"cpu": 1}))
    assert [state.names[row] for row in verdict.mask.nonzero()[0]] == ["c"]
    state.remove_node("c")
    text = "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules."
    assert feasible(state, APP).message() == text
    assert names(state, Pod("other")) == ["a", "b"]
    state.remove_pod("default/q-a-0")
    assert names(state, APP) == ["a", "b"]


def test_affinity_of_placed_pods_is_not_symmetric():
    state = cluster(node("a", "z1"), node("b", "z2"), a=[near(term())])
    assert names(state, APP) == ["a", "b"]


def test_namespaces_of_a_term():
    state = cluster(node("a", "z1"), node("b", "z2"), b=[replace(APP, namespace="shop")])
    state.label_namespace("shop", {"team": "web"})
    state.label_namespace("default", {})
    assert names(state, near(term())) == []
    assert names(state, near(term(namespaces=("shop",)))) == ["b"]
    assert names(state, near(term(namespaces=(), namespace_selector=has(team="web")))) == ["b"]
    assert names(state, near(term(namespaces=(), namespace_selector=has(team="db")))) == []
    assert names(state, near(term(namespaces=(), namespace_selector=LabelSelector()))) == ["b"]
    state.label_namespace("shop", {"team": "db"})
    assert names(state, near(term(namespaces=(), namespace_selector=has(team="db")))) == ["b"]


def test_reasons_of_affinity():
    text = feasible(zones(), near(term(selector=has(app="y")))).message()
    assert text == "0/4 nodes are available: 4 node(s) didn't match pod affinity rules."
    assert feasible(zones(), near(term(selector=has(app="y")))).diagnosis.unresolvable.all()
    verdict = feasible(zones(), replace(far(term()), node_selector={"zone": "z1"}))
    assert verdict.message() == (
        "0/4 nodes are available: 2 node(s) didn't match Pod's node affinity/selector, "
        "2 node(s) didn't match pod anti-affinity rules."
    )
    assert verdict.plugins == {"NodeAffinity", "InterPodAffinity"}


# ---- nominated pods --------------------------------------------------------------------------------------------------


def test_nominated_pods_keep_their_room_from_less_important_ones():
    state = cluster(node("a"), node("b", cpu=1000))
    state.nominate(Pod("vip", priority=10, requests={"cpu": 3000}), "a")
    pod = Pod("q", requests={"cpu": 1500})
    verdict = feasible(state, pod)
    assert not verdict.mask.any()
    assert verdict.message() == "0/2 nodes are available: 2 Insufficient cpu."
    assert names(state, replace(pod, priority=11)) == ["a"]
    assert names(state, Pod("vip", priority=10, requests={"cpu": 3000})) == ["a"]
    state.withdraw("default/vip")
    assert names(state, pod) == ["a"]


def test_affinity_is_not_met_by_a_nominated_pod_but_anti_affinity_is_broken_by_it():
    state = cluster(node("a", "z1"), node("b", "z2"))
    state.nominate(replace(APP, priority=1), "a")
    assert names(state, near(term())) == []
    assert names(state, far(term())) == ["b"]


def test_placing_ends_the_nomination():
    state = cluster(node("a"))
    pod = Pod("vip", priority=1)
    state.nominate(pod, "a")
    state.assume(pod, "a")
    assert state.nominated == {}


# ---- the verdict -----------------------------------------------------------------------------------------------------


def test_reasons_are_only_given_for_the_state_they_were_found_in():
    state = cluster(node("a"))
    verdict = feasible(state, Pod("q", requests={"cpu": 9000}))
    state.upsert_node(node("b"))
    with pytest.raises(RuntimeError, match="has changed"):
        verdict.message()


def test_message_with_what_preemption_said():
    verdict = feasible(cluster(node("a")), Pod("q", requests={"cpu": 9000}))
    assert verdict.message("not eligible due to preemptionPolicy=Never.") == (
        "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never."
    )


def test_no_nodes():
    verdict = feasible(cluster(), Pod("q"))
    assert verdict.mask.shape == (0,)
    assert verdict.message() == "no nodes available to schedule pods"
