"""Which nodes and types required anti-affinity of running pods keeps other pods out of, for the autoscaler `learned`.

Kubernetes calls it the existing pods' anti-affinity: a pod that has none of its own is refused where another's term is
about it (kube-scheduler's plugin InterPodAffinity). `aaml.nodes.topology` counts the same for Karpenter's rules.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import CAPACITY_TYPE_LABEL, ZONE_LABEL, Pod, PodAffinityTerm
from aaml.cluster.selectors import matches_pod
from aaml.nodes.catalogue import Catalogue, InstanceType, Selection, selection
from aaml.nodes.ports import KeptOut, Observed, OwnedNode
from aaml.nodes.requirements import usual_key

_OF_OFFERINGS = frozenset({ZONE_LABEL, CAPACITY_TYPE_LABEL})  # labels that offerings of a type differ by


def keep_out(
    may: npt.NDArray[np.bool_], seen: Observed, pods: Sequence[Pod], types: Sequence[InstanceType],
    there: Sequence[OwnedNode],
) -> None:  # fmt: skip
    """Take from `may` bool [T, K + L] the types and nodes that `pods` are kept out of."""
    for each, about in _about(seen, pods):
        key = usual_key(each.term.topology_key)
        columns = [
            *(each.all_new or any(kind.labels(way).get(key) in each.values for way in kind.launched) for kind in types),
            *(node.name in each.nodes for node in there),
        ]
        may[np.ix_(np.array(about), np.flatnonzero(columns))] = False


def selections(seen: Observed, pods: Sequence[Pod], catalogue: Catalogue) -> Iterator[Selection]:
    """Yield what pods select that are kept out of zones or capacity types: each of the others."""
    for each, about in _about(seen, pods):
        key = usual_key(each.term.topology_key)
        if key in _OF_OFFERINGS and not each.all_new:
            left = sorted(catalogue.domains[key] - each.values)
            for own in {selection(pods[number]) for number in about}:
                if not any(name == key for name, _ in own):
                    yield from (own | {(key, value)} for value in left)


def _about(seen: Observed, pods: Sequence[Pod]) -> Iterator[tuple[KeptOut, list[int]]]:
    """Yield what keeps some of the pods out, and their numbers.

    A term is compared with the pods that have one of the labels that it asks for, where it asks for some: most terms
    are about the pods of one workload.
    """
    if not seen.kept_out:
        return
    alike: dict[tuple[str, frozenset[tuple[str, str]]], list[int]] = {}
    for number, pod in enumerate(pods):
        alike.setdefault((pod.namespace, frozenset(pod.labels.items())), []).append(number)
    kinds = list(alike.values())
    labelled: dict[tuple[str, str], list[list[int]]] = {}
    for (_, labels), numbers in alike.items():
        for label in labels:
            labelled.setdefault(label, []).append(numbers)
    for each in seen.kept_out:
        asked = [labelled.get(label, []) for label in _labels(each.term)]
        found = [
            number for numbers in min(asked, key=len, default=kinds)
            if matches_pod(each.term, pods[numbers[0]], seen.namespace_labels) for number in numbers
        ]  # fmt: skip
        if found:
            yield each, found


def _labels(term: PodAffinityTerm) -> Iterator[tuple[str, str]]:
    """Yield the labels that a pod must have for a term to be about it: those of which it names one value."""
    for each in term.selector.requirements if term.selector is not None else ():
        if each.operator == "In" and len(each.values) == 1:
            yield each.key, each.values[0]
