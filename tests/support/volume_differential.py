"""Claims, volumes, classes and capacities before the real kube-scheduler and before AAML, compared pod by pod."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from aaml.cluster.filters import feasible
from aaml.cluster.filters.volume_binding import plan_volumes
from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.kube.objects import wire
from aaml.kube.reflector import Changes, Delta, Source
from aaml.kube.sources import ATTACHMENTS, CLAIMS, PROVISIONING, STORAGE, VOLUMES, SeenPod, see_pod
from aaml.kube.storage_lister import StorageLister
from aaml.kube.transport import ApiError
from support.differential import Bench, Tally, _compare_verdicts
from support.scheduling_cases import Manifest
from support.volume_cases import TRACKED, VolumeCases, classes
from support.volumes import MERGE, claim, storage_class, uses, volume

_BARRIER = "barrier"  # a class whose capacity is told
BARRIER_DRIVER = "csi.barrier"
_BARRIER_LOCAL = "barrier-local"
_CAPACITIES = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities"
_CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
_VOLUMES = "/api/v1/persistentvolumes"


class VolumeBench:
    """The storage of one episode after another on a bench, and AAML's view of it."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.api = bench, bench.api
        for kind in (*classes(), storage_class(_BARRIER, BARRIER_DRIVER), storage_class(_BARRIER_LOCAL)):
            self.api.request("POST", "/apis/storage.k8s.io/v1/storageclasses", kind)
        for driver in (TRACKED, BARRIER_DRIVER):
            spec = {"storageCapacity": True, "attachRequired": False}
            self.api.request("POST", "/apis/storage.k8s.io/v1/csidrivers", {"metadata": {"name": driver}, "spec": spec})
        self._made: list[str] = []

    def reset(self, cases: VolumeCases) -> ClusterState:
        """Make the cluster that of a case and return AAML's view of it, once the scheduler has seen all of it."""
        nodes = cases.nodes()
        state = self.bench.reset(cases, nodes, [])
        for path in self._made:
            with suppress(ApiError):
                self.api.request("DELETE", path)
        for item in self._list(VOLUMES.path):
            if item["metadata"]["name"].startswith("made-"):
                self.api.request("DELETE", f"{_VOLUMES}/{item['metadata']['name']}")
        self._made.clear()
        for path, manifest in cases.storage(nodes):
            self._create(path, manifest)
        self._pass_barrier(cases)
        self.state, self.objects = state, StorageLister(state, lambda _sources: None)
        self.refresh(*STORAGE, ATTACHMENTS, *PROVISIONING)
        return state

    def refresh(self, *sources: Source[Any]) -> None:
        """Take in what the API server has now."""
        for source in sources:
            items = [msgspec.convert(item, source.wire) for item in self._list(source.path)]
            known = self.objects._objects[source.name]
            keys = {source.key(item) for item in items}
            deltas = [Delta("modified", item, known.get(source.key(item))) for item in items]
            deltas += [Delta("deleted", item, item) for key, item in known.items() if key not in keys]
            self.objects.apply(Changes(source.name, tuple(deltas), synced=True))

    def pod(self, item: Manifest, **changes: Any) -> Pod:
        seen = see_pod(msgspec.convert(item, wire.PodObject))
        return replace(self.objects.resolve(SeenPod(seen.pod, claims=seen.claims), ours=True), **changes)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _list(self, path: str) -> list[Manifest]:
        return list(json.loads(self.api.request("GET", path))["items"])

    def _create(self, path: str, manifest: Manifest) -> None:
        status = manifest.pop("status", None)
        self.api.request("POST", path, manifest)
        own = f"{path}/{manifest['metadata']['name']}"
        self._made.append(own)
        if status is not None:
            self.api.request("PATCH", f"{own}/status", {"status": status}, content_type=MERGE)

    def _pass_barrier(self, cases: VolumeCases) -> None:
        """Let a pod be scheduled that can only be once the last claim, volume and capacity have been seen."""
        name = f"{cases.prefix}-barrier"
        self._create(_CLAIMS, claim(f"{name}-made", _BARRIER))
        self._create(_CLAIMS, claim(f"{name}-there", _BARRIER_LOCAL))
        there = volume(f"{name}-there", _BARRIER_LOCAL, node=name)
        self._create(_VOLUMES, {**there, "status": {"phase": "Available"}})
        room = {
            "storageClassName": _BARRIER,
            "capacity": "1Gi",
            "nodeTopology": {"matchLabels": {"barrier": cases.prefix}},
        }
        self._create(_CAPACITIES, {"metadata": {"name": name}, **room})
        spec = {
            "containers": [{"name": "c", "image": "i"}], "tolerations": [{"operator": "Exists"}],
            **uses(f"{name}-made", f"{name}-there"),
        }  # fmt: skip
        probe = {"metadata": {"name": f"{name}-storage", "namespace": "default"}, "spec": spec}
        created = json.loads(self.api.request("POST", "/api/v1/namespaces/default/pods", probe))
        bound = self.bench.real.wait(created["metadata"]["uid"], lambda pod: pod["spec"].get("nodeName"))
        assert bound["spec"]["nodeName"] == name
        self.bench.delete_pod(Pod(probe["metadata"]["name"], "default"))


def compare_volumes(bench: VolumeBench, manifest: Manifest, tally: Tally, seed: int) -> None:
    """Let both judge one pod with claims, and compare what its claims got where kube-scheduler put it."""
    state = bench.state
    verdict = bench.bench.real.decide(manifest)
    pod = bench.pod(verdict.pod, node_name="", nominated_node="")
    context = f"seed {seed}, {json.dumps(manifest)}"
    ours = feasible(state, pod)
    _compare_verdicts(state, pod, ours, verdict, tally, context)
    if not verdict.node:
        bench.bench.delete_pod(pod)
        return
    row = state.index[verdict.node]
    if not ours.mask[row]:
        return
    plan = plan_volumes(state, pod, row)
    sizes = {each.key: state.storage.volumes[name].size_bytes for each, name in plan.volumes}
    sizes |= {each.key: 0 for each in plan.provision}  # 0: it was made
    bench.refresh(CLAIMS, VOLUMES)
    given = {}
    for each in pod.volumes.unbound:
        found = bench.objects.claim(*each.key.split("/"))
        assert found is not None
        name = found.spec.volume_name
        given[each.key] = 0 if name.startswith("made-") else state.storage.volumes[name].size_bytes
    if given:
        tally.compare("volumes of the claims", sizes, given, context)
    state.upsert_pod(bench.pod(verdict.pod))
