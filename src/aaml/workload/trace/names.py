"""Names that say nothing: a name becomes the same letters everywhere in a trace, and only the key's owner knows which.

Kept are amounts, times, priorities, models of GPUs, what Kubernetes and the makers of devices call their own labels,
taints and resources, values that are whole numbers, and what tells the price of a node: instance type, capacity type,
operating system. Everything else that a person chose is replaced by a keyed BLAKE2 hash. Equal names stay equal, so
selectors and affinity choose the same pods and nodes as before; the order of names changes, and with it which of
several equally good nodes is the first.
"""

import dataclasses
import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aaml.cluster.objects import (
    CAPACITY_TYPE_LABEL,
    OS_LABEL,
    PRICE_LABEL,
    RACK_LABEL,
    SERVER_LABEL,
    SPOT_LABELS,
    TYPE_LABEL,
    Affinity,
    HostPort,
    LabelSelector,
    Node,
    NodeSelectorTerm,
    Pod,
    PodAffinityTerm,
    PodGroup,
    Requirement,
    Taint,
    Toleration,
    TopologySpread,
    UnboundClaim,
    VolumeNeeds,
)
from aaml.errors import UserError
from aaml.files import write_bytes
from aaml.workload.trace.events import AnyEvent, Began, NodeGone, NodeSeen, PodBound, PodEnded, PodSeen

_KEY_BYTES = 32
_LETTERS = 16
_PUBLIC = ("kubernetes.io", "k8s.io", "nvidia.com", "amd.com", "intel.com", "alibabacloud.com")
_ANYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104  (an address that pods ask for; nothing is bound here)
_OF_PRICES = frozenset({TYPE_LABEL, CAPACITY_TYPE_LABEL, OS_LABEL, PRICE_LABEL, *SPOT_LABELS})
_KEPT = frozenset(
    {
        *("", "default-scheduler", "cpu", "memory", "ephemeral-storage", "pods"),
        *("pod-template-hash", "controller-revision-hash"),  # what the controllers call their labels
        *(RACK_LABEL, SERVER_LABEL),
    }
)


def read_key(path: Path) -> bytes:
    """Return the key in a file that only its owner can read; one that is not there is made. Raises `UserError`."""
    try:
        if path.exists():
            return path.read_bytes()
    except OSError as error:
        raise UserError(f"key {path}: cannot be read: {error.strerror or error}") from error
    key = secrets.token_bytes(_KEY_BYTES)
    write_bytes(path, key, field="key", mode=0o600)
    return key


