"""What provisioned nodes have in common: class, labels, taints and lifetime, from a NodePool's `spec.template`."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from aaml.cluster.objects import ARCH_LABEL, CAPACITY_TYPE_LABEL, HOSTNAME_LABEL, OS_LABEL, Effect, Requirement, Taint
from aaml.errors import UserError, bad_value
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.catalogue_file import read_types
from aaml.nodes.nodepool import load_nodepool
from aaml.nodes.requirements import DESCRIBING, WELL_KNOWN, Labels, Values, meet, only, required, usual_key
from aaml.schema import without_nulls

_log = logging.getLogger(__name__)

KWOK_CLASS = "karpenter.kwok.sh/KWOKNodeClass/default"
EXPIRE_AFTER = "720h"  # Karpenter's own default (apis/v1/nodeclaim.go)
_DURATION = "([0-9]+(s|m|h))+"  # as the NodeClaim's schema has it
_OF_A_NODE = frozenset({HOSTNAME_LABEL, "karpenter.sh/nodepool"})  # which Karpenter refuses in a template
_USUAL = {ARCH_LABEL: only("amd64"), OS_LABEL: only("linux"), CAPACITY_TYPE_LABEL: only("on-demand")}


class _Pool(msgspec.Struct, forbid_unknown_fields=True):
    apiVersion: str  # noqa: N815  (the file's names)
    kind: str
    spec: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    status: dict[str, Any] = {}


class _Taint(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):  # the API takes no empty value
    key: str
    effect: Effect
    value: str = ""


class _Class(msgspec.Struct, forbid_unknown_fields=True):
    group: str
    kind: str
    name: str


class _Requirement(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    operator: str
    values: list[str] = []
    minValues: int | None = None  # noqa: N815


class _Spec(msgspec.Struct, forbid_unknown_fields=True):
    nodeClassRef: _Class | None = None  # noqa: N815  (the file's names)
    requirements: list[_Requirement] = []
    taints: list[_Taint] = []
    startupTaints: list[_Taint] = []  # noqa: N815
    expireAfter: Annotated[str, Meta(pattern=rf"^({_DURATION}|Never)$")] = EXPIRE_AFTER  # noqa: N815
    terminationGracePeriod: Annotated[str, Meta(pattern=f"^{_DURATION}$")] | None = None  # noqa: N815


class _Metadata(msgspec.Struct, forbid_unknown_fields=True):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Template(msgspec.Struct, forbid_unknown_fields=True):
    spec: _Spec
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


@dataclass(frozen=True)
class NodeTemplate:
    """What NodeClaims of ours have in common.

    `spec` is that of a claim without its requirements. `allowed`: which values a type's labels may have, by the
    requirements and, as for Karpenter, by labels that every type has. `labels` are the others.
    """

    spec: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    allowed: Labels = field(default_factory=dict)

    @classmethod
    def plain(cls, node_class: str = KWOK_CLASS) -> "NodeTemplate":
        """Return the template of nodes of a class, GROUP/KIND/NAME, with Karpenter's defaults; raises `UserError`."""
        return cls({"nodeClassRef": _class_reference(node_class), "expireAfter": EXPIRE_AFTER})

    @classmethod
    def read(cls, path: Path, node_class: str = "") -> "NodeTemplate":
        """Read the template of a NodePool's file; `node_class`, if given, counts before the file's.

        Raises `UserError` for a file without one, and for what is not honoured.
        """
        where = f"template: {path}: spec.template"
        try:
            pool = msgspec.convert(without_nulls(load_nodepool(path)), _Pool)
            found = msgspec.convert(pool.spec.get("template"), _Template)
        except UserError as error:
            raise UserError(f"template: {error}") from error
        except msgspec.ValidationError as error:
            raise UserError(f"{where}: {error}") from error
        if beyond := sorted(f"spec.{key}" for key in pool.spec.keys() - {"template"}):
            _log.warning("template: %s: no part of what nodes are like, left out: %s", path, ", ".join(beyond))
        spec = found.spec
        for each in spec.requirements:
            if each.key not in WELL_KNOWN or each.operator not in {"In", "NotIn"} or each.minValues is not None:
                given = f"{each.operator} on {each.key}" + (" with minValues" if each.minValues is not None else "")
                raise bad_value(f"{where}.spec.requirements", given, f"In or NotIn on {', '.join(sorted(WELL_KNOWN))}")
        if not (node_class or spec.nodeClassRef):
            raise UserError(f"{where}.spec: it has no nodeClassRef; expected one, or --node-class GROUP/KIND/NAME")
        written = {
            "nodeClassRef": _class_reference(node_class) if node_class else msgspec.to_builtins(spec.nodeClassRef),
            "expireAfter": spec.expireAfter,
            "terminationGracePeriod": spec.terminationGracePeriod,
            "taints": msgspec.to_builtins(spec.taints),
            "startupTaints": msgspec.to_builtins(spec.startupTaints),
        }
        asked_for = [Requirement(each.key, each.operator, tuple(each.values)) for each in spec.requirements]  # type: ignore[arg-type]
        labels = {usual_key(key): value for key, value in found.metadata.labels.items()}
        if refused := sorted(labels.keys() & (_OF_A_NODE | DESCRIBING)):
            accepted = f"{', '.join(sorted(WELL_KNOWN))}, or labels of your own"
            raise bad_value(f"{where}.metadata.labels", refused[0], accepted)
        asked_for += [Requirement(key, "In", (labels.pop(key),)) for key in sorted(labels.keys() & WELL_KNOWN)]
        return cls(
            {key: value for key, value in written.items() if value},
            labels,
            found.metadata.annotations,
            tuple(Taint(each.key, each.value, each.effect) for each in spec.taints),
            required(asked_for),
        )

    def catalogue(self, path: Path | None) -> Catalogue:
        """Return the types that may be provisioned, of a file or of those that ship. Raises `UserError` where none may.

        Where no requirement says otherwise that is amd64, linux and on-demand.
        """
        allowed = {**_USUAL, **self.allowed}
        if allowed[OS_LABEL].allows("linux"):
            allowed[OS_LABEL] = only("linux")  # a file's type of several systems is several types of one name
        kinds = (kind.within(allowed) for kind in read_types(path) if meet(kind.ranges, allowed))
        left = tuple(kind for kind in kinds if kind.offerings)
        if not left:
            wanted = f"one with a type for {', '.join(map(_words, allowed.values()))}"
            raise bad_value("instance types", str(path or "those that ship"), wanted)
        return Catalogue(left)


def _words(values: Values) -> str:
    return f"{'none of ' if values.excluded else ''}{' or '.join(sorted(values.listed))}"


def _class_reference(node_class: str) -> dict[str, str]:
    parts = node_class.split("/")
    if len(parts) != 3 or not all(parts):
        accepted = "GROUP/KIND/NAME, for instance karpenter.k8s.aws/EC2NodeClass/default"
        raise bad_value("node_class", node_class, accepted)
    return dict(zip(("group", "kind", "name"), parts, strict=True))
