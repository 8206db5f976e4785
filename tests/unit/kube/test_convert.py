"""API objects become pods and nodes as kube-scheduler reads them; the sums are worked out by hand."""

from math import inf
from typing import Any

import msgspec
import pytest

from aaml.cluster import objects
from aaml.cluster.objects import LabelSelector, Pod, Requirement
from aaml.cluster.storage import StorageCapacity, StorageClass, Volume
from aaml.errors import UserError
from aaml.kube.objects import wire
from aaml.kube.objects.convert import gpu_indices, node_from_json, node_to_json, pod_from_json, pod_to_json
from aaml.kube.objects.volumes import capacity_from_api, claim_names, class_from_api, volume_from_api

MI = 1024**2
GI = 1024**3


def container(cpu: str | None = None, memory: str | None = None, **more: Any) -> dict[str, Any]:
    requests = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    return {"name": "c", "image": "pause", "resources": {"requests": requests}, **more}


def pod(spec: dict[str, Any], status: dict[str, Any] | None = None, **metadata: Any) -> Pod:
    body = {"metadata": {"name": "p", "namespace": "default", "uid": "u1", **metadata}, "spec": spec}
    return pod_from_json(msgspec.json.encode({**body, "status": status or {}}))


class TestRequests:
    def test_containers_add_up(self):
        found = pod({"containers": [container("250m", "64Mi"), container("0.5", "1Gi")]})
        assert found.requests == {"cpu": 750, "memory": 64 * MI + GI}

    def test_the_sum_is_rounded_not_the_parts(self):
        # 0.1m + 0.1m = 0.2m, which is 1m; rounding each up first would give 2m.
        assert pod({"containers": [container("100u"), container("100u")]}).requests == {"cpu": 1}

    def test_largest_init_container_counts_when_it_is_larger(self):
        found = pod({"containers": [container("1", "1Gi")], "initContainers": [container("3"), container("2", "2Gi")]})
        assert found.requests == {"cpu": 3000, "memory": 2 * GI}

    def test_sidecars_add_to_containers_and_to_later_init_containers(self):
        spec = {
            "containers": [container("1")],
            "initContainers": [
                container("5"),  # before the first sidecar: 5
                container("2", restartPolicy="Always"),  # sidecars so far: 2
                container("4"),  # 4 + 2 = 6
                container("1", restartPolicy="Always"),  # sidecars so far: 3
            ],
        }
        # Running: 1 + 2 + 1 = 4; starting needs max(5, 2, 6, 3) = 6.
        assert pod(spec).requests == {"cpu": 6000}

    def test_overhead_comes_on_top_of_the_maximum(self):
        spec = {"containers": [container("1")], "initContainers": [container("2")], "overhead": {"cpu": "250m"}}
        assert pod(spec).requests == {"cpu": 2250}

    def test_pod_level_resources_replace_the_sum_of_what_they_name(self):
        spec = {
            "containers": [container("1", "1Gi"), container("1", "1Gi")],
            "resources": {"requests": {"cpu": "3"}},
            "overhead": {"cpu": "100m"},
        }
        assert pod(spec).requests == {"cpu": 3100, "memory": 2 * GI}

    def test_every_resource_is_kept(self):
        requests = {"ephemeral-storage": "1Gi", "example.com/fpga": "2", "hugepages-2Mi": "4Mi"}
        assert pod({"containers": [{"name": "c", "resources": {"requests": requests}}]}).requests == {
            "ephemeral-storage": GI,
            "example.com/fpga": 2,
            "hugepages-2Mi": 4 * MI,
        }

    def test_a_pod_being_resized_holds_the_larger_amount(self):
        status = {"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}
        assert pod({"containers": [container("1")]}, status).requests == {"cpu": 2000}
        conditions = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
        wanted = pod({"containers": [container("9")]}, {**status, "conditions": conditions})
        assert wanted.requests == {"cpu": 2000}

    def test_scores_count_defaults_per_container(self):
        # 100m and 200Mi stand in for each container that requests none (kube-scheduler's defaults).
        found = pod({"containers": [container("1"), container(None, "1Gi"), container()]})
        assert found.nonzero == (1000 + 100 + 100, 200 * MI + GI + 200 * MI)
        assert found.requests == {"cpu": 1000, "memory": GI}

    def test_pod_level_requests_leave_defaults_only_for_what_nothing_requests(self):
        found = pod({"containers": [container(), container()], "resources": {"requests": {"cpu": "1"}}})
        assert found.nonzero == (1000, 400 * MI)

    def test_an_impossible_amount_is_named(self):
        with pytest.raises(UserError, match=r"cpu: '-1'"):
            pod({"containers": [container("-1")]})


class TestGpus:
    def test_shared_gpu_by_annotation(self):
        notes = {
            "alibabacloud.com/gpu-count": "1",
            "alibabacloud.com/gpu-milli": "460",
            "alibabacloud.com/gpu-card-model": "V100M16|V100M32",
        }
        found = pod({"containers": [container("1")]}, annotations=notes)
        assert found.gpu == objects.GpuRequest(1, 460, frozenset({"V100M16", "V100M32"}))

    def test_several_gpus_are_whole(self):
        notes = {"alibabacloud.com/gpu-count": "4", "alibabacloud.com/gpu-milli": "1000"}
        assert pod({"containers": [container()]}, annotations=notes).gpu == objects.GpuRequest(4, 1000)

    def test_nvidia_gpus_are_whole_devices_and_an_extended_resource(self):
        found = pod({"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "2"}}}]})
        assert found.gpu == objects.GpuRequest(2, 1000)
        assert found.requests == {"nvidia.com/gpu": 2}

    def test_the_annotation_wins_over_the_resource(self):
        notes = {"alibabacloud.com/gpu-count": "1", "alibabacloud.com/gpu-milli": "500"}
        spec = {"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
        assert pod(spec, annotations=notes).gpu == objects.GpuRequest(1, 500)

    def test_a_node_with_both_names_has_its_devices_once(self):
        status = {"allocatable": {"cpu": "96", "nvidia.com/gpu": "8", "alibabacloud.com/gpu-count": "8"}}
        labels = {"alibabacloud.com/gpu-card-model": "A10"}
        node = node_from_json({"metadata": {"name": "n", "labels": labels}, "status": status})
        assert (node.gpu_count, node.gpu_model) == (8, "A10")
        assert (
            node_from_json({"metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": 2}}}).gpu_count == 2
        )

    def test_annotations_keep_a_pod_from_being_disrupted(self):
        said = {"karpenter.sh/do-not-disrupt": "true"}, {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
        assert all(pod({"containers": [container()]}, annotations=each).do_not_disrupt for each in said)
        assert not pod({"containers": [container()]}).do_not_disrupt

    @pytest.mark.parametrize(
        ("value", "seconds"),
        [("1h30m", 5400.0), ("+1.5h", 5400.0), (".5s", 0.5), ("1m1ms", 60.001), ("true", inf), ("no", 0.0), ("0s", 0.0),
         ("-5m", 0.0), ("5", 0.0)],
    )  # fmt: skip
    def test_a_time_for_which_karpenter_may_not_disrupt_a_pod(self, value, seconds):
        notes = {"karpenter.sh/do-not-disrupt": value}
        found = pod({"containers": [container()]}, annotations=notes)
        assert (found.do_not_disrupt, found.do_not_disrupt_s) == (seconds > 0, seconds or inf)
        again = pod_from_json(pod_to_json(found))
        assert (again.do_not_disrupt, again.do_not_disrupt_s) == (found.do_not_disrupt, found.do_not_disrupt_s)

    def test_devices_of_a_bound_pod(self):
        for text, expected in (("2-3", (2, 3)), ("0", (0,)), ("", None), ("x", None)):
            metadata = wire.Metadata(annotations={"alibabacloud.com/gpu-index": text})
            assert gpu_indices(wire.PodObject(metadata=metadata)) == expected


class TestConstraints:
    def test_tolerations_and_their_defaults(self):
        spec = {"tolerations": [{"key": "a", "value": "b", "effect": "NoExecute"}, {"operator": "Exists"}]}
        assert pod(spec).tolerations == (
            objects.Toleration("a", "Equal", "b", "NoExecute"),
            objects.Toleration("", "Exists"),
        )

    def test_node_affinity(self):
        term = {
            "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}],
            "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}],
        }
        affinity = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "preference": term}],
            }
        }
        expected = objects.NodeSelectorTerm(
            (Requirement("zone", "In", ("a", "b")),), (Requirement("metadata.name", "NotIn", ("n1",)),)
        )
        found = pod({"affinity": affinity, "nodeSelector": {"disk": "ssd"}})
        assert found.affinity.required_nodes == (expected,)
        assert found.affinity.preferred_nodes == (objects.PreferredNode(7, expected),)
        assert found.node_selector == {"disk": "ssd"}

    def test_pod_terms_mean_the_own_namespace_unless_they_name_others(self):
        def term(**more: Any) -> dict[str, Any]:
            return {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}, **more}

        required = "requiredDuringSchedulingIgnoredDuringExecution"
        affinity = {
            "podAffinity": {required: [term(), term(namespaces=["q"]), term(namespaceSelector={})]},
            "podAntiAffinity": {
                required: [{"topologyKey": "zone"}],
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": term()}],
            },
        }
        found = pod({"affinity": affinity}, namespace="team").affinity
        selector = LabelSelector((Requirement("app", "In", ("x",)),))
        own = objects.PodAffinityTerm("zone", selector, frozenset({"team"}))
        assert found.required_pods == (
            own,
            objects.PodAffinityTerm("zone", selector, frozenset({"q"})),
            objects.PodAffinityTerm("zone", selector, frozenset(), LabelSelector()),
        )
        assert found.required_anti_pods == (objects.PodAffinityTerm("zone", None, frozenset({"team"})),)
        assert found.preferred_pods == (objects.WeightedPodAffinityTerm(-5, own),)

    def test_match_label_keys_are_merged_once(self):
        constraint = {
            "maxSkew": 2,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "minDomains": 3,
            "nodeTaintsPolicy": "Honor",
            "nodeAffinityPolicy": "Ignore",
            "labelSelector": {"matchLabels": {"app": "x"}},
            "matchLabelKeys": ["pod-template-hash", "absent"],
        }
        labels = {"app": "x", "pod-template-hash": "h"}
        merged = LabelSelector((Requirement("app", "In", ("x",)), Requirement("pod-template-hash", "In", ("h",))))
        found = pod({"topologySpreadConstraints": [constraint]}, labels=labels).spread
        assert found == (objects.TopologySpread(2, "zone", merged, True, 3, False, True),)
        # The API server has merged the key already.
        constraint["labelSelector"]["matchExpressions"] = [
            {"key": "pod-template-hash", "operator": "In", "values": ["h"]}
        ]
        assert pod({"topologySpreadConstraints": [constraint]}, labels=labels).spread == found

    def test_host_ports_of_containers_and_sidecars(self):
        def port(number: int, **more: Any) -> list[dict[str, Any]]:
            return [{"containerPort": number, "hostPort": number, **more}, {"containerPort": 1}]

        spec = {
            "containers": [container(ports=port(80)), container(ports=port(53, protocol="UDP", hostIP="10.0.0.1"))],
            "initContainers": [container(ports=port(81), restartPolicy="Always"), container(ports=port(82))],
        }
        assert pod(spec).host_ports == (
            objects.HostPort(80),
            objects.HostPort(53, "UDP", "10.0.0.1"),
            objects.HostPort(81),
        )

    def test_owner_gates_priority_and_times(self):
        references = [{"kind": "Job", "name": "other"}, {"kind": "ReplicaSet", "name": "web-1", "controller": True}]
        found = pod(
            {
                "schedulingGates": [{"name": "g"}],
                "priority": 9,
                "preemptionPolicy": "Never",
                "schedulerName": "mine",
                "activeDeadlineSeconds": 60,
            },
            {
                "phase": "Running",
                "startTime": "1970-01-01T00:01:40Z",
                "nominatedNodeName": "n",
                "qosClass": "Burstable",
            },
            ownerReferences=references,
            creationTimestamp="1970-01-01T00:00:10Z",
            deletionTimestamp="1970-01-01T00:00:11Z",
            resourceVersion="77",
        )
        assert (found.owner, found.gates, found.priority, found.preemption_policy) == (
            "ReplicaSet/web-1",
            ("g",),
            9,
            "Never",
        )
        assert (found.created_s, found.started_s, found.terminating) == (10.0, 100.0, True)
        assert (found.deadline_s, found.qos) == (60.0, "Burstable")
        assert (found.phase, found.nominated_node, found.scheduler_name) == ("Running", "n", "mine")
        assert (found.uid, found.resource_version) == ("u1", "77")

    def test_null_is_as_good_as_absent(self):
        body = {"metadata": {"name": "p", "labels": None, "creationTimestamp": None}, "spec": {"affinity": None}}
        assert pod_from_json(body).labels == {}

    @pytest.mark.parametrize("body", [b"", b"[]", b'{"spec": 3}', b'{"metadata": {"name": 1}}'])
    def test_anything_else_is_refused_in_one_line(self, body: bytes):
        with pytest.raises(UserError) as error:
            pod_from_json(body)
        assert "\n" not in str(error.value)