class NameHasher:
    """Replaces the names in events by a keyed hash."""

    def __init__(self, key: bytes) -> None:
        self._key = key[:64]
        self._known: dict[str, str] = {}

    def __call__(self, event: AnyEvent) -> AnyEvent:  # noqa: PLR0911
        """Return the event without names."""
        match event:
            case Began():
                return Began(at=event.at, source=self.name(event.source), hashed=True)
            case NodeSeen():
                return NodeSeen(at=event.at, node=self.node(event.node))
            case NodeGone():
                return NodeGone(at=event.at, name=self.name(event.name))
            case PodSeen():
                return PodSeen(at=event.at, pod=self.pod(event.pod))
            case PodBound():
                return PodBound(
                    at=event.at, uid=self.name(event.uid), node_name=self.name(event.node_name), gpus=event.gpus,
                    found=event.found,
                )  # fmt: skip
            case PodEnded():
                return PodEnded(at=event.at, uid=self.name(event.uid), how=event.how)
        return event

    def name(self, text: str) -> str:
        """Return what stands for a name or a value."""
        if text in _KEPT or text.removeprefix("-").isdigit() or text in {"true", "false"}:
            return text
        found = self._known.get(text)
        if found is None:
            digest = hashlib.blake2b(text.encode(), key=self._key, digest_size=_LETTERS // 2).hexdigest()
            found = self._known[text] = f"x{digest}"
        return found

    def key(self, text: str) -> str:
        """Return what stands for a label's key, a taint's, or a resource's name; those of public domains are kept."""
        domain = text.partition("/")[0] if "/" in text else ""
        public = any(domain == each or domain.endswith(f".{each}") for each in _PUBLIC)
        return text if public or text in _OF_PRICES else self.name(text)

    def value(self, key: str, text: str) -> str:
        """Return what stands for a label's value."""
        return text if key in _OF_PRICES else self.name(text)

    def pod(self, pod: Pod) -> Pod:
        """Return the pod without names."""
        kind, slash, owner = pod.owner.partition("/")
        return dataclasses.replace(
            pod,
            name=self.name(pod.name), namespace=self.name(pod.namespace), uid=self.name(pod.uid),
            requests=self._amounts(pod.requests), labels=self._labels(pod.labels),
            scheduler_name=self.name(pod.scheduler_name), node_name=self.name(pod.node_name),
            nominated_node=self.name(pod.nominated_node), node_selector=self._labels(pod.node_selector),
            affinity=self._affinity(pod.affinity), tolerations=tuple(map(self._toleration, pod.tolerations)),
            spread=tuple(map(self._spread, pod.spread)), host_ports=tuple(map(self._port, pod.host_ports)),
            volumes=self._volumes(pod.volumes), images=tuple(map(self.name, pod.images)),
            gates=tuple(map(self.name, pod.gates)), owner=f"{kind}/{self.name(owner)}" if slash else "",
            group=self._group(pod.group), resource_version="",
        )  # fmt: skip

    def _group(self, group: PodGroup | None) -> PodGroup | None:
        if group is None:
            return None
        key = group.topology_key and self.key(group.topology_key)
        return dataclasses.replace(group, name=self.name(group.name), topology_key=key)

    def node(self, node: Node) -> Node:
        """Return the node without names."""
        return dataclasses.replace(
            node,
            name=self.name(node.name), allocatable=self._amounts(node.allocatable), labels=self._labels(node.labels),
            taints=tuple(map(self._taint, node.taints)),
            images={self.name(image): size for image, size in node.images.items()},
            volume_limits={self.key(driver): limit for driver, limit in node.volume_limits.items()},
            resource_version="",
        )  # fmt: skip

    def _labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {self.key(key): self.value(key, value) for key, value in labels.items()}

    def _amounts(self, amounts: Mapping[str, int]) -> dict[str, int]:
        return {self.key(resource): amount for resource, amount in amounts.items()}

    def _requirement(self, each: Requirement) -> Requirement:
        return Requirement(self.key(each.key), each.operator, tuple(self.value(each.key, text) for text in each.values))

    def _requirements(self, several: tuple[Requirement, ...]) -> tuple[Requirement, ...]:
        return tuple(map(self._requirement, several))

    def _selector(self, selector: LabelSelector | None) -> LabelSelector | None:
        return selector and LabelSelector(self._requirements(selector.requirements))

    def _node_term(self, term: NodeSelectorTerm) -> NodeSelectorTerm:
        fields = tuple(  # metadata.name is a field's name, not a person's
            Requirement(each.key, each.operator, tuple(map(self.name, each.values))) for each in term.fields
        )
        return NodeSelectorTerm(self._requirements(term.labels), fields)

    def _pod_term(self, term: PodAffinityTerm) -> PodAffinityTerm:
        return PodAffinityTerm(
            self.key(term.topology_key), self._selector(term.selector), frozenset(map(self.name, term.namespaces)),
            self._selector(term.namespace_selector),
        )  # fmt: skip

    def _affinity(self, affinity: Affinity) -> Affinity:
        def changed(weighted: Any, term: Any) -> Any:
            return dataclasses.replace(weighted, term=term(weighted.term))

        required = affinity.required_nodes
        return Affinity(
            None if required is None else tuple(map(self._node_term, required)),
            tuple(changed(each, self._node_term) for each in affinity.preferred_nodes),
            tuple(map(self._pod_term, affinity.required_pods)),
            tuple(map(self._pod_term, affinity.required_anti_pods)),
            tuple(changed(each, self._pod_term) for each in affinity.preferred_pods),
        )

    def _taint(self, taint: Taint) -> Taint:
        return Taint(self.key(taint.key), self.name(taint.value), taint.effect)

    def _toleration(self, each: Toleration) -> Toleration:
        return Toleration(self.key(each.key), each.operator, self.name(each.value), each.effect)

    def _spread(self, each: TopologySpread) -> TopologySpread:
        return dataclasses.replace(
            each, topology_key=self.key(each.topology_key), selector=self._selector(each.selector)
        )

    def _port(self, each: HostPort) -> HostPort:
        return each if each.host_ip in _ANYWHERE else dataclasses.replace(each, host_ip=self.name(each.host_ip))

    def _volumes(self, needs: VolumeNeeds) -> VolumeNeeds:
        return VolumeNeeds(
            tuple(tuple(map(self._node_term, terms)) for terms in needs.node_terms),
            frozenset((self.key(driver), self.name(volume)) for driver, volume in needs.attachments),
            frozenset(map(self.name, needs.exclusive)),
            "volumes" if needs.missing else "",
            tuple((key, frozenset(map(self.name, values))) for key, values in needs.zones),
            tuple(
                UnboundClaim(
                    self.name(each.key),
                    self.name(each.uid),
                    self.name(each.storage_class),
                    each.size_bytes,
                    each.access_modes,
                    each.block,
                    self.name(each.attributes_class),
                    self._selector(each.selector),
                    self.name(each.selected_node),
                )
                for each in needs.unbound
            ),
        )
