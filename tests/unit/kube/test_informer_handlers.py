"""Changes of API objects as they act on the state and the queue."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from aaml.cluster import audit
from aaml.cluster.filters import FilterIndex, feasible
from aaml.cluster.objects import Affinity, GpuRequest, LabelSelector, Node, Pod, PodAffinityTerm, PodGroup, VolumeNeeds
from aaml.cluster.state import ClusterState
from aaml.kube.cluster import KubeCluster, LiveOptions
from aaml.kube.informer_handlers import InformerHandlers
from aaml.kube.objects import wire
from aaml.kube.reflector import Changes, Delta, Source, Trouble
from aaml.kube.sources import (
    ATTACHMENTS,
    CAPACITIES,
    CLAIMS,
    CLASSES,
    CSI_DRIVERS,
    CSI_NODES,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    VOLUMES,
    SeenPod,
)
from aaml.kube.transport import ApiError, Transport
from aaml.scheduling.queue import SchedulingQueue


class Rig:
    def __init__(self, *, hold_s: float | None = None, namespaces: tuple[str, ...] = ()) -> None:
        self.state = ClusterState()
        self.queue = SchedulingQueue(lambda: 0.0)
        self.watched: list[str] = []
        self.cancelled: list[tuple[str, str, str]] = []
        self.handlers = InformerHandlers(
            self.state,
            self.queue,
            scheduler_name="mine",
            namespaces=namespaces,
            hold_s=hold_s,
            watch=lambda source: self.watched.append(source.name),
            cancel=lambda *what: self.cancelled.append(what),
            forget=lambda _uid: None,
        )
        self.say(NODES, "added", Node("n1", {"cpu": 1000, "pods": 10}, gpu_count=2))

    def say(self, source: Source[Any], kind: Any, obj: Any, before: Any = None, *, synced: bool = False) -> None:
        self.handlers.on_changes(Changes(source.name, (Delta(kind, obj, before),), synced))

    def pod(self, kind: Any, pod: Pod, before: Pod | None = None, **seen: Any) -> None:
        self.say(PODS, kind, SeenPod(pod, **seen), None if before is None else SeenPod(before))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def mine(name: str = "p", **more: Any) -> Pod:
    return Pod(name, uid=name, requests={"cpu": 100}, scheduler_name="mine", **more)


def test_only_our_own_unbound_pods_wait_and_all_bound_ones_count(rig):
    rig.pod("added", mine())
    rig.pod("added", replace(mine("other"), scheduler_name="theirs"))
    rig.pod("added", replace(mine("bound", node_name="n1"), scheduler_name="theirs"))
    rig.pod("added", mine("going", terminating=True))
    assert [each.uid for each in rig.queue.pods()] == ["p"]
    assert rig.state.requested[0].tolist()[0] == 100


def test_pods_of_other_namespaces_count_and_do_not_wait():
    rig = Rig(namespaces=("team",))
    rig.pod("added", mine("a", namespace="team"))
    rig.pod("added", mine("b", namespace="else"))
    rig.pod("added", mine("c", namespace="else", node_name="n1"))
    assert [each.uid for each in rig.queue.pods()] == ["a"]
    assert list(rig.state.placements) == ["c"]


def test_news_older_than_our_own_bind_does_not_queue_the_pod_again(rig):
    """The pod's condition changed just before it was bound; the watch tells of it after the bind's answer."""
    pod = mine()
    rig.pod("added", pod)
    assert rig.queue.pop() is not None
    rig.state.assume(pod, "n1")
    rig.queue.done("p")
    rig.pod("modified", replace(pod, resource_version="2"), pod)
    assert "p" not in rig.queue
    assert rig.state.placements["p"].assumed
    rig.pod("modified", replace(pod, resource_version="3", node_name="n1"), pod)
    assert not rig.state.placements["p"].assumed
    audit.check(rig.state)


def test_a_pod_bound_elsewhere_meanwhile_moves(rig):
    rig.say(NODES, "added", Node("n2", {"cpu": 1000, "pods": 10}))
    pod = mine()
    rig.pod("added", pod)
    rig.state.assume(pod, "n1")
    rig.pod("modified", replace(pod, node_name="n2"), pod)
    assert rig.state.placements["p"].node_name == "n2"
    assert "p" not in rig.queue
    audit.check(rig.state)


def test_a_deleted_pod_or_node_cancels_binds(rig):
    pod = mine()
    rig.pod("added", pod)
    rig.state.assume(pod, "n1")
    rig.pod("deleted", pod, pod)
    assert rig.cancelled == [("p", "", "the pod was deleted")]
    assert not rig.state.placements
    assert "p" not in rig.queue
    rig.say(NODES, "deleted", rig.state.nodes[0])
    assert rig.cancelled[1] == ("", "n1", "node n1 was deleted")
    assert len(rig.state) == 0


def test_a_heartbeat_of_a_node_changes_nothing(rig):
    generation = rig.state.generation
    node = rig.state.nodes[0]
    rig.say(NODES, "modified", replace(node, resource_version="9"), node)
    assert rig.state.generation == generation
    rig.say(NODES, "modified", replace(node, resource_version="9", unschedulable=True), node)
    assert rig.state.unschedulable.tolist() == [True]


def test_devices_are_those_of_the_annotation_when_the_node_has_them(rig):
    gpu = GpuRequest(1, 500)
    rig.pod("added", replace(mine("a", node_name="n1"), gpu=gpu), gpus=(1,))
    assert rig.state.gpu_free.tolist() == [[1000, 500]]
    for name, gpus in (("b", (7,)), ("c", (0, 0))):
        rig.pod("added", replace(mine(name, node_name="n1"), gpu=gpu), gpus=gpus)
    audit.check(rig.state)
    assert rig.state.gpu_free.sum() == 500


def test_an_unschedulable_pod_is_ready_again_when_a_node_comes(rig):
    rig.pod("added", mine())
    queued = rig.queue.pop()
    assert queued is not None
    rig.queue.requeue(queued, frozenset({"NodeResourcesFit"}))
    assert rig.queue.counts()["unschedulable"] == 1
    rig.say(NODES, "added", Node("n2", {"cpu": 4000, "pods": 10}))
    assert rig.queue.counts()["unschedulable"] == 0


def test_a_dry_run_decides_on_a_pod_when_another_scheduler_has_placed_it_and_before_the_state_hears_of_it():
    rig = Rig(hold_s=3600.0)
    pod = mine()
    rig.pod("added", pod)
    assert rig.handlers.step()
    assert "p" not in rig.queue
    rig.pod("modified", replace(pod, node_name="n1"), pod)
    assert rig.handlers.step()
    assert [each.pod.node_name for each in rig.queue.pods()] == [""]
    assert rig.handlers.chosen == {"p": "n1"}
    assert not rig.state.placements
    assert rig.handlers.step()
    assert rig.state.placements["p"].node_name == "n1"
    assert "p" not in rig.queue
    assert rig.handlers.chosen == {}
    assert not rig.handlers.step()


def shadow_of(*first: Pod) -> Rig:
    """A dry run that has received its first list."""
    rig = Rig(hold_s=3600.0)
    rig.handlers.on_changes(
        Changes(PODS.name, tuple(Delta("added", SeenPod(each), None) for each in first), synced=True)
    )
    return rig


def test_a_dry_run_decides_on_a_pod_that_was_placed_before_it_was_heard_of():
    rig = shadow_of()
    rig.pod("added", mine(node_name="n1"))
    seen = []
    while rig.handlers.step():
        seen.append(([each.uid for each in rig.queue.pods()], rig.handlers.chosen.get("p"), len(rig.state.placements)))
    assert (["p"], "n1", 0) in seen, "it is decided on before the state hears of it"
    assert seen[-1] == ([], None, 1), "and then it counts, once"
    rig.pod("modified", mine(node_name="n1"), mine(node_name="n1"))
    assert rig.handlers.step()
    assert not list(rig.queue.pods())


def test_a_dry_run_leaves_out_pods_of_the_first_list_of_others_and_those_that_end():
    rig = shadow_of(mine("old", node_name="n1"))
    rig.pod("added", replace(mine("other", node_name="n1"), scheduler_name="theirs"))
    rig.pod("added", mine("going", node_name="n1", terminating=True))
    rig.pod("added", mine("nowhere", node_name="gone"))
    while rig.handlers.step():
        assert not list(rig.queue.pods())
    assert {"old", "other"} <= set(rig.state.placements)


def test_a_dry_run_decides_once_on_a_pod_that_nobody_places():
    rig = Rig(hold_s=0.0)
    pod = mine()
    rig.pod("added", pod)
    assert rig.handlers.step()
    assert rig.handlers.step()
    assert rig.queue.pop() is not None
    rig.queue.done("p")
    rig.handlers.decided("p")
    rig.pod("modified", replace(pod, resource_version="2"), pod)
    assert rig.handlers.step()
    assert not rig.handlers.step()
    assert "p" not in rig.queue


@pytest.mark.parametrize("what", ["deleted", "terminating", "on a node that is not known"])
def test_a_held_pod_that_goes_is_not_decided_on(what):
    rig = Rig(hold_s=3600.0)
    pod = mine()
    rig.pod("added", pod)
    after = {"deleted": pod, "terminating": replace(pod, terminating=True)}.get(what, replace(pod, node_name="gone"))
    rig.pod("deleted" if what == "deleted" else "modified", after, pod)
    while rig.handlers.step():
        pass
    assert "p" not in rig.queue
    assert rig.handlers.due_s == float("inf")


def test_namespaces_are_watched_once_a_selector_needs_them_and_waited_for(rig):
    term = PodAffinityTerm("zone", LabelSelector(), namespace_selector=LabelSelector())
    rig.pod("added", mine("plain"))
    assert not rig.watched
    rig.pod("added", mine("a", affinity=Affinity(required_anti_pods=(term,))))
    rig.pod("added", mine("b", affinity=Affinity(required_anti_pods=(term,))))
    assert rig.watched == [NAMESPACES.name]
    assert rig.handlers.awaited == {NAMESPACES.name}
    rig.say(NAMESPACES, "added", wire.Named(wire.Metadata("team", labels={"x": "y"})), synced=True)
    assert not rig.handlers.awaited
    assert rig.state.namespace_labels == {"team": {"x": "y"}}


def test_namespaces_that_may_not_be_read_do_not_stop_everything(rig, caplog):
    term = PodAffinityTerm("zone", LabelSelector(), namespace_selector=LabelSelector())
    rig.pod("added", mine("a", affinity=Affinity(required_anti_pods=(term,))))
    rig.handlers.on_trouble(Trouble(NAMESPACES.name, ApiError(503, "ServiceUnavailable", "")))
    assert rig.handlers.awaited == {NAMESPACES.name}
    rig.handlers.on_trouble(Trouble(NAMESPACES.name, ApiError(403, "Forbidden", "no")))
    assert not rig.handlers.awaited
    assert "namespaces cannot be read" in caplog.text


def test_a_first_pod_with_a_claim_waits_for_the_lists_instead_of_failing(rig):
    rig.pod("added", mine(), claims=TestStorage.raw)
    for source in (CLAIMS, VOLUMES, CLASSES, CSI_NODES, ATTACHMENTS):
        assert source.name in rig.handlers.awaited
        rig.handlers.on_changes(Changes(source.name, (), synced=True))
    assert not rig.handlers.awaited
    assert "are not known" not in next(rig.queue.pods()).pod.volumes.missing


def test_storage_that_may_not_be_read_keeps_its_pods_pending_and_no_others(rig, caplog):
    rig.pod("added", mine(), claims=TestStorage.raw)
    for source in (CLAIMS, VOLUMES, CLASSES, CSI_NODES, ATTACHMENTS):
        rig.handlers.on_trouble(Trouble(source.name, ApiError(403, "Forbidden", "no")))
    assert not rig.handlers.awaited
    assert next(rig.queue.pods()).pod.volumes.missing
    assert "persistentvolumeclaims cannot be read (403 Forbidden: no): pods with claims stay pending" in caplog.text


LATE = wire.ClaimObject(
    wire.Metadata("data", namespace="default", uid="u-data"),
    wire.ClaimSpec(storage_class_name="wait", resources=wire.ResourceNeeds({"storage": "1Gi"})),
)


class TestStorage:
    raw = wire.PodObject(
        metadata=wire.Metadata("p", namespace="default"),
        spec=wire.PodSpec(volumes=[wire.Volume("data", wire.ClaimSource("data"))]),
    )

    bound = wire.Metadata("data", namespace="default", annotations={"pv.kubernetes.io/bind-completed": "yes"})

    def waiting(self, rig: Rig) -> Pod:
        return next(each.pod for each in rig.queue.pods() if each.uid == "p")

    def list_all(self, rig: Rig, claim: wire.ClaimObject) -> None:
        rig.say(CLAIMS, "added", claim, synced=True)
        volume = wire.VolumeObject(wire.Metadata("pv1"), wire.VolumeSpec(wire.CsiSource("csi.x", "h")))
        rig.say(VOLUMES, "added", volume, synced=True)
        rig.handlers.on_changes(Changes(CLASSES.name, (), synced=True))
        limits = wire.CsiNodeSpec([wire.CsiDriver("csi.x", wire.CsiDriver.Allocatable(3))])
        rig.say(CSI_NODES, "added", wire.CsiNode(wire.Metadata("n1"), limits), synced=True)

    def test_it_is_watched_once_a_pod_uses_a_claim_and_pods_learn_what_their_claims_are(self, rig):
        rig.pod("added", mine("plain"))
        assert not rig.watched
        rig.pod("added", mine(), claims=self.raw)
        assert rig.watched == [CLAIMS.name, VOLUMES.name, CLASSES.name, CSI_NODES.name, ATTACHMENTS.name]
        assert self.waiting(rig).volumes.missing
        self.list_all(rig, wire.ClaimObject(self.bound, wire.ClaimSpec("pv1")))
        assert self.waiting(rig).volumes.missing == ""
        assert self.waiting(rig).volumes.attachments == {("csi.x", "h")}
        assert rig.state.nodes[0].volume_limits == {"csi.x": 3}

    def test_a_claim_that_is_bound_later_makes_its_pod_ready(self, rig):
        rig.pod("added", mine(), claims=self.raw)
        loose = wire.ClaimObject(wire.Metadata("data", namespace="default"))
        self.list_all(rig, loose)
        assert self.waiting(rig).volumes.missing == "pod has unbound immediate PersistentVolumeClaims"
        queued = rig.queue.pop()
        assert queued is not None
        rig.queue.requeue(queued, frozenset({"VolumeBinding"}))
        assert rig.queue.counts()["unschedulable"] == 1
        rig.say(CLAIMS, "modified", wire.ClaimObject(self.bound, wire.ClaimSpec("pv1")), loose)
        assert self.waiting(rig).volumes.missing == ""
        assert rig.queue.counts()["unschedulable"] == 0

    def first_consumer(self, rig: Rig) -> None:
        """List a claim of the waiting pod p whose class waits for its first consumer."""
        rig.pod("added", mine(), claims=self.raw)
        rig.say(CLAIMS, "added", LATE, synced=True)
        rig.handlers.on_changes(Changes(VOLUMES.name, (), synced=True))
        rig.say(
            CLASSES, "added", wire.StorageClass(wire.Metadata("wait"), "WaitForFirstConsumer", "csi.x"), synced=True
        )
        rig.handlers.on_changes(Changes(CSI_NODES.name, (), synced=True))
        rig.handlers.on_changes(Changes(ATTACHMENTS.name, (), synced=True))

    def test_what_is_detached_makes_a_pod_ready_that_found_its_nodes_full(self, rig):
        self.first_consumer(rig)
        spec = wire.AttachmentSpec("csi.x", "n1", wire.AttachedVolume("pv1"))
        attachment = wire.AttachmentObject(wire.Metadata("a"), spec)
        rig.say(ATTACHMENTS, "added", attachment)
        assert rig.state.storage.attached == {"n1": {"a": ("csi.x", "pv1")}}
        rig.queue.activate(["p"])
        queued = rig.queue.pop()
        assert queued is not None
        rig.queue.requeue(queued, frozenset({"NodeVolumeLimits"}))
        assert rig.queue.counts()["unschedulable"] == 1
        rig.say(ATTACHMENTS, "deleted", attachment)
        assert rig.queue.counts()["unschedulable"] == 0
        assert rig.state.storage.attached == {}

    def test_capacities_are_watched_once_a_pod_of_ours_has_a_claim_that_is_not_bound(self, rig):
        rig.pod("added", replace(mine("other"), scheduler_name="theirs"), claims=self.raw)
        self.first_consumer(rig)
        assert rig.watched[5:] == [CSI_DRIVERS.name, CAPACITIES.name]
        assert rig.handlers.awaited == {CSI_DRIVERS.name, CAPACITIES.name}
        assert self.waiting(rig).volumes.missing
        for source in (CSI_DRIVERS, CAPACITIES):
            rig.handlers.on_changes(Changes(source.name, (), synced=True))
        assert [each.key for each in self.waiting(rig).volumes.unbound] == ["default/data"]
        assert feasible(rig.state, self.waiting(rig)).mask.tolist() == [True]

    def test_what_the_account_may_not_do_is_said_once_and_in_the_event_of_each_pod(self, rig, caplog):
        self.first_consumer(rig)
        for source in (CSI_DRIVERS, CAPACITIES):
            rig.handlers.on_trouble(Trouble(source.name, ApiError(403, "Forbidden", "no")))
        said = "csidrivers cannot be read (403 Forbidden: no): pods whose claims wait for their first consumer stay"
        assert caplog.text.count(said) == 1
        assert not rig.handlers.awaited
        message = feasible(rig.state, self.waiting(rig)).message()
        assert message == (
            '0/1 nodes are available: persistentvolumeclaim "data" waits for its first consumer, and this account may '
            "not list csidrivers and list csistoragecapacities."
        )
        for source in (CSI_DRIVERS, CAPACITIES):  # somebody has granted it
            rig.handlers.on_changes(Changes(source.name, (), synced=True))
        assert feasible(rig.state, self.waiting(rig)).mask.tolist() == [True]
        rig.handlers.on_patch_forbidden("persistentvolumeclaims", "403 Forbidden: no")
        assert "this account may not patch persistentvolumeclaims" in feasible(rig.state, self.waiting(rig)).message()

    def test_volumes_classes_and_capacities_that_may_help_make_waiting_pods_ready(self, rig):
        self.first_consumer(rig)
        for source in (CSI_DRIVERS, CAPACITIES):
            rig.handlers.on_changes(Changes(source.name, (), synced=True))

        def helps(source: Source[Any], kind: Any, obj: Any, before: Any = None) -> bool:
            queued = rig.queue.pop()
            assert queued is not None
            rig.queue.requeue(queued, frozenset({"VolumeBinding"}))
            rig.say(source, kind, obj, before)
            helped = rig.queue.counts()["unschedulable"] == 0
            rig.queue.activate(["p"])
            return helped

        def volume(phase: str, ref: wire.ClaimReference | None = None) -> wire.VolumeObject:
            spec = wire.VolumeSpec(capacity={"storage": "1Gi"}, storage_class_name="wait", claim_ref=ref)
            return wire.VolumeObject(wire.Metadata("v"), spec, wire.Phase(phase))

        def capacity(text: str) -> wire.CapacityObject:
            meta = wire.Metadata("c", namespace="kube-system")
            return wire.CapacityObject(meta, "wait", wire.Selector(), text)

        other = wire.ClaimReference("default", "other", "u")
        assert helps(VOLUMES, "added", volume("Available"))
        assert not helps(VOLUMES, "modified", volume("Available"))
        assert helps(VOLUMES, "modified", volume("Bound", other))
        assert not helps(VOLUMES, "modified", volume("Released", other))
        assert helps(VOLUMES, "modified", volume("Available"))
        assert not helps(VOLUMES, "deleted", volume("Available"))
        assert helps(CAPACITIES, "added", capacity("1Gi"))
        assert not helps(CAPACITIES, "modified", capacity("1Mi"))
        assert helps(CAPACITIES, "modified", capacity("2Gi"))
        assert not helps(CSI_DRIVERS, "added", wire.CsiDriverObject(wire.Metadata("csi.x"), wire.CsiDriverSpec(True)))
        assert helps(CSI_DRIVERS, "modified", wire.CsiDriverObject(wire.Metadata("csi.x"), wire.CsiDriverSpec(False)))
        assert helps(CLASSES, "added", wire.StorageClass(wire.Metadata("more"), "WaitForFirstConsumer", "csi.z"))
        somebody = wire.ClaimObject(wire.Metadata("somebody", namespace="default"))
        assert not helps(CLAIMS, "added", somebody), "no claim of the pod"
        touched = wire.ClaimObject(LATE.metadata, msgspec.structs.replace(LATE.spec, volume_mode="Block"))
        assert helps(CLAIMS, "modified", touched, LATE)


def test_a_claim_outlives_older_news_and_ends_with_the_news_that_it_is_gone(rig):
    rig.pod("added", mine("p"))
    rig.state.nominate(mine("p"), "n1")
    newer = mine("p", resource_version="2")
    rig.pod("modified", newer, mine("p"))  # on its way before the claim was written
    assert rig.state.nominated["p"] == (newer, "n1")
    claimed = mine("p", nominated_node="n1")
    rig.pod("modified", claimed, newer)
    rig.pod("modified", newer, claimed)
    assert rig.state.nominated == {}


def test_a_pod_with_a_claim_that_is_deleted_makes_room(rig):
    rig.pod("added", mine("waits"))
    rig.queue.requeue(rig.queue.pop(), frozenset({"NodeResourcesFit"}))
    rig.state.nominate(mine("gone"), "n1")
    rig.pod("deleted", mine("gone"))
    assert rig.queue.counts()["unschedulable"] == 0


def test_a_pod_that_was_running_before_we_came_runs_since_its_node_started_it(rig, monkeypatch):
    monkeypatch.setattr(
        "aaml.kube.informer_handlers.time", SimpleNamespace(monotonic=lambda: 50.0, time=lambda: 10_000.0)
    )
    rig.pod("added", mine("old", node_name="n1", started_s=6_400.0))
    rig.pod("added", mine("new", node_name="n1"))
    assert [rig.state.placements[uid].since_s for uid in ("old", "new")] == [50.0 - 3_600.0, 50.0]


def test_what_we_bound_ourselves_runs_since_the_bind(rig):
    pod = mine()
    rig.state.assume(pod, "n1", since_s=5.0)
    rig.pod("modified", replace(pod, node_name="n1", started_s=6_400.0), pod)
    assert rig.state.placements["p"].since_s == 5.0


def gpu_pod(name: str, milli: int, **more: Any) -> Pod:
    return replace(mine(name, **more), gpu=GpuRequest(1, milli))


def test_a_device_is_not_given_twice_when_pods_are_heard_of_before_their_node(rig):
    """p runs on device 1 of 2; the pod that comes next must get device 0."""
    rig.pod("added", gpu_pod("p", 1000, node_name="late"), gpus=(1,))
    rig.say(NODES, "added", Node("late", {"cpu": 1000, "pods": 10}, gpu_count=2))
    assert rig.state.placements["p"].gpus == (1,)
    assert rig.state.assume(gpu_pod("next", 1000), "late").gpus == (0,)
    audit.check(rig.state)


def test_a_guessed_device_gives_way_to_one_that_is_noted(rig):
    """Nobody says where a is; b is known to be on device 0, so that a must be on the other one."""
    rig.pod("added", gpu_pod("a", 600, node_name="n1"))
    assert rig.state.placements["a"].gpus == (0,)
    rig.pod("added", gpu_pod("b", 600, node_name="n1"), gpus=(0,))
    assert [rig.state.placements[uid].gpus for uid in "ab"] == [(1,), (0,)]
    assert rig.state.gpu_free.tolist() == [[400, 400]]
    audit.check(rig.state)


def test_a_gpu_annotation_that_is_edited_on_a_running_pod_counts_as_it_reads_now(rig):
    """100 thousandths edited to 900 leave 100, and after the pod 1000: never more than the device has."""
    before, after = gpu_pod("p", 100, node_name="n1"), gpu_pod("p", 900, node_name="n1")
    rig.pod("added", before, gpus=(0,))
    rig.pod("modified", after, before, gpus=(0,))
    assert rig.state.gpu_free.tolist() == [[100, 1000]]
    rig.pod("deleted", after, after, gpus=(0,))
    assert rig.state.gpu_free.tolist() == [[1000, 1000]]
    audit.check(rig.state)


def test_a_gpu_annotation_that_becomes_unreadable_leaves_nothing_behind(rig):
    before = gpu_pod("p", 400, node_name="n1")
    rig.pod("added", before, gpus=(0,))
    rig.pod("modified", mine("p", node_name="n1"), before)
    assert rig.state.gpu_free.tolist() == [[1000, 1000]]
    rig.pod("deleted", mine("p", node_name="n1"))
    assert rig.state.gpu_free.tolist() == [[1000, 1000]]


def test_a_device_that_is_claimed_beyond_its_size_is_full_and_no_more(rig):
    """Two annotations claim 1400 thousandths of one device; each pod that goes gives back what then is free."""
    for name in ("a", "b"):
        rig.pod("added", gpu_pod(name, 700, node_name="n1"), gpus=(0,))
    assert rig.state.gpu_free.tolist() == [[0, 1000]]
    rig.pod("deleted", gpu_pod("a", 700, node_name="n1"))
    assert rig.state.gpu_free.tolist() == [[300, 1000]]
    audit.check(rig.state)


def test_a_pod_that_is_resized_in_place_keeps_the_devices_that_were_chosen_for_it(rig):
    """p shares device 0 with q. When q has gone, a choice anew would be device 1, where less is left."""
    for name, milli in (("q", 500), ("p", 300), ("r", 700)):
        rig.pod("added", gpu_pod(name, milli, node_name="n1"))
    assert [rig.state.placements[uid].gpus for uid in "qpr"] == [(0,), (0,), (1,)]
    rig.pod("deleted", gpu_pod("q", 500, node_name="n1"))
    before = gpu_pod("p", 300, node_name="n1")
    rig.pod("modified", replace(before, requests={"cpu": 200}), before)
    assert rig.state.placements["p"].gpus == (0,)
    assert rig.state.gpu_free.tolist() == [[700, 300]]
    audit.check(rig.state)


def test_a_pod_that_found_no_device_gets_one_when_there_is_one(rig):
    for name in ("a", "b", "c"):
        rig.pod("added", gpu_pod(name, 1000, node_name="n1"))
    assert rig.state.placements["c"].gpus == ()
    rig.pod("deleted", gpu_pod("a", 1000, node_name="n1"))
    assert rig.state.placements["c"].gpus == (0,)
    audit.check(rig.state)


def test_a_claim_that_ends_while_its_pod_is_under_way_does_not_come_back(rig):
    """News of the nomination comes after the pod was assumed; the room must not count twice once it is bound."""
    pod = mine()
    rig.pod("added", pod)
    rig.state.assume(pod, "n1")
    nominated = replace(pod, nominated_node="n1")
    rig.pod("modified", nominated, pod)
    rig.pod("modified", replace(nominated, node_name="n1"), nominated)
    assert rig.state.nominated == {}
    audit.check(rig.state)


class TestVolumesThatAreKnownLate:
    """A bound pod's claim resolves to a volume after the pod was placed."""

    def placed(self, rig: Rig, *modes: str) -> None:
        FilterIndex.of(rig.state)  # pods were filtered before
        rig.pod("added", mine("first", node_name="n1"), claims=TestStorage.raw)
        claim = wire.ClaimObject(TestStorage.bound, wire.ClaimSpec("pv1", list(modes)))
        TestStorage().list_all(rig, claim)

    def test_they_count_against_the_nodes_limit(self, rig):
        """n1 attaches three volumes; with the first pod's there is room for two more, and not for three."""
        self.placed(rig)
        for count, fits in ((2, True), (3, False)):
            more = VolumeNeeds(attachments=frozenset(("csi.x", f"h{number}") for number in range(count)))
            assert feasible(rig.state, replace(mine("second"), volumes=more)).mask.tolist() == [fits]
        audit.check(rig.state)

    def test_a_read_write_once_pod_claim_is_taken_and_free_again_when_its_pod_has_gone(self, rig):
        self.placed(rig, "ReadWriteOncePod")
        needs = VolumeNeeds(exclusive=frozenset({"default/data"}))
        second = replace(mine("second"), volumes=needs)
        assert feasible(rig.state, second).mask.tolist() == [False]
        rig.pod("deleted", mine("first", node_name="n1"))
        assert feasible(rig.state, second).mask.tolist() == [True]
        assert not FilterIndex.of(rig.state).claims


