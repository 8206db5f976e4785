"""DynamicResources: AAML allocates no devices (DRA), so a pod with resource claims waits for another scheduler."""

from aaml.cluster.filters.index import BoolArray, FilterIndex
from aaml.cluster.filters.plugin import Filter, one_reason
from aaml.cluster.objects import Pod

_WHO_DOES = (
    "kube-scheduler does, with the policy as its plugin (aaml export) or its extender (aaml serve), "
    "or with a configuration (aaml search scheduler)"
)


def passes(_index: FilterIndex, _pod: Pod) -> BoolArray | None:
    """Return None: what nodes offer is not looked at."""
    return None


def rejects_all(_index: FilterIndex, pod: Pod) -> str:
    """Say that the pod has claims: bound before its devices are allocated it could never start."""
    if not pod.resource_claims:
        return ""
    claims = ", ".join(pod.resource_claims)
    return f"the pod has resource claims ({claims}), for which AAML allocates no devices; {_WHO_DOES}"


FILTER = Filter("DynamicResources", passes, one_reason("", unresolvable=True), rejects_all)