BOUND = {"pv.kubernetes.io/bind-completed": "yes"}


class Shelf:
    """Claims in every state; volumes that are there tie their pod to zone a."""

    def claim(self, namespace: str, name: str) -> wire.ClaimObject | None:
        owner = wire.OwnerReference("Pod", "p", "u-p", controller=True)
        claims = {
            "data": wire.ClaimObject(wire.Metadata(annotations=BOUND), wire.ClaimSpec("pv1", ["ReadWriteOncePod"])),
            "half": wire.ClaimObject(spec=wire.ClaimSpec("pv1")),
            "lost": wire.ClaimObject(wire.Metadata(annotations=BOUND), wire.ClaimSpec("gone")),
            "loose": wire.ClaimObject(spec=wire.ClaimSpec("", [], "slow")),
            "late": wire.ClaimObject(
                wire.Metadata(uid="u", annotations={"volume.kubernetes.io/selected-node": "n1"}),
                wire.ClaimSpec(
                    "", ["ReadWriteOnce"], "wait", wire.ResourceNeeds({"storage": "1.5Gi"}), "Block", "fast",
                    wire.Selector({"disk": "ssd"}),
                ),
            ),
            "old": wire.ClaimObject(wire.Metadata(annotations={"volume.beta.kubernetes.io/storage-class": "wait"})),
            "going": wire.ClaimObject(wire.Metadata(deletion_timestamp="2026-01-01T00:00:00Z")),
            "dead": wire.ClaimObject(spec=wire.ClaimSpec("pv9"), status=wire.Phase("Lost")),
            "p-mine": wire.ClaimObject(wire.Metadata(owner_references=[owner]), wire.ClaimSpec("", [], "wait")),
            "p-theirs": wire.ClaimObject(spec=wire.ClaimSpec("", [], "wait")),
        }  # fmt: skip
        if name not in claims:
            return None
        found = claims[name]
        return msgspec.structs.replace(
            found, metadata=msgspec.structs.replace(found.metadata, name=name, namespace=namespace)
        )

    def volume(self, name: str) -> wire.VolumeObject | None:
        term = wire.NodeTerm([wire.Expression("zone", "In", ["a"])])
        affinity = wire.VolumeNodeAffinity(wire.NodeTerms([term]))
        labels = {"topology.kubernetes.io/zone": "a__b", "topology.kubernetes.io/region": "r__", "other": "x"}
        spec = wire.VolumeSpec(wire.CsiSource("csi.x", "handle"), affinity)
        return wire.VolumeObject(wire.Metadata(name, labels=labels), spec) if name == "pv1" else None

    def storage_class(self, name: str) -> wire.StorageClass | None:
        mode = "WaitForFirstConsumer" if name == "wait" else "Immediate"
        return wire.StorageClass(volume_binding_mode=mode, provisioner="csi.y") if name else None


