"""Volumes for the claims of a pod that has a node: what is written, what is waited for, what is undone."""

import queue
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from aaml.cluster.filters import feasible
from aaml.cluster.objects import Node, Pod
from aaml.cluster.state import ClusterState
from aaml.kube.binder import BindJob
from aaml.kube.objects import wire
from aaml.kube.reflector import Changes, Delta, Source
from aaml.kube.sources import CAPACITIES, CLAIMS, CLASSES, CSI_DRIVERS, CSI_NODES, VOLUMES, SeenPod
from aaml.kube.storage_lister import StorageLister
from aaml.kube.transport import ApiError, Unreachable
from aaml.kube.volume_binder import VolumeBinder, VolumesWritten

HOST = "kubernetes.io/hostname"


class Rig:
    """Nodes a and b, a free volume `pv` that b can use, a class `local` and one whose volumes are made, `cloud`.

    `answers` are what the API server says to the next patches, `patched` is what it was sent.
    """

    def __init__(self, wait_s: float = 600.0) -> None:
        self.state = ClusterState(Node(name, {"cpu": 1000, "pods": 10}, {HOST: name}) for name in ("a", "b"))
        self.objects = StorageLister(self.state, lambda _sources: None)
        self.patched: list[tuple[str, Any]] = []
        self.answers: list[Exception] = []
        self.written: queue.SimpleQueue[VolumesWritten] = queue.SimpleQueue()
        self.ended: list[tuple[str, str, str]] = []
        self.revoked = ""
        self.gate: threading.Event | None = None
        self.binder = VolumeBinder(
            self, self.state, self.objects, self.written.put,  # type: ignore[arg-type]
            lambda job, status, why: self.ended.append((job.pod.name, status, why)),
            wait_s=wait_s, revoked=lambda: self.revoked,
        )  # fmt: skip
        for source in (CSI_NODES, CSI_DRIVERS, CAPACITIES):
            self.say(source, None)
        for kind, provisioner in (("local", "kubernetes.io/no-provisioner"), ("cloud", "csi.x")):
            self.say(CLASSES, wire.StorageClass(wire.Metadata(kind), "WaitForFirstConsumer", provisioner))
        self.say(VOLUMES, self.volume())
        self.say(CLAIMS, None)

    def request(self, method: str, path: str, body: Any, *, content_type: str) -> bytes:
        """Stand in for the transport."""
        assert (method, content_type) == ("PATCH", "application/strategic-merge-patch+json")
        if self.gate is not None:
            self.gate.wait(10)
        if self.answers:
            raise self.answers.pop(0)
        self.patched.append((path, body))
        return msgspec.json.encode({"metadata": {"resourceVersion": "20"}})

    def say(self, source: Source[Any], obj: Any, kind: Any = "modified") -> None:
        changes = Changes(source.name, () if obj is None else (Delta(kind, obj, None),), synced=True)
        self.objects.apply(changes)
        self.binder.on_changes(changes)
        self.binder.step()

    def volume(
        self, version: str = "7", node: str = "b", ref: wire.ClaimReference | None = None, name: str = "pv"
    ) -> wire.VolumeObject:
        term = wire.NodeTerm([wire.Expression(HOST, "In", [node])])
        spec = wire.VolumeSpec(
            node_affinity=wire.VolumeNodeAffinity(wire.NodeTerms([term])), capacity={"storage": "1Gi"},
            storage_class_name="local", claim_ref=ref,
        )  # fmt: skip
        phase = wire.Phase("Bound" if ref else "Available")
        return wire.VolumeObject(wire.Metadata(name, resource_version=version), spec, phase)

    def claim(
        self, kind: str, version: str = "5", node: str = "", volume: str = "", *, name: str = "data", uid: str = "u"
    ) -> wire.ClaimObject:
        annotations = {"volume.kubernetes.io/selected-node": node} if node else {}
        if volume:
            annotations["pv.kubernetes.io/bind-completed"] = "yes"
        meta = wire.Metadata(name, "default", uid, version, annotations=annotations)
        return wire.ClaimObject(meta, wire.ClaimSpec(volume, None, kind, wire.ResourceNeeds({"storage": "1Gi"})))

    def pod(self, name: str = "p", claim: str = "data") -> Pod:
        spec = wire.PodSpec(volumes=[wire.Volume("v", wire.ClaimSource(claim))])
        raw = wire.PodObject(wire.Metadata(name, "default", name), spec)
        return self.objects.resolve(SeenPod(Pod(name, uid=name), claims=raw), ours=True)

    def fits(self, pod: Pod) -> str:
        return "".join(name for name, ok in zip(self.state.names, feasible(self.state, pod).mask, strict=True) if ok)

    def begin(self, pod: Pod, node: str) -> BindJob:
        job = BindJob(pod, node)
        self.binder.begin(job)
        return job

    def wait_written(self) -> VolumesWritten:
        """Take in what the threads have written."""
        written = self.written.get(timeout=10)
        self.binder.settle(written)
        self.binder.step()
        return written


