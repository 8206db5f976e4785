"""Clusters and pods of values that an API server takes and nobody expects, for the judges of `support.differential`."""

from collections.abc import Sequence
from typing import Any

from support.scheduling_cases import KEYS, NAMESPACES, RUNTIME_CLASS, Cases, Manifest

LONG = "x" * 63
LABELS = {
    "9": ("", "0", "00", "007", "8", "1e3", "9223372036854775807", "9223372036854775808", "9" * 63),
    "A.b_c-d": ("", "A", "a", "true", "null", "a.b_c-9", LONG),
    f"{'p.' * 126}p/{LONG}": ("", "v", LONG),
    "example.com/x": ("", "0x10", "1.5", "1_000"),
}
"""Keys and values at the edges of what a label may be, integers among them that 64 bits hold and do not."""
FRACTIONS = (
    "0", "1n", "999n", "1u", "100u", "0.5m", "1m", "1.0005m", ".25", "+0.1", "25e-2", "5E-1", "1.", "0.0000001k",
)  # fmt: skip
BYTES = (
    "0", "1", "1n", "1m", "1500m", "64e6", "1E6", "0.5Gi", ".1Gi", "1.5G", "1e9", "100000k", "123456789", "1048576Ki",
    "0.000001P", "1.0000000000000001Gi", "0.001Ti", "1073741824000m",
)  # fmt: skip
OFFERED_CORES = ("0", "1n", "999m", "1.5", "4e0", "8E0", "0.016k", "2000000u", "16", "512", "1k", "1M", "1G")
OFFERED_BYTES = (
    "0", "1", "1e9", "4.5Gi", "8e9", "16Gi", "64G", "0.25Ti", "24T", "1Ti", "1P", "1023Ti", "1125899906842624",
)  # fmt: skip
HUGE = ("1025Ti", "2Pi", "1e18", "12E", "8Ei", "9223372036854775807", "9223372036854775", "4611686018427387904", "1e30")
"""More than AAML tells apart, and more than 64 bits hold."""
WHOLE = ("0", "1", "2", "1e0", "0.002k", "3000m", "1k", "1Ki", "1e6")
SCALARS = ("example.com/fpga", f"example.com/{LONG}", "9.example/a_b.c", "k8s.example/9")
TAINTS = ("node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready", "9", "spot.example/A_b", LONG)
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
ADDRESSES = ("", "0.0.0.0", "::", "::1", "127.0.0.1", "10.0.0.1", "fe80::1")
IMAGES = {
    "9": 0, "a/b/c/d": 5 << 20, "r.example:5000/x": 300 << 20, "r.example:5000/x:latest": 700 << 20,
    f"r.example/{'y' * 80}@sha256:{'0' * 64}": 4 << 40,
}  # fmt: skip
"""Sizes by name: of an image that nodes report with several sizes kube-scheduler takes the one that it saw first."""
HIGHEST = 2**31 - 1
RUNTIME_CLASSES = [
    RUNTIME_CLASS | {"metadata": {"name": name}, "overhead": {"podFixed": overhead}, **more}
    for name, overhead, more in (
        ("feather", {"cpu": "1n", "memory": "1m"}, {}),
        ("nothing", {"cpu": "0", "memory": "0"}, {}),
        ("giant", {"cpu": "1.5", "memory": "2e9", "example.com/fpga": "1"}, {}),
        (
            "picky",
            {"ephemeral-storage": "1Ki"},
            {"scheduling": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "9", "operator": "Exists"}]}},
        ),
    )
]