def group_object(name: str, least: int, version: str = "1", condition: str = "") -> wire.PodGroupObject:
    spec = wire.PodGroupSpec(wire.SchedulingPolicy(gang=wire.GangPolicy(least)))
    status = wire.PodGroupStatus([wire.TimedCondition("PodGroupInitiallyScheduled", condition)] if condition else None)
    return wire.PodGroupObject(wire.Metadata(name, "default", resource_version=version), spec, status)


def test_groups_are_watched_from_the_first_pod_of_one_on_and_awaited(rig):
    rig.pod("added", mine("alone"))
    assert rig.watched == []
    rig.pod("added", mine("a", group=PodGroup("g", seen=False)))
    rig.pod("added", mine("b", group=PodGroup("g", seen=False)))
    assert (rig.watched, rig.handlers.awaited) == (["podgroups"], {"podgroups"})
    assert rig.queue.counts()["gated"] == 2
    rig.say(POD_GROUPS, "added", group_object("g", 2), synced=True)
    assert rig.handlers.awaited == set()
    assert rig.queue.counts() == {"active": 3, "backoff": 0, "unschedulable": 0, "gated": 0}
    assert {each.pod.group for each in rig.queue.pods()} == {None, PodGroup("g", 2)}


def test_pods_that_have_a_node_count_for_their_group_whoever_bound_them(rig):
    rig.pod("added", mine("a", group=PodGroup("g", seen=False)))
    rig.say(POD_GROUPS, "added", group_object("g", 2), synced=True)
    assert rig.queue.counts()["gated"] == 1
    rig.pod("added", mine("b", node_name="n1", group=PodGroup("g", seen=False)))
    assert rig.queue.counts()["gated"] == 1, "nobody counts placed pods for this queue"
    rig.say(POD_GROUPS, "modified", group_object("g", 1, "2"), group_object("g", 2))
    assert rig.queue.counts()["active"] == 1
    assert rig.state.placements["b"].pod.group == PodGroup("g", 1)


