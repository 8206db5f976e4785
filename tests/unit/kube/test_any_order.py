"""Whatever the API server says in whatever order, the state is the one that the objects there are would give."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aaml.cluster import audit
from aaml.cluster.filters import FilterIndex, feasible
from aaml.cluster.owners import OwnerIndex
from aaml.cluster.state import ClusterState
from aaml.kube.informer_handlers import InformerHandlers
from aaml.kube.objects.wire import GPU_COUNT, GPU_INDEX, GPU_MILLI
from aaml.kube.reflector import Reflector
from aaml.kube.sources import CLAIMS, CLASSES, CSI_NODES, NAMESPACES, NODES, PODS, STORAGE, VOLUMES
from aaml.scheduling.lifetimes import KnownLifetimes
from aaml.scheduling.queue import SchedulingQueue
from aaml.scheduling.remaining import RunningPods

Manifest = dict[str, Any]
SOURCES = (NODES, PODS, CLAIMS, VOLUMES, CLASSES, CSI_NODES, NAMESPACES)
NODE_NAMES = ("n0", "n1", "n2")
DRIVER = "csi.x"

node_names = st.sampled_from(NODE_NAMES)
names = st.sampled_from("ab")
indices = st.sampled_from([None, "0", "1", "2", "0-1", "1-2", "0-0", "7", "x", ""])
counts = st.sampled_from([None, "1", "1", "1", "2", "many"])
millis = st.sampled_from([None, "100", "300", "500", "900", "1000", "0", "5000", "-1"])
gpu_annotations = st.fixed_dictionaries({GPU_COUNT: counts, GPU_MILLI: millis, GPU_INDEX: indices}).map(
    lambda drawn: {name: value for name, value in drawn.items() if value is not None}
)
amounts = st.sampled_from(["100m", "250m", "1"])


class Api:
    """The objects of an API server, and what has happened to them that nobody has been told of yet."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Manifest]] = {source.name: {} for source in SOURCES}
        self.unsaid: dict[str, list[bytes]] = {source.name: [] for source in SOURCES}
        self.version, self.history = 0, 1

    def put(self, source: Any, key: str, manifest: Manifest) -> None:
        self.version += 1
        manifest = copy.deepcopy(manifest)
        manifest["metadata"]["resourceVersion"] = str(self.version)
        kind = "MODIFIED" if key in self.objects[source.name] else "ADDED"
        self.objects[source.name][key] = manifest
        self.unsaid[source.name].append(json.dumps({"type": kind, "object": manifest}).encode())

    def change(self, source: Any, key: str, edit: Callable[[Manifest], Any]) -> None:
        manifest = copy.deepcopy(self.objects[source.name][key])
        edit(manifest)
        self.put(source, key, manifest)

    def drop(self, source: Any, key: str) -> None:
        manifest = self.objects[source.name].pop(key, None)
        if manifest is not None:
            self.unsaid[source.name].append(json.dumps({"type": "DELETED", "object": manifest}).encode())

    # ---- a transport's and a history's part that reflectors use --------------------------------------------------

    def request(self, _method: str, path: str, query: Manifest) -> bytes:
        assert "continue" not in query
        name = next(source.name for source in SOURCES if source.path == path)
        listed = list(self.objects[name].values())
        return json.dumps({"items": listed, "metadata": {"resourceVersion": str(self.version)}}).encode()

    def current(self, _number: int, _version: str) -> int:
        return self.history