class TestVolumes:
    def needs(self, *claims: str, own: str = "") -> objects.VolumeNeeds:
        volumes: list[Any] = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
        volumes += [{"name": own, "ephemeral": {"volumeClaimTemplate": {}}}] if own else []
        body = {"metadata": {"name": "p", "uid": "u-p"}, "spec": {"volumes": [*volumes, {"name": "t", "emptyDir": {}}]}}
        return pod_from_json(body, Shelf()).volumes

    def test_a_bound_claim_ties_the_pod_to_the_volumes_nodes_and_zones(self):
        found = self.needs("data")
        assert found.node_terms == ((objects.NodeSelectorTerm((Requirement("zone", "In", ("a",)),)),),)
        assert found.zones == (("topology.kubernetes.io/zone", frozenset({"a", "b"})),)  # an odd label says nothing
        assert found.attachments == {("csi.x", "handle")}
        assert found.exclusive == {"default/data"}
        assert not found.missing
        assert not found.unbound

    def test_what_is_missing_is_said(self):
        assert self.needs("gone").missing == 'persistentvolumeclaim "gone" not found'
        for name in ("loose", "half"):
            assert self.needs(name).missing == "pod has unbound immediate PersistentVolumeClaims"
        assert self.needs("lost").missing == 'persistentvolume "gone" not found'
        assert self.needs("going").missing == 'persistentvolumeclaim "going" is being deleted'
        assert self.needs("dead").missing == 'persistentvolumeclaim "dead" bound to non-existent persistentvolume "pv9"'
        assert (
            self.needs("going", "gone").missing == 'persistentvolumeclaim "gone" not found'
        )  # other plugins come first
        assert self.needs() == objects.NO_VOLUMES

    def test_a_claim_that_waits_for_its_first_consumer_says_what_volume_it_wants(self):
        found = self.needs("late")
        assert found.unbound == (
            objects.UnboundClaim(
                "default/late", "u", "wait", 3 * 2**29, frozenset({"ReadWriteOnce"}), True, "fast",
                objects.LabelSelector((Requirement("disk", "In", ("ssd",)),)), "n1",
            ),
        )  # fmt: skip
        assert found.attachments == {("csi.y", "default/late")}, "its volume will be attached too"
        assert not found.missing
        assert [each.storage_class for each in self.needs("old").unbound] == ["wait"]

    def test_generic_ephemeral_volumes_have_claims_named_after_the_pod_and_owned_by_it(self):
        spec = wire.PodSpec(volumes=[wire.Volume("scratch", ephemeral={"volumeClaimTemplate": {}})])
        assert claim_names(wire.PodObject(metadata=wire.Metadata("p"), spec=spec)) == ("p-scratch",)
        assert [each.key for each in self.needs(own="mine").unbound] == ["default/p-mine"]
        assert self.needs(own="theirs").missing == (
            "PVC default/p-theirs was not created for pod default/p (pod is not owner)"
        )
        assert self.needs(own="soon").missing == (
            'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-soon"'
        )

    def test_volumes_classes_and_capacities_read_as_the_api_spells_them(self):
        volume = wire.VolumeObject(
            wire.Metadata("v", labels={"disk": "ssd"}),
            wire.VolumeSpec(
                capacity={"storage": "2Gi"}, access_modes=["ReadWriteOnce"], storage_class_name="wait",
                claim_ref=wire.ClaimReference("shop", "data", "u"),
            ),
            wire.Phase("Released"),
        )  # fmt: skip
        assert volume_from_api(volume) == Volume(
            "v", 2**31, "wait", frozenset({"ReadWriteOnce"}), labels={"disk": "ssd"}, claim="shop/data", claim_uid="u",
            available=False,
        )  # fmt: skip
        term = wire.TopologyTerm([wire.TopologyLabel("zone", ["a", "b"])])
        zones = objects.NodeSelectorTerm((Requirement("zone", "In", ("a", "b")),))
        made = wire.StorageClass(wire.Metadata("wait"), provisioner="csi.y", allowed_topologies=[term])
        assert class_from_api(made) == StorageClass("wait", "csi.y", (zones,))
        local = wire.StorageClass(wire.Metadata("local"), provisioner="kubernetes.io/no-provisioner")
        assert class_from_api(local) == StorageClass("local")
        nodes = wire.Selector({"zone": "a"})
        room = wire.CapacityObject(storage_class_name="wait", node_topology=nodes, capacity="9Gi")
        assert capacity_from_api(room).largest_bytes == 9 * 2**30
        room = msgspec.structs.replace(room, maximum_volume_size="4Gi")
        assert capacity_from_api(room) == StorageCapacity(
            "wait", 2**32, objects.LabelSelector((Requirement("zone", "In", ("a",)),)), 9 * 2**30
        )
        assert capacity_from_api(wire.CapacityObject()).largest_bytes is None


