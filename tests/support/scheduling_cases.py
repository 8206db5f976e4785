"""Clusters and pods drawn at random, as manifests: every constraint that the default scheduler's filters know."""

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any

Manifest = dict[str, Any]

NAMESPACES = {"default": {}, "shop": {"team": "web"}, "lab": {"team": "db"}}
KEYS = ("kubernetes.io/hostname", "topology.kubernetes.io/zone", "rack")
ZONES = ("z1", "z2", "z3")
DRIVER = "csi.example.com"
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "heavy"}, "handler": "heavy",
    "overhead": {"podFixed": {"cpu": "100m", "memory": "64Mi"}},
}  # fmt: skip
IMAGES = {"registry.example/web:1": 400, "registry.example/db:latest": 900, "registry.example/small:2": 30}  # MiB
PRIORITIES = {"lowest": -5, "low": 0, "middle": 7, "top": 100, "top-never": 101}  # priority classes
VOLUMES = 6  # persistent volumes and claims in each namespace


def storage(namespace: str) -> list[tuple[str, Manifest]]:
    """Return (path, manifest) of bound claims and their volumes; some volumes are bound to zones or to one pod."""
    found: list[tuple[str, Manifest]] = []
    for number in range(VOLUMES):
        name = f"data-{number}"
        modes = ["ReadWriteOncePod"] if number == 5 else ["ReadWriteMany"]
        volume: Manifest = {
            "metadata": {"name": f"{namespace}-{name}"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": modes,
                "persistentVolumeReclaimPolicy": "Retain",
                "csi": {"driver": DRIVER, "volumeHandle": f"{namespace}-{name}"},
                "claimRef": {"namespace": namespace, "name": name},
            },
        }
        if number in {1, 2}:
            expression = {"key": KEYS[1], "operator": "In", "values": list(ZONES[:number])}
            volume["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        claim = {
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {
                "accessModes": modes,
                "resources": {"requests": {"storage": "1Gi"}},
                "volumeName": f"{namespace}-{name}",
                "storageClassName": "",
            },
        }
        found.append(("/api/v1/persistentvolumes", volume))
        found.append((f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", claim))
    return found


def csi_node(name: str, limit: int) -> Manifest:
    """Return a CSINode that attaches so many volumes."""
    driver = {"name": DRIVER, "nodeID": name, "allocatable": {"count": limit}}
    return {"metadata": {"name": name}, "spec": {"drivers": [driver]}}


def priority_class(name: str) -> Manifest:
    """Return a PriorityClass; "-never" pods preempt nobody."""
    policy = "Never" if name.endswith("never") else "PreemptLowerPriority"
    return {"metadata": {"name": name}, "value": PRIORITIES[name], "preemptionPolicy": policy}


RESTART_ALL = "RestartAllContainersOnContainerExits"
DISRUPTIONS = (
    {"status": "True", "reason": "PreemptionByScheduler"}, {"status": "True", "reason": "EvictionByEvictionAPI"},
    {"status": "False", "reason": "PreemptionByScheduler"},
)  # fmt: skip
"""What conditions DisruptionTarget of pods that are leaving say."""


class Cases:
    """Draws manifests from one generator; the same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.prefix = f"s{seed}"
        self._numbers = itertools.count()

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def some(self, options: Sequence[Any], least: int = 0, most: int = 2) -> list[Any]:
        return self.rng.sample(options, self.rng.randint(least, min(most, len(options))))

    def placed(self, nodes: Sequence[Manifest], count: int, demanding: float = 0.2) -> list[Manifest]:
        """Pods that run already, wherever they are (the API server does not mind), a few of them terminating."""
        found = []
        taken: set[tuple[str, int]] = set()
        for _ in range(count):
            name = self.rng.choice(nodes)["metadata"]["name"]
            pod = self.pod(demanding=demanding, nodeName=name)
            pod["terminating"] = self.chance(0.12)
            for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
                # kube-scheduler takes a port for free when one of two pods that hold it leaves; no two can, really.
                if any((name, port["hostPort"]) in taken for port in container.get("ports", ())):
                    del container["ports"]
                taken |= {(name, port["hostPort"]) for port in container.get("ports", ())}
            found.append(pod)
        return found

    def running(self, nodes: Sequence[Manifest], count: int, *, leaving: bool) -> list[Manifest]:
        """Pods of several priorities that have run for minutes, each for another time, for preemption.

        Between equally important pods that started together kube-scheduler's choice is an accident of its sorting.
        """
        found = self.placed(nodes, count, demanding=0.1)
        for second, pod in zip(self.rng.sample(range(600), len(found)), found, strict=True):
            pod["terminating"] &= leaving
            if pod["terminating"]:
                pod["disrupted"] = self.rng.choice([None, *DISRUPTIONS])
            pod["spec"]["priorityClassName"] = self.rng.choice(["lowest", "low", "middle"])
            pod["started"] = f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"
        return found

    def important(self, *, leaving: bool) -> Manifest:
        """A pod that may preempt others.

        Without spread constraints where pods are `leaving`: kube-scheduler does not count terminating pods, yet counts
        them off when it imagines them gone.
        """
        name = self.rng.choice(["middle", "top", "top", "top-never"])
        pod = self.pod(demanding=0.1, priorityClassName=name)
        if leaving:
            pod["spec"].pop("topologySpreadConstraints", None)
        return pod

    def nomination(self, nodes: Sequence[Manifest], *, leaving: bool) -> str:
        """The node that a pod is nominated to before it is tried, "" for none."""
        return self.rng.choice(nodes)["metadata"]["name"] if leaving and self.chance(0.5) else ""

    def budgets(self) -> list[Manifest]:
        """Disruption budgets with what they allow now in `status`."""
        found = []
        for number in range(self.rng.randint(0, 4)):
            meta = {"name": f"{self.prefix}-b{number}", "namespace": self.rng.choice(list(NAMESPACES))}
            allowed = self.rng.choice([0, 0, 1, 2])
            status = {"disruptionsAllowed": allowed, "currentHealthy": 9, "desiredHealthy": 9 - allowed,
                      "expectedPods": 9, "observedGeneration": 1}  # fmt: skip
            found.append({"metadata": meta, "spec": {"minAvailable": 1, "selector": self.selector()}, "status": status})
        return found

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def nodes(self) -> list[Manifest]:
        return [self.node(f"{self.prefix}-n{number}") for number in range(self.rng.randint(5, 12))]

    def node(self, name: str) -> Manifest:
        rng = self.rng
        labels = {KEYS[0]: name, "cores": rng.choice(["4", "8", "16", "few"])}
        if self.chance(0.85):
            labels[KEYS[1]] = rng.choice(ZONES)
        if self.chance(0.6):
            labels["rack"] = rng.choice(["r1", "r2", "r3", "r4"])
        if self.chance(0.5):
            labels["disk"] = rng.choice(["ssd", "hdd"])
        allocatable = {
            "cpu": rng.choice(["2", "4", "8", "3500m"]),
            "memory": rng.choice(["4Gi", "8Gi", "16Gi", "7500Mi"]),
            "pods": str(rng.choice([3, 6, 10, 20])),
            "ephemeral-storage": rng.choice(["10Gi", "50Gi"]),
        }
        if self.chance(0.5):
            allocatable["example.com/fpga"] = str(rng.choice([0, 1, 4]))
        if self.chance(0.3):
            allocatable["hugepages-2Mi"] = "64Mi"
        taints = [
            {"key": key, "value": rng.choice(["", "a", "b"]), "effect": effect}
            for key, effect in self.some(
                [(key, effect) for key in ("dedicated", "spot") for effect in ("NoSchedule", "NoExecute")], most=1
            )
            if self.chance(0.5)
        ] + [{"key": key, "effect": "PreferNoSchedule"} for key in ("busy", "old") if self.chance(0.3)]
        images = [
            {"names": [image, f"{image}-copy"], "sizeBytes": size << 20}
            for image, size in IMAGES.items()
            if self.chance(0.4)
        ]
        features = self.some([RESTART_ALL, "ExtendWebSocketsToKubelet", "NobodyKnowsIt"])
        return {
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints, **({"unschedulable": True} if self.chance(0.1) else {})},
            "status": {
                "allocatable": allocatable, "capacity": allocatable, "images": images,
                "declaredFeatures": sorted(features),
            },
        }  # fmt: skip

    # ---- pods --------------------------------------------------------------------------------------------------------

    def pod(self, *, demanding: float = 0.35, **spec: Any) -> Manifest:
        """A pod that uses each kind of constraint with the probability `demanding`."""
        rng, fields = self.rng, dict(spec)
        labels = {"app": rng.choice("xyz"), "tier": rng.choice(["web", "db"]), "ver": rng.choice("12")}
        for key in list(labels):
            if self.chance(0.15):
                del labels[key]
        fields["containers"] = [self.container(number) for number in range(rng.choice([1, 1, 2]))]
        if self.chance(0.15):
            fields["initContainers"] = [self.container(9, init=True)]
        if self.chance(0.1):
            fields["runtimeClassName"] = "heavy"
        if self.chance(0.1):
            self.request_by_pod(fields)
        wants = {
            "nodeSelector": lambda: rng.choice([{"disk": "ssd"}, {KEYS[1]: rng.choice(ZONES)}]),
            "tolerations": self.tolerations,
            "topologySpreadConstraints": lambda: self.spread(labels),
            "volumes": self.volumes,
        }
        for field, draw in wants.items():
            share = demanding / 2 if field in {"nodeSelector", "volumes"} else demanding
            if self.chance(share) and (value := draw()):
                fields[field] = value
        affinity = self.affinity(labels, demanding)
        if affinity:
            fields["affinity"] = affinity
        name = f"{self.prefix}-p{next(self._numbers)}"
        return {"metadata": {"name": name, "namespace": rng.choice(list(NAMESPACES)), "labels": labels}, "spec": fields}

    def request_by_pod(self, fields: Manifest) -> None:
        """Give a pod resources of its own, which may not be less than what its containers request together."""
        containers = [*fields["containers"], *fields.get("initContainers", ())]
        requests = [container["resources"]["requests"] for container in containers]
        amounts = {"cpu": self.rng.choice(["5", "6"]), "memory": "6500Mi"}
        if self.chance(0.6) and not any("hugepages-2Mi" in each for each in requests):
            for each in requests:
                each.pop("cpu", None)
                each.pop("memory", None)
            amounts = {"cpu": self.rng.choice(["500m", "2"]), "memory": self.rng.choice(["1Gi", "3Gi"])}
        if self.chance(0.2):
            del amounts[self.rng.choice(["cpu", "memory"])]
        fields["resources"] = {"requests": amounts}

    def container(self, number: int, *, init: bool = False) -> Manifest:
        rng = self.rng
        requests: dict[str, str] = {}
        for name, options, share in (
            ("cpu", ["100m", "250m", "1", "1500m", "0"], 0.7),
            ("memory", ["64Mi", "500M", "1Gi", "2Gi", "0"], 0.7),
            ("ephemeral-storage", ["1Gi", "20Gi"], 0.1),
        ):
            if self.chance(share):
                requests[name] = rng.choice(options)
        limits = {}
        if self.chance(0.1):
            limits["example.com/fpga"] = rng.choice(["0", "1", "2"])
        if self.chance(0.07):
            limits["hugepages-2Mi"] = rng.choice(["16Mi", "64Mi"])
            requests.setdefault("cpu", "100m")
        container: Manifest = {
            "name": f"c{number}",
            "image": rng.choice([*IMAGES, "registry.example/db", "other"]),
            "resources": {"requests": {**requests, **limits}, "limits": limits},
        }
        if init and self.chance(0.5):
            container["restartPolicy"] = "Always"
        elif self.chance(0.05):
            exits = {"operator": "In", "values": [42]}
            rules = [{"action": "RestartAllContainers", "exitCodes": exits}]
            container |= {"restartPolicy": "Never", "restartPolicyRules": rules}
        if self.chance(0.12):
            port = {"containerPort": 80 + number, "hostPort": rng.choice([8000, 8001]) + 10 * number}
            port["protocol"] = rng.choice(["TCP", "UDP"])
            if self.chance(0.5):
                port["hostIP"] = rng.choice(["10.0.0.1", "10.0.0.2", "0.0.0.0"])
            container["ports"] = [port]
        return container

    def tolerations(self) -> list[Manifest]:
        rng = self.rng
        found = []
        for _ in range(rng.randint(1, 3)):
            each = {"key": rng.choice(["dedicated", "spot", "busy", "old", "node.kubernetes.io/unschedulable"])}
            if self.chance(0.5):
                each["operator"] = "Exists"
            else:
                each["value"] = rng.choice(["", "a", "b"])
            if self.chance(0.6):
                each["effect"] = rng.choice(["NoSchedule", "NoExecute", "PreferNoSchedule"])
            found.append(each)
        return [{"operator": "Exists"}] if self.chance(0.1) else found

    def selector(self, keys: Sequence[str] = ("app", "tier", "ver")) -> Manifest:
        rng = self.rng
        if self.chance(0.06):
            return {}
        values = {"app": "xyz", "tier": ["web", "db"], "ver": "12"}
        key = rng.choice(list(keys))
        if self.chance(0.6):
            return {"matchLabels": {key: rng.choice(values[key])}}
        operator = rng.choice(["In", "NotIn", "Exists", "DoesNotExist"])
        expression = {"key": key, "operator": operator}
        if operator in {"In", "NotIn"}:
            expression["values"] = self.some(values[key], 1)
        return {"matchExpressions": [expression]}

    def spread(self, labels: Manifest) -> list[Manifest]:
        rng = self.rng
        found = []
        for key, hard in self.some([(key, hard) for key in KEYS for hard in (True, False)], 1):
            keys = self.some([each for each in ("ver", "tier") if each in labels], most=1) if self.chance(0.2) else []
            each: Manifest = {
                "maxSkew": rng.choice([1, 1, 2, 3]),
                "topologyKey": key,
                "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
                "labelSelector": self.selector([name for name in ("app", "tier", "ver") if name not in keys]),
            }
            if keys:
                each["matchLabelKeys"] = keys
            elif self.chance(0.05):
                del each["labelSelector"]
            if hard and self.chance(0.25):
                each["minDomains"] = rng.choice([1, 2, 3, 5])
            if self.chance(0.3):
                each["nodeAffinityPolicy"] = rng.choice(["Honor", "Ignore"])
            if self.chance(0.3):
                each["nodeTaintsPolicy"] = rng.choice(["Honor", "Ignore"])
            found.append(each)
        return found

    def volumes(self) -> list[Manifest]:
        numbers = self.some(range(VOLUMES), 1, 3)
        return [{"name": f"v{number}", "persistentVolumeClaim": {"claimName": f"data-{number}"}} for number in numbers]

    # ---- affinity ----------------------------------------------------------------------------------------------------

    def affinity(self, labels: Manifest, demanding: float) -> Manifest:
        found: Manifest = {}
        required, preferred = (
            "requiredDuringSchedulingIgnoredDuringExecution",
            "preferredDuringSchedulingIgnoredDuringExecution",
        )
        if self.chance(demanding):
            found["nodeAffinity"] = {
                required: {"nodeSelectorTerms": [self.node_term() for _ in range(self.rng.randint(1, 2))]}
            }
        if self.chance(demanding):
            terms = [
                {"weight": self.rng.randint(1, 100), "preference": self.node_term()}
                for _ in range(self.rng.randint(1, 3))
            ]
            found.setdefault("nodeAffinity", {})[preferred] = terms
        for field in ("podAffinity", "podAntiAffinity"):
            if self.chance(demanding * 0.8):
                found[field] = {required: [self.pod_term(labels) for _ in range(self.rng.choice([1, 1, 2]))]}
            if self.chance(demanding):
                terms = [
                    {"weight": self.rng.randint(1, 100), "podAffinityTerm": self.pod_term(labels)}
                    for _ in range(self.rng.randint(1, 2))
                ]
                found.setdefault(field, {})[preferred] = terms
        return found

    def node_term(self) -> Manifest:
        rng = self.rng
        options = [
            {"key": "disk", "operator": "In", "values": ["ssd"]},
            {"key": "disk", "operator": "NotIn", "values": ["hdd"]},
            {"key": "disk", "operator": "Exists"},
            {"key": "rack", "operator": "DoesNotExist"},
            {"key": "cores", "operator": "Gt", "values": [rng.choice(["4", "8"])]},
            {"key": "cores", "operator": "Lt", "values": [rng.choice(["8", "16"])]},
            {"key": KEYS[1], "operator": "In", "values": rng.sample(ZONES, 2)},
        ]
        if self.chance(0.12):
            name = f"{self.prefix}-n{rng.randint(0, 6)}"
            field = {"key": "metadata.name", "operator": rng.choice(["In", "NotIn"]), "values": [name]}
            term: Manifest = {"matchFields": [field]}
            if self.chance(0.3):
                other = f"{self.prefix}-n{rng.randint(0, 6)}"
                term["matchFields"].append({"key": "metadata.name", "operator": "In", "values": [other]})
            if self.chance(0.3):
                term["matchExpressions"] = self.some(options, 1, 1)
            return term
        return {"matchExpressions": self.some(options, 1, 2)}

    def pod_term(self, labels: Manifest) -> Manifest:
        rng = self.rng
        keys = self.some([each for each in ("ver", "tier") if each in labels], most=1) if self.chance(0.15) else []
        term: Manifest = {
            "topologyKey": rng.choice(KEYS),
            "labelSelector": self.selector([name for name in ("app", "tier", "ver") if name not in keys]),
        }
        if keys:
            term[rng.choice(["matchLabelKeys", "mismatchLabelKeys"])] = keys
        elif self.chance(0.04):
            del term["labelSelector"]
        if self.chance(0.3):
            term["namespaces"] = self.some(list(NAMESPACES), 1)
        if self.chance(0.3):
            term["namespaceSelector"] = rng.choice(
                [{}, {"matchLabels": {"team": "web"}}, {"matchExpressions": [{"key": "team", "operator": "Exists"}]}]
            )
        return term