def test_the_condition_of_a_group_is_remembered_until_it_is_gone(rig):
    rig.pod("added", mine("a", group=PodGroup("g", seen=False)))
    rig.say(POD_GROUPS, "added", group_object("g", 1, condition="True"), synced=True)
    assert rig.handlers.group_conditions["default/g"].status == "True"
    rig.say(POD_GROUPS, "deleted", group_object("g", 1))
    assert rig.handlers.group_conditions == {}
    assert rig.queue.counts()["gated"] == 1


@pytest.mark.parametrize("status", [403, 404])
def test_pods_of_groups_wait_where_groups_cannot_be_read_and_others_do_not(rig, status, caplog):
    rig.pod("added", mine("a", group=PodGroup("g", seen=False)))
    rig.pod("added", mine("alone"))
    rig.handlers.on_trouble(Trouble("podgroups", ApiError(status, "No", "no")))
    assert rig.handlers.awaited == set()
    assert "pods of pod groups stay pending" in caplog.text
    assert rig.queue.counts() == {"active": 1, "backoff": 0, "unschedulable": 0, "gated": 1}


def test_a_dry_run_leaves_pods_of_groups_out_and_counts_them(caplog):
    """kube-scheduler nominates their nodes while the group waits in Permit, and binds them later."""
    rig = Rig(hold_s=3600.0)
    group = PodGroup("g", seen=False)
    for name in ("a", "b"):
        waiting = mine(name, group=group)
        rig.pod("added", waiting)
        rig.pod("modified", replace(waiting, nominated_node="n1"), waiting)
        rig.pod("modified", replace(waiting, nominated_node="n1", node_name="n1"), waiting)
        while rig.handlers.step():
            assert not list(rig.queue.pods())
    rig.pod("added", replace(mine("c", group=group), scheduler_name="theirs"))
    while rig.handlers.step():
        pass
    assert set(rig.state.placements) == {"a", "b"}
    assert (rig.handlers.left_out, rig.watched) == (2, [])
    assert caplog.text.count("pods of pod groups are left out") == 1


@pytest.mark.parametrize(("dry_run", "nodes"), [(True, [True, True]), (False, [False, True])])
def test_the_node_that_another_scheduler_has_nominated_is_not_the_only_one_of_a_dry_run(dry_run, nodes):
    """Kubernetes 1.37 nominates for claims and gangs once the node is chosen: it would always be agreed with."""
    cluster = KubeCluster(Transport(server="http://127.0.0.1:9"), "mine", LiveOptions(dry_run=dry_run))
    try:
        for name in ("a", "b"):
            cluster.state.upsert_node(Node(name, {"cpu": 1000, "pods": 10}))
        cluster.state.nominate(mine(), "b")
        assert cluster.feasible(mine()).tolist() == nodes
    finally:
        cluster.close()
