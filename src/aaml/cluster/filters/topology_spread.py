"""PodTopologySpread: no domain may hold more than `max_skew` matching pods above the emptiest one.

https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/
"""

from collections.abc import Iterable

import numpy as np

from aaml.cluster.filters import node_affinity, taint_toleration
from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.plugin import Filter, Rejection
from aaml.cluster.objects import Pod, TopologySpread
from aaml.cluster.selectors import matches_labels

_NOT_MATCHED = "node(s) didn't match pod topology spread constraints"


def included(index: FilterIndex, pod: Pod, constraint: TopologySpread) -> BoolArray:
    """Return [N] nodes that count for a constraint: its node affinity and node taints policies."""
    mask = np.ones(len(index.state), dtype=np.bool_)
    if constraint.honor_node_affinity:
        selected = node_affinity.passes(index, pod)
        if selected is not None:
            mask &= selected
    if constraint.honor_node_taints:
        tolerable = taint_toleration.passes(index, pod)
        if tolerable is not None:
            mask &= tolerable
    return mask


def labelled(index: FilterIndex, constraints: Iterable[TopologySpread]) -> BoolArray:
    """Return [N] nodes that have the topology keys of all constraints: the others are in no domain."""
    mask = np.ones(len(index.state), dtype=np.bool_)
    for constraint in constraints:
        mask &= index.domains(constraint.topology_key) >= 0
    return mask


def keeps(index: FilterIndex, pod: Pod, constraint: TopologySpread, has_keys: BoolArray) -> BoolArray:
    """Return [N] nodes where the pod would keep one constraint; meaningless for nodes without its key."""
    codes = index.domains(constraint.topology_key)
    size = int(codes.max(initial=-1)) + 1
    if not size:
        return np.zeros(len(codes), dtype=np.bool_)
    eligible = has_keys & included(index, pod, constraint)
    counts = index.selected(pod.namespace, constraint.selector)
    totals = np.bincount(codes[eligible], weights=counts[eligible], minlength=size).astype(np.int64)
    exists = np.bincount(codes[eligible], minlength=size) > 0
    # With fewer domains than asked for, one more is imagined that holds none.
    lowest = int(totals[exists].min()) if exists.any() and exists.sum() >= constraint.min_domains else 0
    itself = int(matches_labels(constraint.selector, pod.labels))
    return np.asarray(totals[codes] + itself - lowest <= constraint.max_skew)


def passes(index: FilterIndex, pod: Pod) -> BoolArray | None:
    """Return [N] nodes where the pod keeps every hard constraint; None when it has none."""
    constraints = [each for each in pod.spread if each.hard]
    if not constraints:
        return None
    has_keys = labelled(index, constraints)
    mask = has_keys.copy()
    for constraint in constraints:
        mask &= keeps(index, pod, constraint, has_keys)
    return mask


def explain(index: FilterIndex, pod: Pod, candidates: BoolArray) -> Rejection:
    """Tell apart a node in no domain, which preemption cannot help, and too much skew.

    Constraints are looked at one after the other: a node that breaks the first one and lacks the second one's key has
    too much skew.
    """
    constraints = [each for each in pod.spread if each.hard]
    has_keys = labelled(index, constraints)
    missing = np.zeros_like(candidates)
    undecided = candidates
    for constraint in constraints:
        without = undecided & (index.domains(constraint.topology_key) < 0)
        missing |= without
        undecided = undecided & ~without & keeps(index, pod, constraint, has_keys)
    reasons = ((f"{_NOT_MATCHED} (missing required label)", missing), (_NOT_MATCHED, candidates & ~missing))
    return Rejection(reasons, missing)


FILTER = Filter("PodTopologySpread", passes, explain)
