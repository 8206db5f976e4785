"""Whose pods belong together: what kube-scheduler's default spreading counts, as far as pods themselves tell.

Pods decide it, wherever they come from. Those of a real cluster or of a recording have owners and labels, so each
kube-scheduler spreads them (`KubeSchedulerConfig.default_selector`). Those that tasks draw have no labels.
"""

from aaml.cluster.objects import LabelSelector, Pod, Requirement

_SPREAD_OWNERS = ("ReplicaSet/", "StatefulSet/", "ReplicationController/")
_OWN_LABELS = ("pod-template-hash", "controller-revision-hash")
_PER_POD = frozenset({"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"})


def owner_selector(pod: Pod) -> LabelSelector | None:
    """Return the selector by which the default spreading counts a pod's siblings, as far as its labels tell.

    kube-scheduler reads it from the ReplicaSet, StatefulSet and Services, which a trace does not have. The label that
    the controllers put on a revision's pods selects the same ones, or else all labels that are not a single pod's.
    """
    if not pod.owner.startswith(_SPREAD_OWNERS):
        return None
    own = [key for key in _OWN_LABELS if key in pod.labels]
    keys = own[:1] or sorted(set(pod.labels) - _PER_POD)
    return LabelSelector(tuple(Requirement(key, "In", (pod.labels[key],)) for key in keys)) if keys else None
