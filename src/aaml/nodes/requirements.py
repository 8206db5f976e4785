"""Which values labels may have: Karpenter's requirements, and those of a pod's selector and node affinity.

(Karpenter 1.15, pkg/scheduling: `requirement.go`, `requirements.go`.)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aaml.cluster.objects import (
    ARCH_LABEL,
    CAPACITY_TYPE_LABEL,
    HOSTNAME_LABEL,
    OS_LABEL,
    TYPE_LABEL,
    ZONE_LABEL,
    NodeSelectorTerm,
    Pod,
    Requirement,
)
from aaml.cluster.selectors import integer

WELL_KNOWN = frozenset({TYPE_LABEL, ARCH_LABEL, OS_LABEL, ZONE_LABEL, CAPACITY_TYPE_LABEL})
"""Labels that every type has, so that a claim may be asked for them before it has any value."""
SIZE_LABEL, FAMILY_LABEL = "karpenter.kwok.sh/instance-size", "karpenter.kwok.sh/instance-family"
CPU_LABEL, MEMORY_LABEL = "karpenter.kwok.sh/instance-cpu", "karpenter.kwok.sh/instance-memory"
DESCRIBING = frozenset({SIZE_LABEL, FAMILY_LABEL, CPU_LABEL, MEMORY_LABEL})
"""Labels by which Karpenter's KWOK provider describes a type further."""
_NODEPOOL_LABEL, _DOMAIN = "karpenter.sh/nodepool", "karpenter.sh"
_CAPACITY_TYPES = frozenset({"on-demand", "spot", "reserved"})
_NORMAL = {
    "failure-domain.beta.kubernetes.io/zone": ZONE_LABEL,
    "beta.kubernetes.io/arch": ARCH_LABEL,
    "beta.kubernetes.io/os": OS_LABEL,
    "beta.kubernetes.io/instance-type": TYPE_LABEL,
}


@dataclass(frozen=True, slots=True)
class Values:
    """Values that a label may have: those `listed`, or all others where these are `excluded`, within bounds.

    With a bound only whole numbers are allowed.
    """

    listed: frozenset[str] = frozenset()
    excluded: bool = True
    least: int | None = None
    most: int | None = None

    @property
    def is_negative(self) -> bool:
        """Whether it says what must not be: the operators NotIn and DoesNotExist."""
        return bool(self.listed) == self.excluded

    @property
    def is_list(self) -> bool:
        """Whether it is a list with at least a value: the operator In."""
        return not self.excluded and bool(self.listed)

    def allows(self, value: str) -> bool:
        """Whether a label may have this value."""
        return (value in self.listed) != self.excluded and _within(value, self.least, self.most)

    def both(self, other: "Values") -> "Values":
        """Return the values that both allow."""
        least, most = _largest(self.least, other.least), _smallest(self.most, other.most)
        if least is not None and most is not None and least > most:
            return NONE
        listed = _listed_of_both(self, other)
        if least is not None or most is not None:
            listed = frozenset(value for value in listed if _within(value, least, most))
        if self.excluded and other.excluded:
            return Values(listed, True, least, most)
        return Values(listed, False)

    def meets(self, other: "Values") -> bool:
        """Whether some value is allowed by both."""
        least, most = _largest(self.least, other.least), _smallest(self.most, other.most)
        if least is not None and most is not None and least > most:
            return False
        if self.excluded and other.excluded:
            return True
        listed = _listed_of_both(self, other)
        return any(_within(value, least, most) for value in listed)

    def __str__(self) -> str:
        """Return them in words."""
        words = [", ".join(sorted(self.listed))] if self.listed else []
        if self.excluded:
            words = [f"all but {words[0]}"] if words else ["any value"]
        elif not words:
            words = ["no value"]
        bounds = (("at least", self.least), ("at most", self.most))
        return " and ".join([*words, *(f"{word} {bound}" for word, bound in bounds if bound is not None)])


ANY, NONE = Values(), Values(excluded=False)
"""Every value, and no value: the operators Exists and DoesNotExist."""
PLAIN = (
    Requirement(ARCH_LABEL, "In", ("amd64",)),
    Requirement(OS_LABEL, "In", ("linux",)),
    Requirement(CAPACITY_TYPE_LABEL, "In", ("on-demand",)),
)
"""What nodes are provisioned where nobody says otherwise."""
Labels = Mapping[str, Values]
"""By label; a label that is not named may have any value, or none."""


