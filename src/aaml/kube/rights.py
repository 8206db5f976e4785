"""The rights that each command needs on a cluster, and the check that the account has them, before anything is done.

The API server answers for each right (SelfSubjectAccessReview); every account may ask it.
https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from aaml.errors import UserError
from aaml.kube.transport import ApiError, Transport, Unreachable
from aaml.threads import ThreadPool

log = logging.getLogger(__name__)

_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_AT_ONCE = 4
_NOBODY = 401


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a kind of object, in one namespace or (with "") in all.

    `without` describes what does not work without it; where it is empty the command does not begin.
    """

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""
    without: str = ""

    def __str__(self) -> str:
        """Return it in kubectl's words: "list nodes", "update leases/aaml-scheduler in kube-system"."""
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{self.name and f'/{self.name}'}{place}"


Rights = tuple[Right, ...]


class _Verdict(msgspec.Struct):
    allowed: bool


class _Review(msgspec.Struct):
    status: _Verdict


def _rights(verbs: str, *resources: str, group: str = "", without: str = "") -> Rights:
    return tuple(Right(verb, each, group, without=without) for each in resources for verb in verbs.split())


_NO_EVENTS = "kubectl describe tells nothing of its decisions"
_NO_CLAIMS = "pods with volume claims stay pending"
_NO_FIRST_CONSUMER = "pods whose claims wait for their first consumer stay pending"
_NO_ATTACHMENTS = "volumes that are attached without a pod do not count against a node's limit"
_NO_SELECTOR = "selectors over namespaces match nothing, and another cluster behind the address goes unnoticed"
_NO_GROUPS = "pods of pod groups stay pending"
_NO_GROUP_CONDITION = "the condition PodGroupInitiallyScheduled is not written"
_NO_PREEMPTION = "no pod gives way to a more important one"

_NO_GROUPS_RECORDED = "pods of pod groups are recorded as pods without one"

LOOK: Rights = (
    *_rights("list watch", "nodes", "pods"),
    *_rights("list", "namespaces", without="another cluster behind the address goes unnoticed"),
)
"""Watching nodes and pods: `aaml cluster top`, `bill`, `lab`."""
RECORD: Rights = (
    *LOOK,
    *_rights("list watch", "podgroups", group="scheduling.k8s.io", without=_NO_GROUPS_RECORDED),
)
"""Watching pod groups besides, where a pod is in one: `aaml record`."""
FILTER: Rights = (
    *_rights("list watch", "nodes", "pods"),
    *_rights("list watch", "namespaces", without=_NO_SELECTOR),
    *_rights("list watch", "persistentvolumeclaims", "persistentvolumes", without=_NO_CLAIMS),
    *_rights("list watch", "storageclasses", "csinodes", group="storage.k8s.io", without=_NO_CLAIMS),
)
"""Watching what filters look at: `aaml serve`, a dry run, a scheduler."""
ATTACHED: Rights = _rights("list watch", "volumeattachments", group="storage.k8s.io", without=_NO_ATTACHMENTS)
FIRST_CONSUMER: Rights = _rights(
    "list watch", "csidrivers", "csistoragecapacities", group="storage.k8s.io", without=_NO_FIRST_CONSUMER
)
"""Watching where volumes can be made for claims that are not bound yet, which depends on the pod's node."""
GROUPS: Rights = _rights("list watch", "podgroups", group="scheduling.k8s.io", without=_NO_GROUPS)
"""Watching pod groups."""
BIND: Rights = (*_rights("create", "pods/binding"), *_rights("get", "pods"))
"""Binding pods, and reading where one is after an answer was lost."""
TELL: Rights = (
    *_rights("patch", "pods/status", without="the condition PodScheduled is not written, nor where room is made"),
    *_rights("patch", "podgroups/status", group="scheduling.k8s.io", without=_NO_GROUP_CONDITION),
    *_rights("create patch", "events", without=_NO_EVENTS),
)
CLAIM: Rights = _rights("patch", "persistentvolumeclaims", without=_NO_FIRST_CONSUMER)
GIVE: Rights = _rights("patch", "persistentvolumes", without=_NO_FIRST_CONSUMER)
"""Getting volumes for claims: an existing volume is bound to a claim, or a new one is requested."""
PREEMPT: Rights = (
    *_rights("delete", "pods", without=_NO_PREEMPTION),
    *_rights("list watch", "poddisruptionbudgets", group="policy", without=_NO_PREEMPTION),
)
LEASE: Rights = _rights("get update", "leases", group="coordination.k8s.io")
PROMISE: Rights = tuple(
    replace(each, namespace="kube-system", name="aaml-autoscale", without="what nodes promise is not shown")
    for each in _rights("get", "leases", group="coordination.k8s.io")
)
"""Reading what `aaml autoscale` promises: `aaml cluster top`, `lab`."""
SIMULATE: Rights = (
    *LOOK,
    *_rights("create deletecollection", "deployments", group="apps"),
    *_rights("deletecollection", "replicasets", group="apps"),
    *_rights("deletecollection", "pods"),
)
LOOK_AT_CLAIMS: Rights = (
    *LOOK,
    *_rights("list watch", "poddisruptionbudgets", group="policy"),
    *_rights("list watch", "nodepools", "nodeclaims", group="karpenter.sh"),
)
"""Watching what Karpenter has provisioned besides, and what may be evicted: `aaml autoscale`."""
PROVISION: Rights = (*LOOK_AT_CLAIMS, *_rights("create delete", "nodeclaims", group="karpenter.sh"))
"""Provisioning and terminating nodes: `aaml autoscale --apply`."""
CLEAN: Rights = (
    *_rights("list", "nodes", "namespaces"),
    *_rights("list deletecollection", "deployments", "statefulsets", "replicasets", group="apps"),
    *_rights("list deletecollection", "jobs", group="batch"),
    *_rights("list deletecollection", "replicationcontrollers", "pods"),
)
NODES: Rights = _rights("list create", "nodes")
REPLAY: Rights = (
    *LOOK,
    *BIND,
    *_rights("create update delete deletecollection", "nodes"),
    *_rights("update", "nodes/status"),
    *_rights("create delete deletecollection", "pods"),
    *_rights("create", "namespaces"),
    *_rights("list create delete", "priorityclasses", group="scheduling.k8s.io"),
)


