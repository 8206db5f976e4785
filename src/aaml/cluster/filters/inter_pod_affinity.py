"""InterPodAffinity: near the pods the pod wants, away from those it does not want and those that do not want it.

https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity
"""

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.plugin import Filter, Rejection
from aaml.cluster.objects import Pod
from aaml.cluster.selectors import matches_all_pod_terms


def near_wanted(index: FilterIndex, pod: Pod) -> BoolArray:
    """Return [N] nodes in a domain, for every required term, with a pod that matches all the terms.

    Where no pod in the cluster does, a pod that matches its own terms is the first of its group and may go to any node
    that has the topology keys.
    """
    terms = pod.affinity.required_pods
    counts = index.matching_all(terms)
    has_keys = np.ones(len(index.state), dtype=np.bool_)
    near = np.ones(len(index.state), dtype=np.bool_)
    none_yet = True
    for term in terms:
        has_keys &= index.domains(term.topology_key) >= 0
        totals = index.domain_totals(term.topology_key, counts)
        none_yet &= not totals.any()
        near &= totals > 0
    if none_yet and matches_all_pod_terms(terms, pod, index.state.namespace_labels):
        return has_keys
    return has_keys & near


def away_from_unwanted(index: FilterIndex, pod: Pod) -> BoolArray:
    """Return [N] nodes in no domain with a pod that one of the pod's anti-affinity terms matches."""
    mask = np.ones(len(index.state), dtype=np.bool_)
    for term in pod.affinity.required_anti_pods:
        mask &= index.domain_totals(term.topology_key, index.matching(term)) == 0
    return mask


def unwanted(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes in no domain of a placed pod whose anti-affinity matches this one; None when there is none."""
    mask: BoolArray | None = None
    for term in index.terms_about(pod, "required_anti"):
        blocked = index.domain_totals(term.topology_key, index.holders("required_anti", term)) > 0
        mask = ~blocked if mask is None else mask & ~blocked
    return mask


def passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes that keep the pod's terms and those of placed pods; None when no term is involved."""
    mask = unwanted(index, pod) if index.owned["required_anti"] else None
    if pod.affinity.required_pods:
        near = near_wanted(index, pod)
        mask = near if mask is None else mask & near
    if pod.affinity.required_anti_pods:
        away = away_from_unwanted(index, pod)
        mask = away if mask is None else mask & away
    return mask


def explain(index: FilterIndex, pod: Pod, candidates: BoolArray) -> Rejection:
    """Tell the three rules apart; only unmet affinity cannot be helped by preemption."""
    nothing = np.zeros_like(candidates)
    far = candidates & ~near_wanted(index, pod) if pod.affinity.required_pods else nothing
    close = candidates & ~far & ~away_from_unwanted(index, pod)
    reasons = (
        ("node(s) didn't match pod affinity rules", far),
        ("node(s) didn't match pod anti-affinity rules", close),
        ("node(s) didn't satisfy existing pods anti-affinity rules", candidates & ~far & ~close),
    )
    return Rejection(reasons, far)


FILTER = Filter("InterPodAffinity", passes, explain)
