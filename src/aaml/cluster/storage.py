"""Storage: the persistent volumes of a cluster, and where new ones can be made, for claims that are not bound yet.

A claim whose class waits for its first consumer gets its volume once its pod has a node: one that is there, or a new
one. https://kubernetes.io/docs/concepts/storage/storage-classes/#volume-binding-mode
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from aaml.cluster.objects import LabelSelector, NodeSelectorTerm, UnboundClaim
from aaml.cluster.selectors import matches_labels


@dataclass(frozen=True, slots=True)
class Volume:
    """A persistent volume.

    One of `node_terms` must match the node that uses it; None: every node will do. `claim` (namespace/name) is what it
    is bound to or meant for, and `claim_uid` is "" where it is meant for any claim of that name. Without a claim it can
    be had where it is `available`. `handle` is what its CSI driver calls it, "" for a volume of another kind.
    """

    name: str
    size_bytes: int
    storage_class: str = ""
    access_modes: frozenset[str] = frozenset()
    block: bool = False
    attributes_class: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    node_terms: tuple[NodeSelectorTerm, ...] | None = None
    claim: str = ""
    claim_uid: str = ""
    handle: str = ""
    available: bool = True
    terminating: bool = False


@dataclass(frozen=True, slots=True)
class StorageClass:
    """How volumes of a class are made: by whom ("" where nobody can), and for nodes that match one of `topologies`.

    Without topologies any node will do.
    """

    name: str
    provisioner: str = ""
    topologies: tuple[NodeSelectorTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class StorageCapacity:
    """What a driver can still make for a class and the `nodes` that reach it.

    `largest_bytes` is the largest volume, None where it does not say; `whole_bytes` is all of them together.
    """

    storage_class: str
    largest_bytes: int | None
    nodes: LabelSelector | None
    whole_bytes: int = 0


class Storage:
    """Volumes, classes, capacities and attachments as the cluster tells them, and what decisions have taken since.

    `reserve` and `select` note what was decided before the cluster confirms it; `release` and `deselect` undo that.
    """

    def __init__(self) -> None:
        self.volumes: dict[str, Volume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.capacities: dict[str, StorageCapacity] = {}
        self.tracked: set[str] = set()
        """Drivers whose capacities count."""
        self.attached: dict[str, dict[str, tuple[str, str]]] = {}
        """Node -> attachment -> (driver, volume), whether or not a pod there uses the volume."""
        self._reserved: dict[str, UnboundClaim] = {}  # by volume
        self._selected: dict[str, str] = {}  # claim -> the node for which a volume is to be made
        self._free: dict[str, list[tuple[int, str]]] = {}  # class -> (size, volume), sorted
        self._meant: dict[str, tuple[str, ...]] = {}  # claim -> volumes, sorted

    def put_volume(self, volume: Volume) -> None:
        """Take in a volume, or what has become of it."""
        self._take_out(volume.name)
        self.volumes[volume.name] = volume
        self._put_in(volume)

    def drop_volume(self, name: str) -> None:
        """A volume is gone."""
        self._take_out(name)
        self.volumes.pop(name, None)
        self._reserved.pop(name, None)

    def reserve(self, name: str, claim: UnboundClaim) -> None:
        """A claim is to get this volume: no other one may."""
        self._take_out(name)
        self._reserved[name] = claim
        self._put_in(self.volumes[name])

    def release(self, name: str) -> None:
        """Undo `reserve`."""
        if name in self._reserved:
            self._take_out(name)
            del self._reserved[name]
            if name in self.volumes:
                self._put_in(self.volumes[name])

    def reserved(self, name: str) -> bool:
        """Say whether a volume is to go to a claim by what was decided."""
        return name in self._reserved

    def select(self, claim: str, node_name: str) -> None:
        """A volume is to be made for a claim on this node."""
        self._selected[claim] = node_name

    def deselect(self, claim: str) -> None:
        """Undo `select`."""
        self._selected.pop(claim, None)

    def selected_node(self, claim: UnboundClaim) -> str:
        """Return the node for which a volume of the claim is being made, "" for none."""
        return self._selected.get(claim.key) or claim.selected_node

    def meant_for(self, claim: UnboundClaim) -> Volume | None:
        """Return the volume that is meant for a claim and suits it, None without one."""
        for name in self._meant.get(claim.key, ()):
            volume = self.volumes[name]
            uid = volume.claim_uid if volume.claim else self._reserved[name].uid
            if (not uid or uid == claim.uid) and volume.storage_class == claim.storage_class and _suits(volume, claim):
                return volume
        return None

    def fitting(self, claim: UnboundClaim) -> Iterator[Volume]:
        """Yield the volumes that nobody has and that suit a claim, the smallest first, then by name."""
        free = self._free.get(claim.storage_class, [])
        for _, name in free[bisect_left(free, (claim.size_bytes, "")) :]:
            volume = self.volumes[name]
            if _suits(volume, claim) and claim.access_modes <= volume.access_modes and _selects(claim, volume):
                yield volume

    def attachments(self, node_name: str) -> set[tuple[str, str]]:
        """Return what is attached to a node, as pairs of a driver and what it calls the volume."""
        known = ((driver, self.volumes.get(name)) for driver, name in self.attached.get(node_name, {}).values())
        return {(driver, volume.handle) for driver, volume in known if volume is not None and volume.handle}

    def fork(self) -> "Storage":
        """Return an independent copy."""
        twin = Storage()
        twin.volumes, twin.classes, twin.capacities = dict(self.volumes), dict(self.classes), dict(self.capacities)
        twin.tracked, twin._reserved, twin._selected = set(self.tracked), dict(self._reserved), dict(self._selected)
        twin.attached = {node: dict(attachments) for node, attachments in self.attached.items()}
        twin._free = {name: list(volumes) for name, volumes in self._free.items()}
        twin._meant = dict(self._meant)
        return twin

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _claim_of(self, volume: Volume) -> str:
        reserved = self._reserved.get(volume.name)
        return volume.claim or (reserved.key if reserved is not None else "")

    def _put_in(self, volume: Volume) -> None:
        if claim := self._claim_of(volume):
            self._meant[claim] = tuple(sorted((*self._meant.get(claim, ()), volume.name)))
        elif volume.available and not volume.terminating:
            insort(self._free.setdefault(volume.storage_class, []), (volume.size_bytes, volume.name))

    def _take_out(self, name: str) -> None:
        volume = self.volumes.get(name)
        if volume is None:
            return
        if claim := self._claim_of(volume):
            others = tuple(each for each in self._meant.pop(claim) if each != name)
            if others:
                self._meant[claim] = others
        elif volume.available and not volume.terminating:
            free = self._free[volume.storage_class]
            del free[bisect_left(free, (volume.size_bytes, name))]


def _selects(claim: UnboundClaim, volume: Volume) -> bool:
    return claim.selector is None or matches_labels(claim.selector, volume.labels)


def _suits(volume: Volume, claim: UnboundClaim) -> bool:
    return (
        volume.size_bytes >= claim.size_bytes
        and volume.block == claim.block
        and volume.attributes_class == claim.attributes_class
        and not volume.terminating
    )
