"""Which volumes claims get that wait for their first consumer, node by node; worked out by hand.

https://kubernetes.io/docs/concepts/storage/persistent-volumes/#binding and
https://kubernetes.io/docs/concepts/storage/storage-capacity/.
"""

from dataclasses import replace

from aaml.cluster.filters import feasible
from aaml.cluster.filters.volume_binding import VolumePlan, plan_volumes
from aaml.cluster.objects import LabelSelector, NodeSelectorTerm, Pod, PodGroup, Requirement, UnboundClaim, VolumeNeeds
from aaml.cluster.state import ClusterState
from aaml.cluster.storage import StorageCapacity, StorageClass, Volume
from aaml.policies.kube_scores import DEFAULT_WEIGHTS, KubeSchedulerConfig, plugin_scores
from aaml.sim.cluster import SimCluster
from support import make

GI = 2**30
CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
NO_MATCH = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
LOCAL = StorageClass("local")
CLOUD = StorageClass("cloud", "csi.cloud")
DEFAULT = KubeSchedulerConfig()


def on(*nodes: str) -> tuple[NodeSelectorTerm, ...]:
    """Terms of a volume that these nodes can use."""
    return (NodeSelectorTerm((Requirement("kubernetes.io/hostname", "In", nodes),)),)


def in_zone(*zones: str) -> tuple[NodeSelectorTerm, ...]:
    return (NodeSelectorTerm((Requirement("topology.kubernetes.io/zone", "In", zones),)),)