def only(*values: str) -> Values:
    """Return these values alone."""
    return Values(frozenset(values), False)


def labels_of(labels: Mapping[str, str]) -> Labels:
    """Return what a node has, or a selector asks for."""
    return merged({}, *({usual_key(key): only(value)} for key, value in labels.items()))


def plain_labels() -> Labels:
    """Return what `PLAIN` asks for."""
    return required(PLAIN)


def usual_key(key: str) -> str:
    """Return a label by its name of today."""
    return _NORMAL.get(key, key)


def with_former_names(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a node with those that kubelets and clouds still set by former names."""
    return {**labels, **{former: labels[key] for former, key in _NORMAL.items() if key in labels}}


def required(requirements: Iterable[Requirement]) -> Labels:
    """Return what expressions ask for together."""
    return merged({}, *({usual_key(each.key): _values(each)} for each in requirements))


def merged(first: Labels, *others: Labels) -> dict[str, Values]:
    """Return what all ask for."""
    found = dict(first)
    for other in others:
        for key, values in other.items():
            mine = found.get(key)
            found[key] = values if mine is None else values.both(mine)
    return found


def compatible(mine: Labels, theirs: Labels, undefined: frozenset[str] = frozenset()) -> bool:
    """Whether what is asked can be met. Labels that are not mine are refused, but for those that may be `undefined`."""
    for key, values in theirs.items():
        if key not in mine and key not in undefined and not values.is_negative:
            return False
    return meet(mine, theirs)


def meet(mine: Labels, theirs: Labels) -> bool:
    """Whether labels that both name have values that both allow, or none in both."""
    for key, values in theirs.items():
        there = mine.get(key)
        if there is not None and not there.meets(values) and not (there.is_negative and values.is_negative):
            return False
    return True


def is_refused(pod: Pod) -> bool:
    """Whether Karpenter provisions no node for a pod because of the labels that it asks for (provisioner.go)."""
    terms: Sequence[NodeSelectorTerm] = pod.affinity.required_nodes or ()
    if any(term.fields for term in terms):
        return True
    selected = [Requirement(key, "In", (value,)) for key, value in pod.node_selector.items()]
    return any(_is_refused(each) for each in (*selected, *(each for term in terms for each in term.labels)))


def _is_refused(requirement: Requirement) -> bool:
    key = usual_key(requirement.key)
    domain = key.partition("/")[0] if "/" in key else ""
    if key == HOSTNAME_LABEL or (key == _NODEPOOL_LABEL and requirement.operator == "DoesNotExist"):
        return True
    reserved = domain == _DOMAIN or domain.endswith(f".{_DOMAIN}")
    if reserved and key not in {_NODEPOOL_LABEL, CAPACITY_TYPE_LABEL}:
        return True
    if requirement.operator in {"Gt", "Lt"}:
        bound = integer(requirement.values[0]) if len(requirement.values) == 1 else None
        return bound is None or bound < 0
    if requirement.operator == "In":
        return not requirement.values or (
            key == CAPACITY_TYPE_LABEL and not _CAPACITY_TYPES.intersection(requirement.values)
        )
    return False


def _values(requirement: Requirement) -> Values:
    match requirement.operator:
        case "In":
            return Values(frozenset(requirement.values), False)
        case "NotIn":
            return Values(frozenset(requirement.values))
        case "Exists":
            return ANY
        case "DoesNotExist":
            return NONE
        case "Gt":
            return Values(least=_bound(requirement) + 1)
        case "Lt":
            return Values(most=_bound(requirement) - 1)


def _bound(requirement: Requirement) -> int:
    return (integer(requirement.values[0]) if requirement.values else None) or 0


def _listed_of_both(one: Values, other: Values) -> frozenset[str]:
    if one.excluded:
        return one.listed | other.listed if other.excluded else other.listed - one.listed
    return one.listed - other.listed if other.excluded else one.listed & other.listed


def _within(value: str, least: int | None, most: int | None) -> bool:
    if least is None and most is None:
        return True
    number = integer(value)
    return number is not None and (least is None or number >= least) and (most is None or number <= most)


def _largest(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _smallest(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)
