"""Claims, volumes and storage classes of the API to what they ask of a pod's node, with kube-scheduler's reading."""

from collections.abc import Iterator
from typing import Protocol

from aaml.cluster import objects
from aaml.cluster.filters.volumes import ZONE_LABELS
from aaml.cluster.quantity import amount
from aaml.cluster.storage import StorageCapacity, StorageClass, Volume
from aaml.kube.objects import wire
from aaml.kube.objects.selectors import label_selector, node_term

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""The annotation of a claim that tells a provisioner for which node to make its volume."""
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
"""The annotation of a volume whose claim was not chosen by a person."""
_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_CLASS = "volume.beta.kubernetes.io/storage-class"  # what classes were called before they had a field
_NO_PROVISIONER = "kubernetes.io/no-provisioner"


class VolumeLister(Protocol):
    """A lister of persistent volume objects; its methods return None where there is no such object."""

    def claim(self, namespace: str, name: str) -> wire.ClaimObject | None:
        """Return a persistent volume claim."""
        ...

    def volume(self, name: str) -> wire.VolumeObject | None:
        """Return a persistent volume."""
        ...

    def storage_class(self, name: str) -> wire.StorageClass | None:
        """Return a storage class."""
        ...


def claim_names(pod: wire.PodObject) -> tuple[str, ...]:
    """Return the names of the persistent volume claims that the pod uses (in its own namespace)."""
    return tuple(name for name, _ in _claims(pod))


def _claims(pod: wire.PodObject) -> Iterator[tuple[str, bool]]:
    """Yield the names of a pod's claims, and whether a claim is made for this pod alone (an ephemeral volume)."""
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", True