def test_a_node():
    body = {
        "metadata": {"name": "n", "labels": {"zone": "a"}, "resourceVersion": "5"},
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoExecute"}]},
        "status": {
            "allocatable": {"cpu": "3920m", "memory": "1000Ki", "pods": "110"},
            "capacity": {"cpu": "4"},
            "images": [{"names": ["a@sha", "a:1"], "sizeBytes": 12}],
        },
    }
    node = node_from_json(body)
    assert node.allocatable == {"cpu": 3920, "memory": 1024000, "pods": 110}
    assert node.taints == (objects.Taint("k", "", "NoExecute"),)
    assert node.unschedulable
    assert node.images == {"a@sha": 12, "a:1": 12}
    assert node.resource_version == "5"


def test_a_pod_survives_the_way_to_the_api_and_back():
    original = Pod(
        name="p",
        namespace="team",
        requests={"cpu": 250, "memory": 64 * MI, "example.com/fpga": 1},
        gpu=objects.GpuRequest(1, 460, frozenset({"A10", "T4"})),
        labels={"app": "x"},
        scheduler_name="mine",
        node_selector={"disk": "ssd"},
        affinity=objects.Affinity(
            required_nodes=(objects.NodeSelectorTerm((Requirement("zone", "Exists"),)),),
            preferred_nodes=(objects.PreferredNode(3, objects.NodeSelectorTerm((Requirement("zone", "Exists"),))),),
            required_pods=(objects.PodAffinityTerm("zone", LabelSelector(), frozenset({"team"})),),
            required_anti_pods=(objects.PodAffinityTerm("host", None, frozenset(), LabelSelector()),),
            preferred_pods=(
                objects.WeightedPodAffinityTerm(4, objects.PodAffinityTerm("zone", None, frozenset({"q"}))),
                objects.WeightedPodAffinityTerm(-4, objects.PodAffinityTerm("zone", None, frozenset({"q"}))),
            ),
        ),
        tolerations=(objects.Toleration("k", "Exists", "", "NoSchedule"),),
        spread=(objects.TopologySpread(1, "zone", LabelSelector(), True, 2, False, True),),
        host_ports=(objects.HostPort(80, "UDP", "10.0.0.1"),),
        gates=("g",),
        images=("registry.k8s.io/pause:3.10",),
        nonzero=(250, 64 * MI),
    )
    assert (
        pod_from_json({**(body := pod_to_json(original)), "metadata": {**body["metadata"], "uid": "team/p"}})
        == original
    )