class Follower:
    """The handlers with their state and queue, fed by real reflectors."""

    def __init__(self, api: Api) -> None:
        self.state = ClusterState()
        self.queue = SchedulingQueue(lambda: 0.0)
        self.lifetimes = KnownLifetimes()
        for index in (FilterIndex, OwnerIndex):
            index.of(self.state)  # type: ignore[attr-defined]
        RunningPods.of(self.state, self.lifetimes)
        self.watched = {NODES.name, PODS.name}
        self.handlers = InformerHandlers(
            self.state, self.queue, scheduler_name="mine", namespaces=(),
            watch=lambda source: self.watched.add(source.name), cancel=lambda *_: None, forget=lambda _: None,
        )  # fmt: skip
        there: Any = api
        self.reflectors = {
            source.name: Reflector(there, source, self.handlers.on_changes, history=there) for source in SOURCES
        }

    def everything(self) -> dict[str, Any]:
        """All that is known, by the names of things and not by rows and columns, without which devices are whose."""
        state, nodes = self.state, {}
        for row, name in enumerate(state.names):
            nodes[name] = (
                replace(state.nodes[row], resource_version=""),
                {each: int(value) for each, value in zip(state.resources, state.requested[row], strict=True) if value},
                state.nonzero[row].tolist(), bool(state.unschedulable[row]), bool(state.capacity[row]),
                int(state.gpu_count[row]), state.gpu_models[state.gpu_model[row]],
            )  # fmt: skip
        filters = FilterIndex.of(state)
        return {
            "nodes": nodes,
            "pods": {
                uid: (each.pod, each.node_name, each.assumed, each.noted) for uid, each in state.placements.items()
            },
            "aside": {
                uid: (name, each.pod, each.noted)
                for name, pods in state._homeless.items()
                for uid, each in pods.items()
            },
            "nominated": dict(state.nominated),
            "namespaces": {name: labels for name, labels in state.namespace_labels.items() if labels},
            "owned": filters.owned, "ports": filters.ports, "claims": filters.claims, "attached": filters.attached,
            "owners": OwnerIndex.of(state)._by_node,
            "waiting": {queued.uid: queued.pod for queued in self.queue.pods()},
        }  # fmt: skip

    def devices(self) -> dict[str, Any]:
        state = self.state
        free = {name: state.gpu_free[row, : state.gpu_count[row]].tolist() for name, row in state.index.items()}
        return {"held": {uid: each.gpus for uid, each in state.placements.items()}, "free": free}


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.api = Api()
        self.live = Follower(self.api)
        self.flights: dict[str, Any] = {}  # by uid: the queued pod, its node and its devices
        self.made = 0

    # ---- what happens on the API server ------------------------------------------------------------------------------

    @initialize(nodes=st.integers(0, 3), volumes=st.booleans(), data=st.data())
    def begin(self, nodes: int, volumes: bool, data: st.DataObject) -> None:
        """Begin where something is there already, so that a few steps come to what is rare."""
        for name in NODE_NAMES[:nodes]:
            self.put_node(name, 2, cordoned=False, zone="x", model="T4", control=False)
        if volumes:
            self.put_volume("v1", "h1")
            self.put_claim("a", "v1", alone=data.draw(st.booleans()))
            pod = {"cpu": "100m", "whole": 0, "claims": ["a"], "port": False, "near": False, "owner": "", "ours": True}
            for node in ("", "n0"):
                self.create_pod(annotations=data.draw(gpu_annotations), node=node, **pod)

    @rule(
        name=node_names, gpus=st.integers(0, 3), cordoned=st.booleans(), zone=st.sampled_from(["", "x", "y"]),
        model=st.sampled_from(["T4", "A100"]), control=st.booleans(),
    )  # fmt: skip
    def put_node(self, name: str, gpus: int, cordoned: bool, zone: str, model: str, control: bool) -> None:
        labels = {"zone": zone, GPU_MILLI: "x", "alibabacloud.com/gpu-card-model": model}
        if control and name == "n2":
            labels["node-role.kubernetes.io/control-plane"] = ""
        offers = {"cpu": "2", "memory": "4Gi", "pods": "9", GPU_COUNT: str(gpus)}
        spec = {"unschedulable": cordoned}
        self.api.put(NODES, name, {"metadata": {"name": name, "labels": labels}, "spec": spec,
                                   "status": {"allocatable": offers}})  # fmt: skip

    @rule(name=node_names)
    def drop_node(self, name: str) -> None:
        self.api.drop(NODES, name)

    @rule(
        cpu=amounts, annotations=st.one_of(st.just({}), gpu_annotations), whole=st.integers(0, 2),
        claims=st.lists(names, max_size=2, unique=True), port=st.booleans(), near=st.booleans(),
        owner=st.sampled_from(["", "r1", "r2"]), ours=st.booleans(),
        node=st.one_of(st.just(""), st.just(""), st.sampled_from([*NODE_NAMES, "gone"])),
    )  # fmt: skip
    def create_pod(
        self, cpu: str, annotations: Manifest, whole: int, claims: list[str], port: bool, near: bool, owner: str,
        ours: bool, node: str,
    ) -> None:  # fmt: skip
        self.made += 1
        uid = f"u{self.made}"
        requests = {"cpu": cpu, **({"nvidia.com/gpu": str(whole)} if whole else {})}
        term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}, "namespaceSelector": {}}
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        meta = {"name": f"p{self.made}", "namespace": "default", "uid": uid, "annotations": annotations}
        if owner:
            meta["ownerReferences"] = [{"kind": "ReplicaSet", "name": owner, "controller": True}]
        spec = {
            "schedulerName": "mine" if ours else "theirs", "nodeName": node,
            "containers": [
                {"name": "c", "resources": {"requests": requests}, "ports": [{"hostPort": 80}] if port else []}
            ],
            "volumes": [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims],
            **({"affinity": {"podAntiAffinity": {required: [term]}}} if near else {}),
        }  # fmt: skip
        self.api.put(PODS, uid, {"metadata": meta, "spec": spec, "status": {}})

    def some_pod(self, data: st.DataObject, *, bound: bool | None = None) -> str | None:
        uids = [
            uid for uid, pod in self.api.objects[PODS.name].items()
            if bound is None or bool(pod["spec"]["nodeName"]) == bound
        ]  # fmt: skip
        return data.draw(st.sampled_from(uids)) if uids else None

    @rule(data=st.data(), annotations=gpu_annotations)
    def annotate(self, data: st.DataObject, annotations: Manifest) -> None:
        if uid := self.some_pod(data):
            self.api.change(PODS, uid, lambda pod: pod["metadata"].update(annotations=annotations))

    @rule(data=st.data(), cpu=amounts)
    def resize(self, data: st.DataObject, cpu: str) -> None:
        if uid := self.some_pod(data, bound=True):
            self.api.change(
                PODS, uid, lambda pod: pod["spec"]["containers"][0]["resources"]["requests"].update(cpu=cpu)
            )

    @rule(data=st.data(), app=st.sampled_from(["x", "y"]))
    def label(self, data: st.DataObject, app: str) -> None:
        if uid := self.some_pod(data):
            self.api.change(PODS, uid, lambda pod: pod["metadata"].update(labels={"app": app}))

    @rule(data=st.data(), seconds=st.sampled_from([60, 600]))
    def end_sooner(self, data: st.DataObject, seconds: int) -> None:
        if uid := self.some_pod(data):
            self.api.change(PODS, uid, lambda pod: pod["spec"].update(activeDeadlineSeconds=seconds))

    @rule(data=st.data())
    def terminate(self, data: st.DataObject) -> None:
        if uid := self.some_pod(data):
            when = "2026-01-01T00:00:00Z"
            self.api.change(PODS, uid, lambda pod: pod["metadata"].update(deletionTimestamp=when))

    @rule(data=st.data(), node=st.sampled_from([*NODE_NAMES, ""]))
    def nominate(self, data: st.DataObject, node: str) -> None:
        if uid := self.some_pod(data, bound=False):
            self.api.change(PODS, uid, lambda pod: pod["status"].update(nominatedNodeName=node))

    @rule(data=st.data(), node=st.sampled_from([*NODE_NAMES, "gone"]), index=indices)
    def another_binds(self, data: st.DataObject, node: str, index: str | None) -> None:
        if uid := self.some_pod(data, bound=False):
            self.bind(uid, node, index)

    def bind(self, uid: str, node: str, index: str | None) -> None:
        def edit(pod: Manifest) -> None:
            pod["spec"]["nodeName"] = node
            if index is not None:
                pod["metadata"]["annotations"][GPU_INDEX] = index

        self.api.change(PODS, uid, edit)

    @rule(data=st.data())
    def delete_pod(self, data: st.DataObject) -> None:
        if uid := self.some_pod(data):
            self.api.drop(PODS, uid)

    @rule(name=names, volume=st.sampled_from(["", "v1", "v2"]), alone=st.booleans())
    def put_claim(self, name: str, volume: str, alone: bool) -> None:
        spec = {"volumeName": volume, "accessModes": ["ReadWriteOncePod" if alone else "ReadWriteOnce"],
                "storageClassName": "slow"}  # fmt: skip
        self.api.put(CLAIMS, f"default/{name}", {"metadata": {"name": name, "namespace": "default"}, "spec": spec})

    @rule(name=st.sampled_from(["v1", "v2"]), handle=st.sampled_from(["h1", "h2"]))
    def put_volume(self, name: str, handle: str) -> None:
        spec = {"csi": {"driver": DRIVER, "volumeHandle": handle}}
        self.api.put(VOLUMES, name, {"metadata": {"name": name}, "spec": spec})

    @rule(mode=st.sampled_from(["Immediate", "WaitForFirstConsumer"]))
    def put_class(self, mode: str) -> None:
        self.api.put(CLASSES, "slow", {"metadata": {"name": "slow"}, "volumeBindingMode": mode})

    @rule(name=node_names, limit=st.integers(1, 2))
    def put_csi_node(self, name: str, limit: int) -> None:
        drivers = [{"name": DRIVER, "allocatable": {"count": limit}}]
        self.api.put(CSI_NODES, name, {"metadata": {"name": name}, "spec": {"drivers": drivers}})

    @rule(team=st.sampled_from(["a", "b"]))
    def put_namespace(self, team: str) -> None:
        self.api.put(NAMESPACES, "default", {"metadata": {"name": "default", "labels": {"team": team}}})

    @rule(source=st.sampled_from([*STORAGE, NAMESPACES]), data=st.data())
    def drop_other(self, source: Any, data: st.DataObject) -> None:
        if self.api.objects[source.name]:
            self.api.drop(source, data.draw(st.sampled_from(sorted(self.api.objects[source.name]))))

    # ---- what is heard of it -----------------------------------------------------------------------------------------

    def hear(self, source: Any, count: int | None = None) -> None:
        if source.name not in self.live.watched:
            return
        reflector, unsaid = self.live.reflectors[source.name], self.api.unsaid[source.name]
        if not reflector.lists:
            self.relist(source)
            return
        reflector._take(unsaid[:count])
        del unsaid[:count]

    @rule(source=st.sampled_from([*SOURCES, PODS, PODS, NODES]), count=st.integers(1, 4))
    def hear_some(self, source: Any, count: int) -> None:
        self.hear(source, count)

    @rule()
    def hear_of_volumes(self) -> None:
        for source in STORAGE:
            self.hear(source)

    @rule(source=st.sampled_from(SOURCES))
    def relist(self, source: Any) -> None:
        if source.name in self.live.watched:
            self.api.unsaid[source.name].clear()
            self.live.reflectors[source.name]._list()

    @precondition(lambda self: not self.flights)
    @rule()
    def restore_a_backup(self) -> None:
        self.api.history += 1
        for source in SOURCES:
            self.relist(source)

    # ---- what is decided here ----------------------------------------------------------------------------------------

    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        queued = self.live.queue.pop()
        if queued is None:
            return
        verdict = feasible(self.live.state, queued.pod)
        fitting = [name for name, fits in zip(self.live.state.names, verdict.mask, strict=True) if fits]
        if not fitting:
            self.live.queue.requeue(queued, verdict.plugins or frozenset({"NoNodes"}))
            return
        node = data.draw(st.sampled_from(fitting))
        placement = self.live.state.assume(queued.pod, node)
        self.flights[queued.uid] = queued, node, placement.gpus

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), lost=st.booleans())
    def answer(self, data: st.DataObject, lost: bool) -> None:
        self.land(data.draw(st.sampled_from(sorted(self.flights))), lost=lost)

    def land(self, uid: str, *, lost: bool) -> None:
        """End a bind as `KubeCluster` does; `lost`: the API server refuses it for a reason of its own."""
        queued, node, gpus = self.flights.pop(uid)
        there = self.api.objects[PODS.name].get(uid)
        if there is None or there["spec"]["nodeName"] or lost:
            self.live.state.forget(uid)
            if self.live.queue.retry(queued) and queued.pod.nominated_node:
                self.live.state.nominate(queued.pod, queued.pod.nominated_node)
        else:
            self.bind(uid, node, "-".join(map(str, gpus)) if gpus else None)
            self.live.queue.done(uid)

    # ---- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self) -> None:
        audit.check(self.live.state)

    @rule(order=st.permutations(SOURCES))
    def all_is_heard(self, order: list[Any]) -> None:
        for uid in list(self.flights):
            self.land(uid, lost=False)
        for _ in range(2):  # what pods make watched is heard then
            for source in SOURCES:
                self.hear(source)
        fresh = Follower(self.api)
        for source in order:
            if source.name in self.live.watched:
                fresh.reflectors[source.name]._list()
        audit.check(fresh.state)
        found, expected = self.live.everything(), fresh.everything()
        for what, value in expected.items():
            assert found[what] == value, what
        for placement in self.live.state.placements.values():  # what nobody noted may be either's guess
            if placement.gpus:
                fresh.state.upsert_pod(placement.pod, placement.gpus)
        audit.check(fresh.state)
        assert self.live.devices() == fresh.devices()

    def teardown(self) -> None:
        self.all_is_heard(list(SOURCES))


AnyOrder.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = AnyOrder.TestCase