class StrangeCases(Cases):
    """The cases of `Cases`, in which every value may also be a strange one, and in some of them a `huge` one."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.huge = self.chance(0.1)

    def nodes(self) -> list[Manifest]:
        return [self.node(f"{self.prefix}-n{number}") for number in range(self.rng.randint(10, 30))]

    def strange_name(self, name: str) -> str:
        """Return a name of the same start that is as long as one may be, or has dots, digits and dashes."""
        ends = ("", ".0", "-9", ".a--b.c", f".{'n' * 63}.{'m' * 63}", "." + "9." * 40 + "9")
        return name + self.rng.choice(ends)

    def strange_labels(self, most: int = 3) -> Manifest:
        labels = {key: self.rng.choice(LABELS[key]) for key in self.some(list(LABELS), most=most)}
        if self.chance(0.03):
            labels |= {f"many.example/l{number}": str(number) for number in range(self.rng.choice([300, 3000]))}
        return labels

    def strange_key(self) -> str:
        return self.rng.choice([*LABELS, "many.example/l7", "no.example/such"])

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def node(self, name: str) -> Manifest:
        rng, node = self.rng, super().node(self.strange_name(name))
        meta, spec, status = node["metadata"], node["spec"], node["status"]
        meta["labels"] |= self.strange_labels() | {KEYS[0]: meta["name"][:63].rstrip(".-")}
        for key in KEYS:
            if key in meta["labels"] and self.chance(0.1):
                meta["labels"][key] = rng.choice(["", "0", LONG])
        if self.chance(0.05):
            meta["labels"] = {}
        offered = status["allocatable"]
        for field, options in (("cpu", OFFERED_CORES), ("memory", OFFERED_BYTES), ("ephemeral-storage", OFFERED_BYTES)):
            if self.chance(0.5):
                offered[field] = rng.choice(options)
            if self.huge and self.chance(0.3):
                offered[field] = rng.choice(HUGE)
            if self.chance(0.04):
                del offered[field]
        if self.chance(0.3):
            offered["pods"] = rng.choice(["0", "1", "1e1", "0.02k", "110", "2147483647"])
        for scalar in self.some(SCALARS, most=3):
            offered[scalar] = rng.choice(WHOLE)
        if self.chance(0.1):
            offered |= {"hugepages-1Gi": rng.choice(["0", "1Gi", "4Gi"]), "hugepages-64Ki": "64Ki"}
        if self.chance(0.05):
            offered |= {f"many.example/r{number}": "1" for number in range(60)}
        status["capacity"] = offered
        if self.chance(0.1):
            del status["allocatable"]  # then it is the capacity
        if self.chance(0.03):
            status["allocatable"] = status["capacity"] = {}
        pairs = [(key, effect) for key in TAINTS for effect in EFFECTS]
        most = 15 if self.chance(0.05) else 1
        if self.chance(0.25):
            values = ("", "0", "a", LONG)
            for key, effect in self.some(pairs, most=most):
                spec["taints"].append({"key": key, "value": rng.choice(values), "effect": effect})
        if self.chance(0.3):
            status["images"] += [{"names": [image], "sizeBytes": IMAGES[image]} for image in self.some([*IMAGES])]
        if self.chance(0.05):
            status["images"] += [{"names": [f"many/i{n}:{n}"], "sizeBytes": n << 20} for n in range(200)]
        return node

    # ---- pods --------------------------------------------------------------------------------------------------------

    def pod(self, *, demanding: float = 0.35, **spec: Any) -> Manifest:
        rng, pod = self.rng, super().pod(demanding=demanding, **spec)
        meta, fields = pod["metadata"], pod["spec"]
        meta["name"] = self.strange_name(meta["name"])
        meta["labels"] |= self.strange_labels()
        if self.chance(0.02):
            meta["annotations"] = {"a.example/large": "\u2603" * 60_000}
        if "resources" in fields:  # they bound those of its containers; what is left out the API server rounds too low
            fields["resources"]["requests"] = {"cpu": "6", "memory": "6500Mi"} | fields["resources"]["requests"]
        else:
            if self.chance(0.03):
                fields["containers"] = [self.container(number) for number in range(1000, 1250)]
                for container in fields["containers"]:
                    container.pop("ports", None)
            if self.chance(0.2):
                fields["initContainers"] = [self.container(900 + n, init=True) for n in range(rng.randint(1, 12))]
            if self.chance(0.15):
                fields["runtimeClassName"] = rng.choice([each["metadata"]["name"] for each in RUNTIME_CLASSES])
            for container in fields["containers"]:
                if self.huge and self.chance(0.2):
                    container["resources"]["requests"][rng.choice(["cpu", "memory"])] = rng.choice(HUGE)
                if self.chance(0.1):  # what is limited only is requested as much
                    container["resources"] = {"limits": container["resources"]["requests"]}
        if self.chance(demanding / 4):
            key = rng.choice(list(LABELS))
            fields["nodeSelector"] = fields.get("nodeSelector", {}) | {key: rng.choice(LABELS[key])}
        if self.chance(0.05):
            fields["volumes"] = [*fields.get("volumes", ()), *({"name": f"e{n}", "emptyDir": {}} for n in range(64))]
        if self.chance(0.03):
            missing = {"name": "lost", "persistentVolumeClaim": {"claimName": "no.such-claim"}}
            fields["volumes"] = [*fields.get("volumes", ()), missing]
        return pod

    def container(self, number: int, *, init: bool = False) -> Manifest:
        rng, container = self.rng, super().container(number, init=init)
        if self.chance(0.1):
            container["name"] = f"{container['name']}-{'z' * 50}"
        if self.chance(0.2):
            container["image"] = rng.choice([*IMAGES])
        needs = container["resources"]
        for name, options in (("cpu", FRACTIONS), ("memory", BYTES), ("ephemeral-storage", BYTES)):
            if self.chance(0.4):
                needs["requests"][name] = rng.choice(options)
        if self.chance(0.1):
            for name in self.some(SCALARS, most=3):
                needs["requests"][name] = needs["limits"][name] = rng.choice(["0", "1", "1000m", "1e0", "0.002k"])
        if "ports" in container or self.chance(0.05):
            port = rng.choice([1, 8000 + 10 * (number % 1000), 65535 - number % 1000])
            each = {"containerPort": port, "hostPort": port, "protocol": rng.choice(["TCP", "UDP", "SCTP"])}
            container["ports"] = [each | {"hostIP": rng.choice(ADDRESSES)}]
        return container

    def tolerations(self) -> list[Manifest]:
        rng, found = self.rng, super().tolerations()
        if self.chance(0.5):
            return found
        for _ in range(rng.choice([1, 2, 200])):
            each: Manifest = {"key": rng.choice(TAINTS), "operator": rng.choice(["Exists", "Equal", ""])}
            if each["operator"] == "Exists":
                each["key"] = rng.choice([each["key"], ""])
            else:
                each["value"] = rng.choice(["", "0", "a", LONG])
            each["effect"] = rng.choice([*EFFECTS, ""])
            if each["effect"] == "NoExecute" and self.chance(0.5):
                each["tolerationSeconds"] = rng.choice([0, -9, 2**62])
            found.append(each)
        return found

    def requirement(self, operators: Sequence[str]) -> Manifest:
        """Return an expression about a strange label."""
        rng, key = self.rng, self.strange_key()
        values = LABELS.get(key, ("7", "", "x"))
        operator = rng.choice(operators)
        match operator:
            case "In" | "NotIn":
                many = [str(number) for number in range(400)] if self.chance(0.05) else []
                return {"key": key, "operator": operator, "values": [*self.some(values, 1, 4), *many]}
            case "Gt" | "Lt":
                bounds = ("0", "007", "8", "9223372036854775806", "9223372036854775808", "x", "1.5", "")
                return {"key": key, "operator": operator, "values": [rng.choice(bounds)]}
        return {"key": key, "operator": operator}

    def selector(self, keys: Sequence[str] = ("app", "tier", "ver")) -> Manifest:
        selector = super().selector(keys)
        if self.chance(0.25):
            operators = ("In", "NotIn", "Exists", "DoesNotExist")
            more = [self.requirement(operators) for _ in range(self.rng.choice([1, 2, 30]))]
            selector["matchExpressions"] = [*selector.get("matchExpressions", ()), *more]
        return selector

    def spread(self, labels: Manifest) -> list[Manifest]:
        found = super().spread(labels)
        for each in found:
            if self.chance(0.2):
                each["maxSkew"] = self.rng.choice([5, 1000, HIGHEST])
            if each["whenUnsatisfiable"] == "DoNotSchedule" and self.chance(0.1):
                each["minDomains"] = self.rng.choice([4, 1000, HIGHEST])
        if self.chance(0.2):
            soft = {"maxSkew": 1, "topologyKey": self.strange_key(), "whenUnsatisfiable": "ScheduleAnyway"}
            found.append(soft | {"labelSelector": self.selector()})
        return found

    def node_term(self) -> Manifest:
        if self.chance(0.03):
            return {}
        term = super().node_term()
        if self.chance(0.35):
            operators = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
            term["matchExpressions"] = [self.requirement(operators) for _ in range(self.rng.choice([1, 1, 2, 40]))]
        return term

    def pod_term(self, labels: Manifest) -> Manifest:
        rng, term = self.rng, super().pod_term(labels)
        if self.chance(0.15):
            term["topologyKey"] = self.strange_key()
        if self.chance(0.1):
            term["namespaces"] = [*rng.sample([*NAMESPACES], 1), *(f"no-such-{number}" for number in range(50))]
        if self.chance(0.1):
            operators = ("In", "NotIn", "Exists", "DoesNotExist")
            term["namespaceSelector"] = {"matchExpressions": [self.requirement(operators)]}
        return term