def test_a_node_survives_the_way_to_the_api_and_back():
    original = objects.Node(
        "n",
        {
            "cpu": 4000,
            "memory": GI,
            "pods": 110,
            "nvidia.com/gpu": 2,
            "alibabacloud.com/gpu-count": 2,
            "alibabacloud.com/gpu-milli": 1000,
        },
        labels={"zone": "a", "alibabacloud.com/gpu-card-model": "T4"},
        taints=(objects.Taint("k", "v"),),
        unschedulable=True,
        gpu_count=2,
        gpu_model="T4",
        images={"a:1": 5},
    )
    assert node_from_json(node_to_json(original)) == original


@pytest.mark.parametrize(
    ("conditions", "deleted", "preempted"),
    [
        ([("DisruptionTarget", "True", "PreemptionByScheduler")], True, True),
        ([("DisruptionTarget", "True", "PreemptionByScheduler")], False, False),
        ([("DisruptionTarget", "False", "PreemptionByScheduler")], True, False),
        ([("DisruptionTarget", "True", "EvictionByEvictionAPI")], True, False),
        ([("Ready", "True", "PreemptionByScheduler")], True, False),
    ],
)
def test_a_pod_is_preempted_when_it_is_deleted_and_its_condition_says_by_a_scheduler(conditions, deleted, preempted):
    listed = [{"type": kind, "status": status, "reason": reason} for kind, status, reason in conditions]
    meta = {"name": "p", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})}
    pod = pod_from_json({"metadata": meta, "spec": {}, "status": {"conditions": listed}})
    assert (pod.terminating, pod.preempted) == (deleted, preempted)


RULES = {"restartPolicyRules": [{"action": "Restart"}, {"action": "RestartAllContainers"}]}


@pytest.mark.parametrize(
    ("spec", "features"),
    [
        ({"containers": [{"name": "c"}], "hostNetwork": True}, set()),
        ({"containers": [{"name": "c", "restartPolicyRules": [{"action": "Restart"}]}]}, set()),
        ({"containers": [{"name": "c"}, RULES]}, {"RestartAllContainersOnContainerExits"}),
        ({"initContainers": [RULES]}, {"RestartAllContainersOnContainerExits"}),
        ({"hostUsers": False}, set()),
        ({"hostNetwork": True, "hostUsers": False}, {"UserNamespacesHostNetworkSupport"}),
    ],
)
def test_what_a_pod_requires_of_its_kubelet_is_what_kube_scheduler_infers(spec, features):
    assert pod_from_json({"metadata": {"name": "p"}, "spec": spec}).required_features == features


def test_what_a_kubelet_declares_is_read_and_written():
    node = node_from_json({"metadata": {"name": "n"}, "status": {"declaredFeatures": ["B", "A"]}})
    assert node.declared_features == {"A", "B"}
    assert node_to_json(node)["status"]["declaredFeatures"] == ["A", "B"]