@pytest.fixture
def made():
    rigs: list[Rig] = []
    yield lambda **settings: rigs.append(Rig(**settings)) or rigs[-1]
    for each in rigs:
        each.binder.close(5.0)


@pytest.fixture
def rig(made: Callable[[], Rig]) -> Rig:
    return made()


OURS = wire.ClaimReference("default", "data", "u")


def test_a_volume_that_is_there_gets_its_claim_and_the_pod_waits_for_the_controller(rig):
    rig.say(CLAIMS, rig.claim("local"))
    pod = rig.pod()
    assert rig.fits(pod) == "b"
    rig.begin(pod, "b")
    rig.wait_written()
    assert rig.patched == [
        ("/api/v1/persistentvolumes/pv", {
            "metadata": {"resourceVersion": "7", "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
            "spec": {"claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": "u",
            }},
        }),
    ]  # fmt: skip
    rig.say(VOLUMES, rig.volume("8"))  # older than what was written
    rig.say(VOLUMES, rig.volume("20", ref=OURS))
    assert not rig.ended
    assert len(rig.binder) == 1
    rig.say(CLAIMS, rig.claim("local", "21", volume="pv"))
    assert rig.ended == [("p", "bound", "")]
    assert len(rig.binder) == 0
    assert rig.fits(rig.pod("other")) == "b", "the claim is bound to it"


def test_a_volume_that_somebody_has_meant_for_the_claim_needs_no_second_word(rig):
    rig.say(VOLUMES, rig.volume(ref=OURS))
    rig.say(CLAIMS, rig.claim("local"))
    rig.begin(rig.pod(), "b")
    assert rig.wait_written().versions == {}
    rig.say(CLAIMS, rig.claim("local", "21", volume="pv"))
    assert rig.ended == [("p", "bound", "")]
    assert not rig.patched


def test_a_claim_that_gets_a_new_volume_is_told_the_node_and_waits_for_its_provisioner(rig):
    rig.say(CLAIMS, rig.claim("cloud"))
    pod = rig.pod()
    assert rig.fits(pod) == "ab"
    rig.begin(pod, "a")
    rig.wait_written()
    meta = {"uid": "u", "resourceVersion": "5", "annotations": {"volume.kubernetes.io/selected-node": "a"}}
    assert rig.patched == [("/api/v1/namespaces/default/persistentvolumeclaims/data", {"metadata": meta})]
    assert rig.fits(rig.pod("second")) == "a", "who shares the claim has to follow"
    rig.say(CLAIMS, rig.claim("cloud", "20", "a"))
    rig.say(CLAIMS, rig.claim("cloud", "21", "a", "made"))
    rig.say(VOLUMES, rig.volume("22", "a", OURS, "made"))
    assert rig.ended == [("p", "bound", "")]


def test_a_provisioner_that_fails_takes_its_node_back_and_the_pod_is_tried_again(rig):
    rig.say(CLAIMS, rig.claim("cloud"))
    rig.begin(rig.pod(), "a")
    rig.wait_written()
    rig.say(CLAIMS, rig.claim("cloud", "20", "a"))
    rig.say(CLAIMS, rig.claim("cloud", "21"))
    assert rig.ended == [("p", "failed", 'binding volumes: provisioning failed for PVC "data"')]
    assert rig.fits(rig.pod()) == "ab"