def cluster(*volumes: Volume, classes: tuple[StorageClass, ...] = (LOCAL, CLOUD)) -> ClusterState:
    """Nodes a and b in zone z1, c in zone z2."""
    zones = {"a": "z1", "b": "z1", "c": "z2"}
    state = make.cluster(
        make.node(name, labels={"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone})
        for name, zone in zones.items()
    )
    state.storage.classes.update({each.name: each for each in classes})
    for volume in volumes:
        state.storage.put_volume(volume)
    return state


def claim(name: str = "data", gi: int = 10, kind: str = "local", **more) -> UnboundClaim:
    return UnboundClaim(f"default/{name}", f"u-{name}", kind, gi * GI, **more)


def pod(*claims: UnboundClaim, **needs) -> Pod:
    return Pod("p", volumes=VolumeNeeds(unbound=claims, **needs))


def volume(name: str, gi: int = 10, kind: str = "local", nodes=None, **more) -> Volume:
    return Volume(name, gi * GI, kind, node_terms=nodes, **more)


def fits(state: ClusterState, pod: Pod) -> str:
    return "".join(name for name, ok in zip(state.names, feasible(state, pod).mask, strict=True) if ok)


def given(state: ClusterState, pod: Pod, node: str) -> dict[str, str]:
    """Return what each claim gets on a node; "new" for one that is to be made."""
    plan = plan_volumes(state, pod, state.index[node])
    found = {each.key.partition("/")[2]: name for each, name in plan.volumes}
    return found | {each.key.partition("/")[2]: "new" for each in plan.provision}


def test_a_pod_goes_where_a_volume_is_and_gets_the_smallest_that_is_large_enough():
    state = cluster(
        volume("a8", 8, nodes=on("a")), volume("a20", 20, nodes=on("a")), volume("a12", 12, nodes=on("a")),
        volume("b9", 9, nodes=on("b")),
    )  # fmt: skip
    wants = pod(claim(gi=10))
    assert fits(state, wants) == "a"
    assert given(state, wants, "a") == {"data": "a12"}
    assert feasible(state, wants).message() == f"0/3 nodes are available: 2 {NO_MATCH}."


def test_of_volumes_of_one_size_the_first_by_name_is_taken():
    state = cluster(volume("v2"), volume("v1"), volume("v3"))
    assert given(state, pod(claim()), "c") == {"data": "v1"}


def test_class_access_modes_kind_selector_and_attributes_have_to_agree():
    def one(**more) -> ClusterState:
        return cluster(volume("v", access_modes=frozenset({"ReadWriteOnce", "ReadOnlyMany"}), **more))

    once = frozenset({"ReadWriteOnce"})
    assert fits(one(), pod(claim(access_modes=once))) == "abc"
    assert fits(one(), pod(claim(access_modes=once | {"ReadWriteMany"}))) == ""
    assert fits(one(), pod(claim(block=True))) == ""
    assert fits(one(block=True), pod(claim(block=True))) == "abc"
    assert fits(one(attributes_class="fast"), pod(claim())) == ""
    assert fits(one(), pod(claim(kind="other"))) == ""
    fast = LabelSelector((Requirement("disk", "In", ("ssd",)),))
    assert fits(one(labels={"disk": "hdd"}), pod(claim(selector=fast))) == ""
    assert fits(one(labels={"disk": "ssd"}), pod(claim(selector=fast))) == "abc"


def test_a_volume_that_is_released_going_or_somebody_elses_is_no_choice():
    assert fits(cluster(volume("v", available=False)), pod(claim())) == ""
    assert fits(cluster(volume("v", terminating=True)), pod(claim())) == ""
    assert fits(cluster(volume("v", claim="default/other", claim_uid="u-other")), pod(claim())) == ""
    assert fits(cluster(volume("v", claim="default/data", claim_uid="u-before")), pod(claim())) == ""


def test_a_volume_meant_for_the_claim_is_taken_before_a_smaller_one_and_ties_the_pod_to_its_nodes():
    meant = volume("big", 50, nodes=on("b"), claim="default/data", available=False)
    state = cluster(volume("small"), meant)
    assert fits(state, pod(claim())) == "b"
    assert given(state, pod(claim()), "b") == {"data": "big"}
    # Where it cannot be used a volume may still be made: kube-scheduler goes on to provisioning.
    state = cluster(replace(meant, storage_class="cloud"))
    assert fits(state, pod(claim(kind="cloud"))) == "abc"
    assert given(state, pod(claim(kind="cloud")), "a") == {"data": "new"}


def test_the_smallest_claim_chooses_first_and_none_gets_what_another_has():
    """On a both get one of 10 and 20; on b the smaller claim takes the only one."""
    state = cluster(
        volume("a10", 10, nodes=on("a")), volume("a20", 20, nodes=on("a")), volume("b20", 20, nodes=on("b"))
    )
    both = pod(claim("large", 15), claim("small", 5))
    assert fits(state, both) == "a"
    assert given(state, both, "a") == {"small": "a10", "large": "a20"}
    # With one volume everywhere the second claim finds none.
    assert fits(cluster(volume("v", 20)), both) == ""


def test_terms_are_alternatives_and_those_that_no_node_meets_admit_none():
    either = (*on("a"), NodeSelectorTerm((Requirement("topology.kubernetes.io/zone", "NotIn", ("z1",)),)))
    assert fits(cluster(volume("v", nodes=either)), pod(claim())) == "ac"
    assert fits(cluster(volume("v", nodes=())), pod(claim())) == ""


def test_a_volume_is_made_where_none_is_found_and_the_class_reaches_the_node():
    state = cluster(
        volume("c10", kind="cloud", nodes=on("c")), classes=(LOCAL, replace(CLOUD, topologies=in_zone("z2")))
    )
    assert fits(state, pod(claim(kind="cloud"))) == "c"
    assert fits(state, pod(claim(gi=11, kind="cloud"))) == "c"  # made there: c10 is too small
    assert given(state, pod(claim(gi=11, kind="cloud")), "c") == {"data": "new"}
    assert fits(cluster(), pod(claim(kind="local"))) == "", "nobody makes local volumes"
    assert feasible(state, pod(claim(kind="cloud"))).message() == f"0/3 nodes are available: 2 {NO_MATCH}."


def test_a_driver_that_tells_its_capacity_is_asked_for_it():
    """z1 has 8 Gi in one piece, z2 can make 20 Gi."""
    state = cluster()
    z1, z2 = (LabelSelector((Requirement("topology.kubernetes.io/zone", "In", (zone,)),)) for zone in ("z1", "z2"))
    state.storage.capacities.update(
        one=StorageCapacity("cloud", 8 * GI, z1), two=StorageCapacity("cloud", 20 * GI, z2),
        other=StorageCapacity("other", 99 * GI, z1), silent=StorageCapacity("cloud", None, z1),
        nowhere=StorageCapacity("cloud", 99 * GI, None),
    )  # fmt: skip
    wants = pod(claim(kind="cloud"))
    assert fits(state, wants) == "abc", "a driver that does not tell has room"
    state.storage.tracked.add("csi.cloud")
    assert fits(state, wants) == "c"
    assert feasible(state, wants).message() == f"0/3 nodes are available: 2 {NO_SPACE}."
    assert fits(state, pod(claim(gi=8, kind="cloud"))) == "abc"
    # Each claim is asked for by itself, as kube-scheduler does.
    assert fits(state, pod(claim("one", 15, "cloud"), claim("two", 15, "cloud"))) == "c"


def test_the_score_is_what_is_left_of_the_storage_that_the_claims_get_in_the_mean_of_its_classes():
    """By the default line, 100 where nothing is in use and 0 where all is; per cent are rounded down."""
    state = cluster(volume("a10", 10, nodes=on("a")), volume("b40", 40, nodes=on("b")))
    z2 = LabelSelector((Requirement("topology.kubernetes.io/zone", "In", ("z2",)),))
    state.storage.capacities["two"] = StorageCapacity("cloud", 20 * GI, z2, 64 * GI)
    state.storage.tracked.add("csi.cloud")

    def scores(*claims: UnboundClaim, config: KubeSchedulerConfig = DEFAULT) -> list[int]:
        wants = pod(*claims)
        return plugin_scores(state, wants, feasible(state, wants).mask, config)["VolumeBinding"].tolist()

    assert scores(claim(gi=5))[:2] == [50, 88]  # of 10, and 12 per cent of 40
    assert scores(claim(gi=20, kind="cloud"))[2] == 69  # of 64, whatever the largest is
    assert scores(claim("one", 20, "cloud"), claim("two", 20, "cloud"))[2] == 38  # together 62 per cent
    most = KubeSchedulerConfig(storage_shape=((0, 0), (100, 10)))
    assert scores(claim(gi=5), config=most)[:2] == [50, 12]
    older = KubeSchedulerConfig(weights={**DEFAULT_WEIGHTS, "VolumeBinding": 0})
    assert "VolumeBinding" not in plugin_scores(state, pod(claim()), feasible(state, pod(claim())).mask, older)


def test_a_claim_whose_volume_is_being_made_keeps_its_pod_on_that_node():
    state = cluster()
    assert fits(state, pod(claim(kind="cloud", selected_node="b"))) == "b"
    assert fits(state, pod(claim(kind="cloud", selected_node="gone"))) == ""
    assert given(state, pod(claim(kind="cloud", selected_node="b")), "b") == {"data": "new"}


def test_bound_and_unbound_volumes_have_their_own_reasons_and_no_preemption_helps():
    state = cluster(volume("b10", nodes=on("b")))
    verdict = feasible(state, pod(claim(), node_terms=(on("a"),)))
    assert verdict.diagnosis.reasons == {CONFLICT: 2, NO_MATCH: 2}
    assert verdict.diagnosis.by_node == ((NO_MATCH,), (CONFLICT,), (CONFLICT, NO_MATCH))
    assert verdict.diagnosis.unresolvable.all()
    assert verdict.plugins == {"VolumeBinding"}


def test_what_one_pod_was_given_no_other_gets_until_that_is_undone():
    state = cluster(volume("v1", nodes=on("a")))
    first, second = pod(claim("one")), pod(claim("two"))
    plan = plan_volumes(state, first, state.index["a"])
    plan.reserve(state, "a")
    assert (fits(state, second), fits(state, first)) == ("", "a")
    imagined = state.fork()
    plan.release(state)
    assert (fits(state, second), fits(imagined, second)) == ("a", "")
    # The same with a volume that is made: another pod that uses the claim has to follow.
    plan = VolumePlan(provision=(claim("three", kind="cloud"),))
    plan.reserve(state, "c")
    assert fits(state, pod(claim("three", kind="cloud"))) == "c"
    plan.release(state)
    assert fits(state, pod(claim("three", kind="cloud"))) == "abc"


def test_news_of_a_volume_that_was_given_away_does_not_free_it():
    state = cluster(volume("v1"))
    plan = plan_volumes(state, pod(claim("one")), 0)
    plan.reserve(state, "a")
    state.storage.put_volume(volume("v1", labels={"somebody": "labels it"}))
    assert fits(state, pod(claim("two"))) == ""
    state.storage.put_volume(volume("v1", claim="default/one", claim_uid="u-one", available=False))
    plan.release(state)
    assert (fits(state, pod(claim("one"))), fits(state, pod(claim("two")))) == ("abc", "")
    state.storage.drop_volume("v1")
    assert fits(state, pod(claim("one"))) == ""


def test_what_is_attached_without_a_pod_counts_against_the_limit_of_a_node():
    """Node a attaches two volumes of the driver. One is still attached after its pod, another one a pod uses too."""

    def of(*handles: str) -> Pod:
        return Pod("p", volumes=VolumeNeeds(attachments=frozenset(("ebs", each) for each in handles)))

    state = make.cluster([make.node("a", volume_limits={"ebs": 2}), make.node("b")], a=[replace(of("h1"), name="runs")])
    state.storage.put_volume(Volume("pv1", GI, handle="h1"))
    state.storage.put_volume(Volume("pv2", GI, handle="h2"))
    state.storage.attached["a"] = {"one": ("ebs", "pv1"), "gone": ("ebs", "pv9")}
    assert (fits(state, of("h3")), fits(state, of("h3", "h4"))) == ("ab", "b")
    state.storage.attached["a"]["two"] = ("ebs", "pv2")
    assert (fits(state, of("h1")), fits(state, of("h3"))) == ("ab", "b")


def test_a_bound_volumes_labels_of_zone_and_region_hold_where_nodes_have_such_labels():
    state = cluster()
    state.upsert_node(make.node("bare"))
    old = "failure-domain.beta.kubernetes.io/zone"

    def zoned(key: str, *values: str) -> Pod:
        return Pod("p", volumes=VolumeNeeds(zones=((key, frozenset(values)),)))

    def there(wants: Pod) -> list[str]:
        return [name for name, ok in zip(state.names, feasible(state, wants).mask, strict=True) if ok]

    assert there(zoned("topology.kubernetes.io/zone", "z2", "z3")) == ["c", "bare"]
    assert there(zoned(old, "z1")) == ["a", "b", "bare"], "a node's new label answers for the old one"
    assert there(zoned("topology.kubernetes.io/region", "r")) == ["bare"]
    refused = feasible(state, replace(zoned(old, "z9"), node_selector={"kubernetes.io/hostname": "c"}))
    assert "1 node(s) had no available volume zone" in refused.message()
    assert "VolumeZone" in refused.plugins


def test_in_the_simulator_a_volume_is_taken_with_the_pods_node():
    nodes = [make.node(name, labels={"kubernetes.io/hostname": name}) for name in ("a", "b")]
    pods = [replace(pod(claim(name)), name=name, uid=name) for name in ("one", "two")]
    simulated = SimCluster(nodes, pods)
    simulated.state.storage.classes["local"] = LOCAL
    simulated.state.storage.put_volume(volume("v1", nodes=on("b")))
    first = simulated.next_pod()
    assert first is not None
    assert simulated.feasible(first).tolist() == [False, True]
    simulated.bind(first, 1)
    second = simulated.next_pod()
    assert second is not None
    assert not simulated.feasible(second).any()


def test_in_the_simulator_a_gang_that_is_not_placed_gives_its_volumes_back():
    nodes = [make.node(name, labels={"kubernetes.io/hostname": name}) for name in ("a", "b")]
    pods = [replace(pod(claim(f"c{i}")), name=f"g{i}", uid=f"g{i}", group=PodGroup("g", 2)) for i in (0, 1)]
    simulated = SimCluster(nodes, [*pods, replace(pod(claim("alone")), name="alone", uid="alone", created_s=1.0)])
    simulated.state.storage.classes["local"] = LOCAL
    simulated.state.storage.put_volume(volume("v1", nodes=on("b")))
    for row in (1, None):
        member = simulated.next_pod()
        assert member is not None
        assert simulated.feasible(member).tolist() == [False, row == 1]
        simulated.bind(member, row) if row is not None else simulated.reject(member)
    last = simulated.next_pod()
    assert last is not None
    assert (last.name, simulated.feasible(last).tolist()) == ("alone", [False, True])


def test_thousands_of_local_volumes_are_matched_as_few_are():
    """Five hundred nodes with a volume each, of 1 to 5 Gi in turns: a claim of 3 Gi fits on three fifths of them."""
    nodes = [make.node(f"n{i}", labels={"kubernetes.io/hostname": f"n{i}"}) for i in range(500)]
    state = make.cluster(nodes)
    state.storage.classes["local"] = LOCAL
    for i in range(500):
        state.storage.put_volume(volume(f"v{i}", 1 + i % 5, nodes=on(f"n{i}")))
    mask = feasible(state, pod(claim(gi=3))).mask
    assert mask.tolist() == [i % 5 >= 2 for i in range(500)]
    assert given(state, pod(claim(gi=3)), "n7") == {"data": "v7"}
