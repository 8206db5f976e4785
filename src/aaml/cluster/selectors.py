"""Whether labels, nodes and pods match what a selector, a toleration or an affinity term asks for.

Semantics: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/ and
https://kubernetes.io/docs/concepts/scheduling-eviction/
"""

import re
from collections.abc import Iterable, Mapping

from aaml.cluster.objects import (
    LabelSelector,
    Node,
    NodeSelectorTerm,
    Pod,
    PodAffinityTerm,
    Requirement,
    Taint,
    Toleration,
)

NAME_FIELD = "metadata.name"
UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable")
_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,19})")
NamespaceLabels = Mapping[str, Mapping[str, str]]


def matches_requirement(requirement: Requirement, labels: Mapping[str, str]) -> bool:  # noqa: PLR0911
    """Whether labels satisfy one expression; a missing key satisfies NotIn and DoesNotExist only."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            if value is None or len(requirement.values) != 1:
                return False
            number, bound = integer(value), integer(requirement.values[0])
            if number is None or bound is None:
                return False
            return number > bound if requirement.operator == "Gt" else number < bound


def integer(text: str) -> int | None:
    """Return a 64-bit integer as Go's `strconv.ParseInt(text, 10, 64)` reads it, None for anything else."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    number = int(match[1] + match[2])
    return number if -(2**63) <= number < 2**63 else None


def matches_labels(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects the labels; None selects nothing, an empty selector everything."""
    return selector is not None and all(matches_requirement(each, labels) for each in selector.requirements)


def matches_node_term(term: NodeSelectorTerm, node: Node) -> bool:
    """Whether a node satisfies all of a term's requirements; an empty term is satisfied by no node."""
    if not term.labels and not term.fields:
        return False
    if not all(matches_requirement(each, node.labels) for each in term.labels):
        return False
    name = {NAME_FIELD: node.name}
    # Field selectors take exactly one value (the API server refuses others).
    return all(len(each.values) == 1 and matches_requirement(each, name) for each in term.fields)


def matches_any_node_term(terms: Iterable[NodeSelectorTerm], node: Node) -> bool:
    """Whether a node satisfies one of the terms."""
    return any(matches_node_term(term, node) for term in terms)


def matches_required_nodes(pod: Pod, node: Node) -> bool:
    """Whether a node satisfies the pod's nodeSelector and required node affinity."""
    labels = node.labels
    if any(labels.get(key) != value for key, value in pod.node_selector.items()):
        return False
    required = pod.affinity.required_nodes
    return required is None or matches_any_node_term(required, node)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration tolerates a taint.

    The operators Lt and Gt tolerate nothing: their feature gate (TaintTolerationComparisonOperators) is off by default.
    """
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator == "Equal" and toleration.value == taint.value


def tolerated(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether one of the tolerations tolerates the taint."""
    return any(tolerates(each, taint) for each in tolerations)


def has_untolerated_taint(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> bool:
    """Whether a taint that keeps pods away (NoSchedule or NoExecute) is not tolerated."""
    return any(taint.effect != "PreferNoSchedule" and not tolerated(tolerations, taint) for taint in taints)


def matches_pod(term: PodAffinityTerm, pod: Pod, namespace_labels: NamespaceLabels) -> bool:
    """Whether a pod is one that the affinity term is about: right namespace and labels."""
    if pod.namespace not in term.namespaces and not (
        term.namespace_selector is not None
        and matches_labels(term.namespace_selector, namespace_labels.get(pod.namespace, {}))
    ):
        return False
    return matches_labels(term.selector, pod.labels)


def matches_all_pod_terms(terms: tuple[PodAffinityTerm, ...], pod: Pod, namespace_labels: NamespaceLabels) -> bool:
    """Whether a pod matches every term; without terms it does not."""
    return bool(terms) and all(matches_pod(term, pod, namespace_labels) for term in terms)
