"""Which pods Jobs and DaemonSets want, as their controllers have it (pkg/controller/job, pkg/controller/daemon)."""

from dataclasses import replace

from aaml.cluster.objects import Node, NodeSelectorTerm, Pod, Requirement, Toleration
from aaml.cluster.selectors import NAME_FIELD, has_untolerated_taint, matches_required_nodes
from aaml.errors import bad_value
from aaml.kube.objects import strict

_OF_DAEMONS = tuple(
    Toleration(f"node.kubernetes.io/{name}", "Exists", effect=effect)
    for name, effect in (
        ("not-ready", "NoExecute"), ("unreachable", "NoExecute"), ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"), ("pid-pressure", "NoSchedule"), ("unschedulable", "NoSchedule"),
    )
)  # fmt: skip
"""What the pods of all DaemonSets tolerate."""
_ON_THE_HOSTS_NETWORK = Toleration("node.kubernetes.io/network-unavailable", "Exists", effect="NoSchedule")
"""And those that use the host's network."""
_ENDINGS = frozenset({"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"})
_MAX_REPLICAS = 1_000_000


def checked_count(name: str, count: int) -> int:
    """Return a number of pods. Raises `UserError` for one that is none, or more than we hold."""
    if not 0 <= count <= _MAX_REPLICAS:
        raise bad_value(f"spec.{name}", count, f"a whole number from 0 to {_MAX_REPLICAS}")
    return count


def job_has_ended(job: strict.Job) -> bool:
    """Whether a Job makes no more pods, for it is complete or has failed."""
    return any(each.type in _ENDINGS and each.status == "True" for each in job.status.conditions or ())


def job_pods(job: strict.Job) -> int:
    """Return how many pods of a Job are active at once. Raises `UserError` for numbers that are none."""
    count = checked_count("parallelism", job.spec.parallelism)
    if job.spec.completions is not None:
        left = checked_count("completions", job.spec.completions) - job.status.succeeded
        count = max(min(count, left), 0)
    elif job.status.succeeded > 0:  # the pods of such a Job know when there is nothing left to do
        count = checked_count("status.active", job.status.active)
    return 0 if job.spec.suspend or job_has_ended(job) else count


def daemon_pod(pod: Pod, node: Node, *, on_the_hosts_network: bool) -> Pod | None:
    """Return a DaemonSet's pod for a node, None where its selectors and tolerations keep it off."""
    more = (_ON_THE_HOSTS_NETWORK,) if on_the_hosts_network else ()
    tolerations = (*pod.tolerations, *_OF_DAEMONS, *more)
    if not matches_required_nodes(pod, node) or has_untolerated_taint(tolerations, node.taints):
        return None
    there = NodeSelectorTerm(fields=(Requirement(NAME_FIELD, "In", (node.name,)),))
    return replace(pod, tolerations=tolerations, affinity=replace(pod.affinity, required_nodes=(there,)))


def target_node(pod: Pod) -> str:
    """Return the node that a DaemonSet's pod is on, or is made for; "" where it names none."""
    fields = (each for term in pod.affinity.required_nodes or () for each in term.fields)
    named = (each.values[0] for each in fields if each.key == NAME_FIELD and each.operator == "In")
    return pod.node_name or next(named, "")