def scheduling(namespaces: Collection[str] = (), *, preemption: bool = True, dry_run: bool = False) -> Rights:
    """Return what a scheduler of pods of these namespaces (none: of all) does; in a dry run it only reads."""
    if dry_run:
        return (*FILTER, *ATTACHED, *FIRST_CONSUMER)
    written = (*BIND, *TELL, *CLAIM)
    within = [replace(each, namespace=name) for name in sorted(namespaces) for each in written]
    looked_at = (*FILTER, *ATTACHED, *FIRST_CONSUMER, *GROUPS)
    return (*looked_at, *(within or written), *GIVE, *(PREEMPT if preemption else ()))


QUEUE: Rights = (*FILTER, *ATTACHED, *FIRST_CONSUMER, *GROUPS)
"""Watching all that a scheduler looks at, and deciding nothing: `aaml explain`, `when`."""


def lease(namespace: str, name: str) -> Rights:
    """Return what a candidate does with a Lease that is there already."""
    return tuple(replace(each, namespace=namespace, name=name) for each in LEASE)


def within(rights: Rights, namespace: str) -> Rights:
    """Return rights with those that write limited to a namespace."""
    return tuple(each if each.verb in {"list", "watch"} else replace(each, namespace=namespace) for each in rights)


def check(api: Transport, rights: Iterable[Right], granted_by: str = "") -> None:
    """Ask the API server for each right. Raises `UserError` that names those missing which nothing goes without.

    `granted_by` is the folder of deploy/kubernetes that grants them. What goes without is logged, a line for each
    consequence. A server that does not answer such questions is believed to grant everything.
    """
    missing = _missing(api, tuple(dict.fromkeys(rights)))
    needed = [str(each) for each in missing if not each.without]
    if needed:
        folder = f"deploy/kubernetes/{granted_by}"
        hint = f"; `kubectl apply -k {folder}` of the repository makes an account that may" if granted_by else ""
        raise UserError(f"{api.server}: this account may not {', '.join(needed)}{hint}")
    consequences: dict[str, list[str]] = {}
    for each in missing:
        consequences.setdefault(each.without, []).append(str(each))
    for consequence, names in consequences.items():
        log.info("this account may not %s: %s", ", ".join(names), consequence)


def check_at(kubeconfig: Path | str | None, rights: Iterable[Right], granted_by: str = "") -> None:
    """Check the rights on the cluster of a kubeconfig, over a connection of its own."""
    with closing(Transport(kubeconfig)) as api:
        check(api, rights, granted_by)


def _missing(api: Transport, rights: Sequence[Right]) -> list[Right]:
    try:
        with ThreadPool(_AT_ONCE, "rights") as pool:
            allowed = list(pool.map(lambda right: _may(api, right), rights))
    except Unreachable as error:
        raise api.explain(error) from error
    except (ApiError, msgspec.MsgspecError) as error:
        if isinstance(error, ApiError) and (error.status == _NOBODY or error.anonymous):
            raise api.explain(error) from error
        log.debug("%s does not say what this account may do: %s", api.server, error)
        return []
    return [right for right, may in zip(rights, allowed, strict=True) if not may]


def _may(api: Transport, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource,
        "namespace": right.namespace, "name": right.name,
    }  # fmt: skip
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes}}  # fmt: skip
    return msgspec.json.decode(api.request("POST", _PATH, body), type=_Review).status.allowed