@pytest.mark.parametrize(
    ("news", "said"),
    [
        (lambda rig: rig.say(CLAIMS, rig.claim("local"), "deleted"), 'persistentvolumeclaim "default/data" not found'),
        (lambda rig: rig.say(CLAIMS, rig.claim("local", uid="x")), 'persistentvolumeclaim "default/data" not found'),
        (lambda rig: rig.say(VOLUMES, rig.volume(), "deleted"), 'persistentvolume "pv" not found'),
        (lambda rig: rig.say(VOLUMES, rig.volume("21")), 'ClaimRef got reset for pv "pv"'),
        (
            lambda rig: rig.say(VOLUMES, rig.volume("21", "a", OURS)),
            'pv "pv" node affinity doesn\'t match node "b"',
        ),
    ],
)
def test_what_undoes_a_volume_ends_the_wait_and_frees_what_was_kept(rig, news, said):
    rig.say(CLAIMS, rig.claim("local"))
    rig.begin(rig.pod(), "b")
    rig.wait_written()
    rig.say(VOLUMES, rig.volume("20", ref=OURS))
    news(rig)
    assert rig.ended == [("p", "failed", f"binding volumes: {said}")]
    assert len(rig.binder) == 0


def test_a_refused_write_frees_the_volume_for_others(rig):
    rig.say(CLAIMS, rig.claim("local"))
    rig.say(CLAIMS, rig.claim("local", name="more", uid="m"))
    rig.answers = [ApiError(409, "Conflict", "somebody has changed it")]
    rig.begin(rig.pod(), "b")
    other = rig.pod("q", "more")
    assert rig.fits(other) == ""
    rig.wait_written()
    assert rig.ended == [("p", "failed", "binding volumes: 409 Conflict: somebody has changed it")]
    assert rig.fits(other) == "b"


def test_a_server_that_is_away_is_asked_again_and_a_right_that_is_missing_is_named(rig):
    rig.say(CLAIMS, rig.claim("cloud"))
    rig.answers = [Unreachable("away", sent=True), ApiError(503, "ServiceUnavailable", "")]
    rig.begin(rig.pod(), "a")
    assert rig.wait_written().versions == {"default/data": 20}
    rig.answers = [ApiError(403, "Forbidden", "no")]
    rig.begin(rig.pod("q"), "a")
    assert rig.wait_written().forbidden == "persistentvolumeclaims"
    rig.answers = [ApiError(403, "Forbidden", "admission webhook says no")]
    rig.begin(rig.pod("r"), "a")
    assert rig.wait_written().forbidden == "", "that is about this object alone"


def test_a_wait_has_an_end(made):
    rig = made(wait_s=0.0)
    rig.say(CLAIMS, rig.claim("cloud"))
    rig.gate = threading.Event()
    rig.begin(rig.pod(), "a")
    rig.binder.step()
    assert rig.ended == [("p", "failed", "binding volumes: not bound in 0 s")]
    rig.gate.set()
    rig.wait_written()  # comes too late, and does nothing
    assert len(rig.ended) == 1
    assert rig.fits(rig.pod()) == "ab"


def test_a_pod_or_node_that_goes_ends_the_wait(rig):
    rig.say(CLAIMS, rig.claim("local"))
    job = rig.begin(rig.pod(), "b")
    rig.wait_written()
    job.cancelled = "the pod was deleted"
    rig.binder.cancel("p")
    rig.binder.step()
    assert rig.ended == [("p", "gone", "the pod was deleted")]
    assert rig.fits(rig.pod("q")) == "b"


def test_nothing_is_written_once_the_lease_is_lost(rig):
    rig.say(CLAIMS, rig.claim("local"))
    rig.revoked = "the lease is lost"
    rig.begin(rig.pod(), "b")
    rig.wait_written()
    assert rig.ended == [("p", "failed", "binding volumes: the lease is lost")]
    assert not rig.patched
