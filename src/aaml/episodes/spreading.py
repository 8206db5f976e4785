"""kube-scheduler's default spreading in compiled episodes: PodTopologySpread's score of pods that have siblings.

It is that of `aaml.policies.kube_scores.topology`, to the bit, for constraints which no pod brings itself. A pod's
siblings are all that the selector of its owner matches, whoever owns them. So pods that the same selectors match are a
class, which `aaml.episodes.rows.Nodes.owners` counts by node in place of owners.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import log
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from aaml.cluster.filters.index import FilterIndex
from aaml.cluster.kernels import inlined
from aaml.cluster.objects import HOSTNAME_LABEL, LabelSelector, Pod
from aaml.cluster.selectors import matches_labels
from aaml.cluster.state import ClusterState
from aaml.episodes.plan import NO_OWNER
from aaml.episodes.rows import Env, IntArray
from aaml.nodes.rows import Number
from aaml.policies.kube_scores.config import MAX_SCORE, KubeSchedulerConfig
from aaml.policies.kube_scores.siblings import owner_selector

PLUGIN = "PodTopologySpread"
_NOT_SPREAD = -1


@dataclass(frozen=True, eq=False)
class Siblings:
    """Which pods belong together: T pods of classes, G groups of which each is what a selector matches.

    =======  ============  =============================================================
    of_pod   int64 [T]     the class of each pod, `NO_OWNER` where no selector matches it
    group    int64 [T]     the group that each pod is spread among, -1 for none
    first    int64 [G + 1] where the classes of each group begin in `classes`
    classes  int64 [..]    classes of all groups
    =======  ============  =============================================================
    """

    of_pod: IntArray
    group: IntArray
    first: IntArray
    classes: IntArray

    @classmethod
    def of(cls, pods: Sequence[Pod]) -> Self | None:
        """Return the groups of pods, None where kube-scheduler spreads none by default."""
        groups: dict[tuple[str, LabelSelector], int] = {}
        group = []
        for pod in pods:
            selector = owner_selector(pod)
            key = None if selector is None or not selector.requirements else (pod.namespace, selector)
            group.append(_NOT_SPREAD if key is None else groups.setdefault(key, len(groups)))
        if not groups:
            return None
        # By the first requirement, which names one value of a label: few groups are left to be looked at for each pod.
        by_label: dict[tuple[str, str, str], list[tuple[int, LabelSelector]]] = defaultdict(list)
        for (namespace, selector), number in groups.items():
            first = selector.requirements[0]
            by_label[namespace, first.key, first.values[0]].append((number, selector))
        classes: dict[tuple[int, ...], int] = {(): NO_OWNER}
        known: dict[tuple[str, frozenset[tuple[str, str]], bool], int] = {}
        of_pod = []
        for pod in pods:
            kind = pod.namespace, frozenset(pod.labels.items()), pod.terminating
            if kind not in known:
                near = chain.from_iterable(by_label.get((pod.namespace, *label), ()) for label in pod.labels.items())
                matched = (each for each, selector in near if matches_labels(selector, pod.labels))
                found = () if pod.terminating else tuple(sorted(matched))
                known[kind] = classes.setdefault(found, len(classes) - 1)
            of_pod.append(known[kind])
        own: list[list[int]] = [[] for _ in groups]
        for found, number in classes.items():
            for g in found:
                own[g].append(number)
        return cls(*(
            np.array(numbers, np.int64)
            for numbers in (of_pod, group, [0, *accumulate(map(len, own))], [*chain.from_iterable(own)])
        ))  # fmt: skip


class Spreading(NamedTuple):
    """PodTopologySpread by C default constraints, of up to N nodes; groups and classes are those of `Siblings`.

    =================  ================  ==========================================================================
    weight             int               the plugin's
    all_keys           bool              whether nodes without one of the keys get 0
    group, ...         int64             of `Siblings`
    less               float64 [C]       maxSkew, less 1
    by_node            bool [C]          the key is the host name: each node counts alone
    domains            int64 [C, N]      the number of each node's value of the key, -1 without one
    logs               float64 [N + 2]   ln(domains + 2) by the number of domains
    =================  ================  ==========================================================================

    Working memory are `there` int64 [N], `labelled` bool [N], `raw` float64 [N], `scores` int64 [N], `amounts` int64
    and `seen` bool [1 + domains].
    """

    weight: int
    all_keys: bool
    group: Any
    first: Any
    classes: Any
    less: Any
    by_node: Any
    domains: Any
    logs: Any
    there: Any
    labelled: Any
    raw: Any
    scores: Any
    amounts: Any
    seen: Any


def spreading_of(siblings: Siblings, config: KubeSchedulerConfig, domains: IntArray) -> Spreading:
    """Return how a configuration spreads pods over nodes, whose values of each key are in `domains` [C, N]."""
    constraints, size, most = config.default_spreading, domains.shape[1], int(domains.max(initial=-1)) + 1
    there, scores = np.empty((2, size), np.int64)
    return Spreading(
        config.weights[PLUGIN], not config.system_spreading, siblings.group, siblings.first, siblings.classes,
        np.array([skew - 1 for skew, _ in constraints], np.float64),
        np.array([key == HOSTNAME_LABEL for _, key in constraints], np.bool_), domains,
        np.array([log(count + 2) for count in range(size + 2)]), there, np.empty(size, np.bool_), np.empty(size),
        scores, np.empty(most + 1, np.int64), np.empty(most + 1, np.bool_),
    )  # fmt: skip


def domains_of(state: ClusterState, config: KubeSchedulerConfig, size: int) -> npt.NDArray[np.int64]:
    """Return int64 [C, size], the numbers of the values that nodes have of each key, -1 where they have none."""
    domains = np.full((len(config.default_spreading), size), -1, np.int64)
    for row, (_, key) in zip(domains, config.default_spreading, strict=True):
        row[: len(state)] = FilterIndex.of(state).domains(key)
    return domains


@inlined
def spread(by: Spreading, env: Env, pod: int, found: IntArray, count: int) -> None:
    """Write the score of each of the `count` nodes in `found` for a pod into `by.scores`: `topology.spread`."""
    _count_siblings(by, env, by.group[pod])
    for k in range(count):
        by.raw[k] = 0.0
    for c in range(by.domains.shape[0]):
        _add_constraint(by, c, env.at.nodes, found, count)
    least, most, scored = np.int64(0), np.int64(0), False
    for k in range(count):
        by.scores[k] = np.int64(np.floor(by.raw[k] + 0.5))
        if by.labelled[found[k]]:
            least = min(least, by.scores[k]) if scored else by.scores[k]
            most = max(most, by.scores[k]) if scored else by.scores[k]
            scored = True
    for k in range(count):
        if not by.labelled[found[k]]:
            by.scores[k] = 0
        elif most == 0:
            by.scores[k] = MAX_SCORE
        else:
            by.scores[k] = MAX_SCORE * (most + least - by.scores[k]) // most


@inlined
def _count_siblings(by: Spreading, env: Env, group: Number) -> None:
    """Count the pods of a group that each node has, and tell which nodes have all keys, where that matters."""
    n = env.at.nodes
    for i in range(n):
        by.there[i], by.labelled[i] = 0, True
    for k in range(by.first[group], by.first[group + 1]):
        for i in range(n):
            by.there[i] += env.nodes.owners[by.classes[k], i]
    for c in range(by.domains.shape[0] if by.all_keys else 0):
        for i in range(n):
            by.labelled[i] &= by.domains[c, i] >= 0


@inlined
def _add_constraint(by: Spreading, c: int, n: int, found: IntArray, count: int) -> None:
    """Add what one constraint counts to the raw scores."""
    several = 0
    if by.by_node[c]:
        for k in range(count):
            several += by.labelled[found[k]]
    else:
        for d in range(by.amounts.shape[0]):
            by.amounts[d], by.seen[d] = 0, False
        for i in range(n):
            if by.labelled[i] and by.domains[c, i] >= 0:
                by.amounts[by.domains[c, i]] += by.there[i]
        for k in range(count):
            domain = by.domains[c, found[k]] + 1  # nodes without the label count as one
            if by.labelled[found[k]] and not by.seen[domain]:
                by.seen[domain] = True
                several += 1
    for k in range(count):
        domain = by.domains[c, found[k]]
        if domain >= 0:
            amount = by.there[found[k]] if by.by_node[c] else by.amounts[domain]
            by.raw[k] += amount * by.logs[several] + by.less[c]
