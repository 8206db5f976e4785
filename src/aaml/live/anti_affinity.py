"""Required anti-affinity of all pods that run on a watched cluster, as an autoscaler observes it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from aaml.cluster.objects import LabelSelector, Pod, PodAffinityTerm
from aaml.cluster.state import ClusterState
from aaml.nodes.ports import KeptOut

_ALL_NAMESPACES = LabelSelector(())


def kept_out(
    state: ClusterState, labels: Mapping[str, Mapping[str, str]], of_new_nodes: Mapping[str, str]
) -> tuple[KeptOut, ...]:
    """Return where anti-affinity keeps pods out: `labels` are those of each node to plan with, by its name.

    It counts on nodes of others too. A selector of namespaces counts as one of all: their labels are not watched.
    """
    domains: dict[PodAffinityTerm, set[str]] = {}
    for node, pods in zip(state.nodes, state.node_pods, strict=True):
        for term in _terms(pods.values()):
            if (value := node.labels.get(term.topology_key)) is not None:
                domains.setdefault(term, set()).add(value)
    return tuple(
        KeptOut(
            term,
            frozenset(values),
            frozenset(name for name, there in labels.items() if there.get(term.topology_key) in values),
            of_new_nodes.get(term.topology_key) in values,
        )
        for term, values in domains.items()
    )


def _terms(pods: Iterable[Pod]) -> Iterator[PodAffinityTerm]:
    for pod in pods:
        for term in pod.affinity.required_anti_pods:
            yield term if term.namespace_selector is None else replace(term, namespace_selector=_ALL_NAMESPACES)