def resolve_volumes(pod: wire.PodObject, lister: VolumeLister) -> objects.VolumeNeeds:  # noqa: C901, PLR0912
    """Resolve claims to volumes; messages are those of kube-scheduler's plugins of volumes."""
    terms: list[tuple[objects.NodeSelectorTerm, ...]] = []
    zones: list[tuple[str, frozenset[str]]] = []
    attachments: set[tuple[str, str]] = set()
    exclusive: set[str] = set()
    unbound: list[objects.UnboundClaim] = []
    absent = unusable = loose = lost = ""
    namespace = pod.metadata.namespace or "default"
    for name, own in _claims(pod):
        claim = lister.claim(namespace, name)
        if claim is None and not own:
            absent = absent or f'persistentvolumeclaim "{name}" not found'
        unusable = unusable or _unusable(pod, name, claim, own=own)
        if claim is None:
            continue
        if "ReadWriteOncePod" in (claim.spec.access_modes or ()):
            exclusive.add(f"{namespace}/{name}")
        volume = lister.volume(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is None:
            kind = lister.storage_class(_class_of(claim.metadata, claim.spec.storage_class_name))
            if kind is not None and kind.provisioner:
                attachments.add((kind.provisioner, f"{namespace}/{name}"))  # it will be one
            waits = kind is not None and kind.volume_binding_mode == "WaitForFirstConsumer"
            if not claim.spec.volume_name and waits:
                unbound.append(unbound_claim(claim))
                continue
        elif volume.spec.csi is not None:
            attachments.add((volume.spec.csi.driver, volume.spec.csi.volume_handle))
        if not is_bound(claim):
            loose = "pod has unbound immediate PersistentVolumeClaims"
        elif volume is None:
            lost = lost or f'persistentvolume "{claim.spec.volume_name}" not found'
        else:
            if not own:
                zones += _zones(volume)
            if (admitted := node_terms(volume)) is not None:
                terms.append(admitted)
    return objects.VolumeNeeds(
        tuple(terms), frozenset(attachments), frozenset(exclusive), absent or unusable or loose or lost, tuple(zones),
        tuple(dict.fromkeys(unbound)),
    )  # fmt: skip


def _unusable(pod: wire.PodObject, name: str, claim: wire.ClaimObject | None, *, own: bool) -> str:
    """Return why no pod can use a claim now, "" where it can."""
    if claim is None:
        return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"' if own else ""
    if claim.status.phase == "Lost":
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
    if claim.metadata.deletion_timestamp is not None:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if own and not any(
        owner.controller and owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references or ()
    ):
        place = pod.metadata.namespace or "default"
        return f"PVC {place}/{name} was not created for pod {place}/{pod.metadata.name} (pod is not owner)"
    return ""


def is_bound(claim: wire.ClaimObject) -> bool:
    """Say whether a claim has its volume, and the controller of volumes is done with it."""
    return bool(claim.spec.volume_name) and _BIND_COMPLETED in (claim.metadata.annotations or {})


def selected_node(claim: wire.ClaimObject) -> str:
    """Return the node for which a provisioner is to make the claim's volume, "" for none."""
    return (claim.metadata.annotations or {}).get(SELECTED_NODE, "")


def unbound_claim(claim: wire.ClaimObject) -> objects.UnboundClaim:
    """Return a claim that has no volume yet."""
    meta, spec = claim.metadata, claim.spec
    return objects.UnboundClaim(
        key=f"{meta.namespace or 'default'}/{meta.name}",
        uid=meta.uid,
        storage_class=_class_of(meta, spec.storage_class_name),
        size_bytes=_size(spec.resources.requests if spec.resources else None),
        access_modes=frozenset(spec.access_modes or ()),
        block=spec.volume_mode == "Block",
        attributes_class=spec.volume_attributes_class_name or "",
        selector=label_selector(spec.selector),
        selected_node=selected_node(claim),
    )


def volume_from_api(volume: wire.VolumeObject) -> Volume:
    """Return a persistent volume as claims may get it."""
    meta, spec = volume.metadata, volume.spec
    ref = spec.claim_ref
    return Volume(
        name=meta.name,
        size_bytes=_size(spec.capacity),
        storage_class=_class_of(meta, spec.storage_class_name),
        access_modes=frozenset(spec.access_modes or ()),
        block=spec.volume_mode == "Block",
        attributes_class=spec.volume_attributes_class_name or "",
        labels=meta.labels or {},
        node_terms=node_terms(volume),
        claim=f"{ref.namespace}/{ref.name}" if ref is not None else "",
        claim_uid=ref.uid if ref is not None else "",
        handle=spec.csi.volume_handle if spec.csi is not None else "",
        available=volume.status.phase == "Available",
        terminating=meta.deletion_timestamp is not None,
    )


def node_terms(volume: wire.VolumeObject) -> tuple[objects.NodeSelectorTerm, ...] | None:
    """Return the terms of which a node that uses the volume must match one; None: every node will do."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return None
    return tuple(map(node_term, affinity.required.node_selector_terms or ()))


def class_from_api(kind: wire.StorageClass) -> StorageClass:
    """Return how volumes of a class are made."""
    topologies = tuple(
        objects.NodeSelectorTerm(
            tuple(objects.Requirement(each.key, "In", tuple(each.values)) for each in term.match_label_expressions)
        )
        for term in kind.allowed_topologies or ()
    )
    provisioner = "" if kind.provisioner == _NO_PROVISIONER else kind.provisioner
    return StorageClass(kind.metadata.name, provisioner, topologies)


def capacity_from_api(capacity: wire.CapacityObject) -> StorageCapacity:
    """Return what a driver can still provision: the largest volume where it reports that, else the whole capacity."""
    largest = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
    return StorageCapacity(
        capacity.storage_class_name,
        None if largest is None else amount("storage", largest),
        label_selector(capacity.node_topology),
        0 if capacity.capacity is None else amount("storage", capacity.capacity),
    )


def _size(amounts: wire.Quantities) -> int:
    return amount("storage", (amounts or {}).get("storage", 0))


def _class_of(meta: wire.Metadata, field: str | None) -> str:
    return (meta.annotations or {}).get(_CLASS, field or "")


def _zones(volume: wire.VolumeObject) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the labels that say where a volume is, several values being divided by "__"; odd ones say nothing."""
    labels = volume.metadata.labels or {}
    for key in ZONE_LABELS:
        values = [value.strip() for value in labels[key].split("__")] if key in labels else [""]
        if all(values):
            yield key, frozenset(values)
