"""Storage drawn at random: classes, volumes, claims in every state, capacities, and pods that use the claims."""

from collections.abc import Sequence
from typing import Any

from support.scheduling_cases import DRIVER, KEYS, ZONES, Cases, Manifest
from support.volumes import storage_class

TRACKED = "csi.tracked"
"""A driver that tells its capacities; those of `DRIVER` are not asked for."""
ZONE = KEYS[1]
LOCAL, ANYWHERE, ZONAL, MEASURED, AT_ONCE = "local", "anywhere", "zonal", "measured", "at-once"
MIB = (100, 200, 200, 300, 400, 1000)


def classes() -> list[Manifest]:
    """Return classes: volumes that are there, that are made anywhere, in two zones, by capacity, and at once."""
    zonal = [{"matchLabelExpressions": [{"key": ZONE, "values": list(ZONES[:2])}]}]
    return [
        storage_class(LOCAL),
        storage_class(ANYWHERE, DRIVER),
        storage_class(ZONAL, DRIVER, allowedTopologies=zonal),
        storage_class(MEASURED, TRACKED),
        {**storage_class(AT_ONCE, DRIVER), "volumeBindingMode": "Immediate"},
    ]


class VolumeCases(Cases):
    """An episode's storage, in the namespace `default`; `claims` are the names that its pods may use."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.prefix = f"v{seed}"
        self.claims: list[str] = []

    def storage(self, nodes: Sequence[Manifest]) -> list[tuple[str, Manifest]]:
        """Return (path, manifest) of what there is, in an order that can be created."""
        rng = self.rng
        names = [f"{self.prefix}-c{number}" for number in range(rng.randint(8, 14))]
        found = [("/api/v1/namespaces/default/persistentvolumeclaims", self._claim(name)) for name in names]
        meant_for = rng.sample(names, len(names))
        for number in range(rng.randint(6, 20)):
            volume = self._volume(f"{self.prefix}-v{number}", nodes)
            # Of volumes of one size, or meant for one claim, kube-scheduler takes any.
            volume["spec"]["capacity"] = {"storage": f"{rng.choice(MIB) + number}Mi"}
            if self.chance(0.15) and meant_for:
                volume["spec"]["claimRef"] = {"namespace": "default", "name": meant_for.pop()}
                if self.chance(0.2):  # of a claim that is gone
                    volume["spec"]["claimRef"]["uid"] = "11111111-1111-1111-1111-111111111111"
            found.append(("/api/v1/persistentvolumes", volume))
        there = [manifest["metadata"]["name"] for path, manifest in found if path.endswith("volumes")]
        for number, name in enumerate(self.some([*there, "default-data-1", "default-data-3"], 0, 5)):
            source = {"persistentVolumeName": name}
            spec = {"attacher": DRIVER, "nodeName": rng.choice(nodes)["metadata"]["name"], "source": source}
            attachment = {"metadata": {"name": f"{self.prefix}-a{number}"}, "spec": spec}
            found.append(("/apis/storage.k8s.io/v1/volumeattachments", attachment))
        for number in range(rng.randint(0, 4)):
            path = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities"
            found.append((path, self._capacity(f"{self.prefix}-k{number}")))
        self.claims = names
        return found

    def pod(self, *, demanding: float = 0.08, **spec: Any) -> Manifest:
        """A pod of the namespace with one to three of the claims, and sometimes one that is not there."""
        pod = super().pod(demanding=demanding, **spec)
        pod["metadata"]["namespace"] = "default"
        names = self.some(self.claims, 1, self.rng.choice([1, 1, 2, 3]))
        if self.chance(0.15):
            names.append(self.rng.choice(["data-1", "data-2", "data-3"]))  # bound long ago
        if self.chance(0.05):
            names.append("no-such-claim")
        pod["spec"]["volumes"] = [
            {"name": f"v{number}", "persistentVolumeClaim": {"claimName": name}} for number, name in enumerate(names)
        ]
        return pod

    def _modes(self) -> list[str]:
        return self.rng.choice(
            [["ReadWriteOnce"], ["ReadWriteOnce"], ["ReadWriteOnce", "ReadWriteMany"], ["ReadOnlyMany"]]
        )

    def _claim(self, name: str) -> Manifest:
        rng = self.rng
        spec: Manifest = {
            "storageClassName": rng.choice([LOCAL, LOCAL, LOCAL, ANYWHERE, ZONAL, MEASURED, MEASURED]),
            "accessModes": self._modes(),
            "resources": {"requests": {"storage": f"{rng.choice(MIB)}Mi"}},
        }
        if self.chance(0.06):
            spec["storageClassName"] = rng.choice([AT_ONCE, "no-such-class"])
        if self.chance(0.1):
            spec["volumeMode"] = "Block"
        if self.chance(0.15):
            spec["selector"] = rng.choice(
                [{"matchLabels": {"disk": "ssd"}}, {"matchExpressions": [{"key": "disk", "operator": "DoesNotExist"}]}]
            )
        return {"metadata": {"name": name}, "spec": spec}

    def _volume(self, name: str, nodes: Sequence[Manifest]) -> Manifest:
        rng = self.rng
        labels = {"disk": rng.choice(["ssd", "hdd"])} if self.chance(0.4) else {}
        if self.chance(0.15):
            labels[ZONE] = rng.choice(["z1", "z1__z2", "z3"])
        spec: Manifest = {
            "storageClassName": rng.choice([LOCAL, LOCAL, LOCAL, LOCAL, ANYWHERE, MEASURED]),
            "accessModes": rng.choice([self._modes(), *2 * [["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"]]]),
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": DRIVER, "volumeHandle": name},
        }
        if self.chance(0.1):
            spec["volumeMode"] = "Block"
        if self.chance(0.7):
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": self._terms(nodes)}}
        phase = rng.choice(["Available"] * 8 + ["Released", "Failed"])
        return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"phase": phase}}

    def _terms(self, nodes: Sequence[Manifest]) -> list[Manifest]:
        some = [node["metadata"]["name"] for node in self.some(nodes, 1, 3)]
        options = [
            {"key": KEYS[0], "operator": "In", "values": some},
            {"key": ZONE, "operator": "In", "values": self.some(ZONES, 1, 2)},
            {"key": ZONE, "operator": "NotIn", "values": self.some(ZONES, 1, 2)},
            {"key": KEYS[2], "operator": "Exists"},
        ]
        return [{"matchExpressions": self.some(options, 1, 2)} for _ in range(self.rng.choice([1, 1, 2]))]

    def _capacity(self, name: str) -> Manifest:
        rng = self.rng
        found: Manifest = {"metadata": {"name": name}, "storageClassName": rng.choice([MEASURED, MEASURED, ANYWHERE])}
        if self.chance(0.9):
            found["capacity"] = f"{rng.choice(MIB)}Mi"
        if self.chance(0.3):
            found["maximumVolumeSize"] = f"{rng.choice(MIB)}Mi"
        if self.chance(0.9):
            found["nodeTopology"] = rng.choice(
                [
                    {"matchLabels": {ZONE: rng.choice(ZONES)}},
                    {},
                    {"matchExpressions": [{"key": "rack", "operator": "Exists"}]},
                ]
            )
        return found
