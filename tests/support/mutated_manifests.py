"""Objects of Kubernetes that the API server takes, and mutations of them, drawn by a seed."""

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import yaml

_POD = """
nodeSelector: {zone: a}
priorityClassName: system-cluster-critical
priority: 2000000000
preemptionPolicy: PreemptLowerPriority
hostNetwork: true
schedulingGates: [{name: g.x/a}]
resources: {requests: {cpu: "4"}, limits: {cpu: "8", memory: 8Gi}}
tolerations:
- {key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 3}
- {key: b, value: c}
topologySpreadConstraints:
- {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, minDomains: 2, nodeAffinityPolicy: Honor,
   nodeTaintsPolicy: Ignore, labelSelector: {matchLabels: {app: web}}, matchLabelKeys: [x]}
- {maxSkew: 1, topologyKey: host, whenUnsatisfiable: ScheduleAnyway,
   labelSelector: {matchExpressions: [{key: app, operator: NotIn, values: [v]}]}}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
    - {topologyKey: zone, labelSelector: {matchExpressions: [{key: app, operator: In, values: [web]}]},
       namespaces: [default], matchLabelKeys: [y], mismatchLabelKeys: [z]}
  podAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 5
      podAffinityTerm: {topologyKey: zone, namespaceSelector: {matchLabels: {a: b}}, labelSelector: {}}
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions: [{key: zone, operator: Gt, values: ["3"]}, {key: q, operator: Exists}]
      - matchFields: [{key: metadata.name, operator: In, values: [n]}]
    preferredDuringSchedulingIgnoredDuringExecution:
    - {weight: 3, preference: {matchExpressions: [{key: z, operator: In, values: [a, b]}]}}
volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]
initContainers:
- {name: i, image: x, restartPolicy: Always, resources: {requests: {cpu: 100m}}, ports: [{containerPort: 85}]}
- {name: j, image: x, resources: {limits: {cpu: 2, memory: 1Gi}}}
containers:
- name: c
  image: web
  resources:
    requests: {cpu: 250m, nvidia.com/gpu: 1}
    limits: {memory: 1Gi, nvidia.com/gpu: 1, hugepages-2Mi: 4Mi}
  ports:
  - {containerPort: 80, hostPort: 80, protocol: UDP}
  - {containerPort: 81, hostIP: 10.0.0.1, hostPort: 81}
- {name: d, image: web}
"""
_OTHERS = """
apiVersion: v1
kind: Node
metadata: {name: a, labels: {zone: a}}
spec: {unschedulable: false, taints: [{key: a, value: b, effect: NoSchedule}, {key: c, effect: NoExecute}]}
status:
  capacity: {cpu: "8"}
  allocatable: {cpu: "8", memory: 8Gi, pods: "10", nvidia.com/gpu: 2}
  images: [{names: [web], sizeBytes: 5}]
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: pc}
value: 5
globalDefault: false
preemptionPolicy: Never
"""
_SELECTOR = {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}
_VALUES: tuple[Any, ...] = (
    "", 0, 1, -1, 2, True, False, "a", "a b", "A_b", "-a", "1", "0", "-1", "1.5", 1.5, "100m", "1Gi", "1e3", "5Ti",
    "0.5", 2**31, 2**63 - 1, 2**31 - 1, 101, [], {}, ["a"], {"a": "b"}, "Exists", "In", "Gt", "Always", "Never",
    "NoExecute", "NoSchedule", "ScheduleAnyway", "DoNotSchedule", "a/b/c", "a.b/c", "x" * 64, "é", "TCP", "web", "zone",
    "metadata.name", "system-node-critical", "ReplicaSet", "1 Gi", "1E", "Infinity", "0x10", ".5", "5.", "+1", "1k",
    "1K", "1n", "1u", "9223372036854775808", "1e-3", "10.0.0.1", "v1", "apps/v1", [{}], {"": ""}, [1], {"cpu": 1},
    {"cpu": "-1"},
)  # fmt: skip
_KEYS = (
    "hugepages-2Mi", "cpu", "memory", "pods", "nvidia.com/gpu", "a.b/c", "ephemeral-storage", "gpu", "storage",
    "requests.x/y", "kubernetes.io/x", "matchLabels", "key", "operator", "values", "effect", "tolerationSeconds",
    "minDomains", "matchLabelKeys", "hostPort", "protocol", "namespaces", "weight", "priority", "labels", "matchFields",
    "annotations", "app", "selector", "replicas", "activeDeadlineSeconds",
)  # fmt: skip
_GPUS = {"alibabacloud.com/gpu-count": "1", "alibabacloud.com/gpu-milli": "1000"}
Place = tuple[str | int, ...]


def taken() -> list[dict[str, Any]]:
    """Return objects of all kinds that are read, which use most of what is read of them."""
    spec = yaml.safe_load(_POD)
    metadata = {"name": "one", "namespace": "default", "labels": {"app": "web", "y": "1"}, "annotations": _GPUS}
    plain = {name: spec[name] for name in ("containers", "initContainers", "tolerations", "volumes")}
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": each} for each in (spec, spec, plain)]
    template = {"metadata": {"labels": {"app": "web"}}, "spec": spec}
    own = {"selector": _SELECTOR, "template": template}
    apps = [
        {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": "w", "namespace": "default"},
            "spec": {**own, **more},
        }
        for kind, more in (("Deployment", {"replicas": 2}), ("StatefulSet", {"replicas": 2}), ("DaemonSet", {}))
    ]
    ending = {**template, "spec": {**spec, "restartPolicy": "Never", "activeDeadlineSeconds": 9}}
    job_spec = {"parallelism": 2, "completions": 3, "suspend": False, "template": ending}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "w"}, "spec": job_spec}
    return [*pods, *apps, job, *yaml.safe_load_all(_OTHERS)]


def mutated(document: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a document of which a value or two are gone, others, at another place, or there twice."""
    found = deepcopy(document)
    for _ in range(1 if rng.random() < 0.8 else 2):
        _mutate(found, rng)
    return found


def _mutate(document: dict[str, Any], rng: random.Random) -> None:
    places = [place for place in _places(document) if place and place != ("kind",)]
    place, other = rng.choice(places), rng.choice(places)
    parent, key, drawn = _at(document, place[:-1]), place[-1], rng.random()
    if drawn < 0.12:
        del parent[key]
    elif drawn < 0.2 and isinstance(parent, list):
        parent.append(deepcopy(parent[key]))
    elif drawn < 0.3 and isinstance(parent, dict):
        parent[rng.choice(_KEYS)] = parent.pop(key)
    elif drawn < 0.4 and isinstance(parent[key], dict):
        parent[key][rng.choice(_KEYS)] = deepcopy(rng.choice(_VALUES))
    elif drawn < 0.5:
        parent[key] = deepcopy(_at(document, other))
    else:
        parent[key] = deepcopy(rng.choice(_VALUES))


def _places(value: Any, before: Place = ()) -> Iterator[Place]:
    """Yield the places of all values in a document."""
    yield before
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _places(each, (*before, key))


def _at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value
