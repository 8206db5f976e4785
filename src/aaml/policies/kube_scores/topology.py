"""Scores from where pods run: PodTopologySpread's soft constraints and InterPodAffinity's preferences."""

from math import log

import numpy as np

from aaml.cluster.filters.index import BoolArray, FilterIndex, IntArray
from aaml.cluster.filters.topology_spread import included, labelled
from aaml.cluster.objects import HOSTNAME_LABEL, Pod, TopologySpread
from aaml.policies.kube_scores.config import MAX_SCORE, KubeSchedulerConfig


def soft_constraints(pod: Pod, config: KubeSchedulerConfig) -> tuple[list[TopologySpread], bool]:
    """Return the pod's soft constraints, and whether a node needs all their keys.

    A pod without constraints of its own gets the configured ones, among the pods that belong with it: the system's are
    over hosts and over zones, where nodes have those keys.
    """
    if pod.spread:
        return [each for each in pod.spread if not each.hard], True
    selector = config.default_selector(pod)
    if selector is None or not selector.requirements:
        return [], False
    spreading = [TopologySpread(skew, key, selector, hard=False) for skew, key in config.default_spreading]
    return spreading, not config.system_spreading


def spread(index: FilterIndex, pod: Pod, mask: BoolArray, config: KubeSchedulerConfig) -> IntArray | None:
    """Return [N] PodTopologySpread's score, which is the better the fewer matching pods a node's domains have.

    It is None for a pod without soft constraints. A constraint adds matching pods * ln(domains + 2) + maxSkew - 1, so
    that a key with few values is not drowned by one with many. Nodes without all the keys get 0.
    """
    constraints, need_all_keys = soft_constraints(pod, config)
    if not constraints:
        return None
    size = len(index.state)
    scored = mask & labelled(index, constraints) if need_all_keys else mask
    counting = labelled(index, constraints) if need_all_keys else np.ones(size, dtype=np.bool_)
    raw = np.zeros(size)
    for constraint in constraints:
        key = constraint.topology_key
        codes = index.domains(key)
        counts = index.selected(pod.namespace, constraint.selector)
        if key == HOSTNAME_LABEL:
            domains = int(scored.sum())
        else:
            domains = len(np.unique(codes[scored]))  # nodes without the label count as one domain
            counts = index.domain_totals(key, np.where(counting & included(index, pod, constraint), counts, 0))
        raw += np.where(codes >= 0, counts * log(domains + 2) + (constraint.max_skew - 1), 0.0)
    rounded = np.floor(raw + 0.5).astype(np.int64)
    if not scored.any():
        return np.zeros(size, dtype=np.int64)
    least, most = int(rounded[scored].min()), int(rounded[scored].max())
    result = MAX_SCORE * (most + least - rounded) // most if most else np.full(size, MAX_SCORE, dtype=np.int64)
    return np.where(scored, result, 0)


def near_pods(index: FilterIndex, pod: Pod, mask: BoolArray, config: KubeSchedulerConfig) -> IntArray | None:
    """Return [N] InterPodAffinity's score, by the preferred terms of the pod and those of placed pods that match it.

    A required affinity term of a placed pod counts as one of weight `hard_pod_affinity_weight`. Scores are scaled from
    the least (0) to the greatest (100) among the nodes of `mask`. It is None when no term is involved.
    """
    raw: IntArray | None = None

    def add(key: str, amounts: IntArray) -> None:
        nonlocal raw
        totals = index.domain_totals(key, amounts)
        raw = totals if raw is None else raw + totals

    own = pod.affinity.preferred_pods
    for weighted in own:
        add(weighted.term.topology_key, index.matching(weighted.term) * weighted.weight)
    if own or not config.ignore_preferred_terms_of_existing_pods:
        if config.hard_pod_affinity_weight:
            for term in index.terms_about(pod, "required"):
                add(term.topology_key, index.holders("required", term) * config.hard_pod_affinity_weight)
        for term in index.terms_about(pod, "preferred"):
            add(term.topology_key, index.holders("preferred", term))
    if raw is None:
        return None
    among = raw[mask]
    least, most = (int(among.min()), int(among.max())) if among.size else (0, 0)
    if most == least:
        return np.zeros_like(raw)
    # Evaluated as kube-scheduler does, 100 * (x / range), for the same truncation.
    return (float(MAX_SCORE) * ((raw - least) / float(most - least))).astype(np.int64)
