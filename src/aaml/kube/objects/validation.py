"""What the API server refuses in a pod beside words that it does not know (pkg/apis/core/validation), where it matters.

Each would be scheduled as something else than what was meant.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from aaml.cluster.quantity import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, parse_quantity
from aaml.cluster.selectors import NAME_FIELD
from aaml.errors import UserError, bad_value
from aaml.kube.objects import wire
from aaml.kube.objects.requests import container_requests

Refusal = tuple[str, object, str]
"""A field, its value, and what is accepted."""
_MOST_PORT = 65_535
_MOST_WEIGHT = 100
_MOST_NUMBER = 2**31 - 1
_NATIVE = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})
_NATIVE_PREFIX = "hugepages-"
_POD_LEVEL = frozenset({CPU, MEMORY})
_NOT_EXTENDED = re.compile(r"requests\.|([^/]*\.)?kubernetes\.io/")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_KEY_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")  # as the API server writes it
_VALUE = "up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
_KEY = f"{_VALUE}, and perhaps a domain and '/' before"
_NAME = "small letters, digits, '-' and '.', with a letter or digit at both ends"
_NO_VALUES = frozenset({"Exists", "DoesNotExist"})
_NUMBERS = frozenset({"Gt", "Lt"})


def validate(value: Any, where: str, place: str = "") -> None:
    """Raise `UserError` for the first field of an object that the API server would refuse."""
    if isinstance(value, list):
        for number, each in enumerate(value):
            validate(each, where, f"{place}[{number}]")
    elif isinstance(value, msgspec.Struct):
        for field, found, accepted in _RULES.get(type(value), _nothing)(value):
            raise bad_value(f"{where}: {f'{place}.{field}'.strip('.')}", found, accepted)
        for name, shown in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            validate(getattr(value, name), where, f"{place}.{shown}".lstrip("."))


def _nothing(_value: Any) -> Iterator[Refusal]:
    return iter(())


def _toleration(value: wire.TolerationObject) -> Iterator[Refusal]:
    operator = value.operator or "Equal"
    if not value.key and operator != "Exists":
        yield "operator", operator, "Exists, where no key is given"
    if operator == "Exists" and value.value:
        yield "value", value.value, "none beside Exists"
    if operator in _NUMBERS and not _is_integer(value.value or ""):
        yield "value", value.value, f"a whole number of 64 bits, without zeros before it, beside {operator}"
    yield from _keys("key", [value.key] if value.key else [])
    if operator == "Equal":
        yield from _values("value", [value.value or ""])


def _taint(value: wire.TaintObject) -> Iterator[Refusal]:
    yield from _keys("key", [value.key])
    yield from _values("value", [value.value or ""])


def _node(value: wire.NodeObject) -> Iterator[Refusal]:
    taints = [(each.key, each.effect) for each in value.spec.taints or ()]
    for number, each in enumerate(taints):
        if each in taints[:number]:
            yield f"spec.taints[{number}]", ":".join(each), "each key once for each effect"
    for field, amounts in (("allocatable", value.status.allocatable), ("capacity", value.status.capacity)):
        yield from _amounts(f"status.{field}", amounts)
        for name, amount in (amounts or {}).items():
            if (name == PODS or _is_extended(name)) and not _is_whole_number(amount):
                yield f"status.{field}.{name}", amount, "a whole number"


def _metadata(value: wire.Metadata) -> Iterator[Refusal]:
    if value.name and not _DNS_NAME.fullmatch(value.name):
        yield "name", value.name, _NAME
    if value.namespace and not _DNS_LABEL.fullmatch(value.namespace):
        yield (
            "namespace",
            value.namespace,
            "up to 63 small letters, digits and '-', with a letter or digit at both ends",
        )
    yield from _labels("labels", value.labels)
    yield from _keys("annotations", map(str.lower, value.annotations or ()))  # large letters of a domain too


def _one_policy(value: wire.SchedulingPolicy) -> Iterator[Refusal]:
    if (value.basic is None) is (value.gang is None):
        yield "", "both" if value.gang is not None else "neither", "basic: {}, or gang: {minCount: ...}"


def _gang(value: wire.GangPolicy) -> Iterator[Refusal]:
    if value.min_count is not None and value.min_count >= 2**31:
        yield "minCount", value.min_count, f"a whole number from 1 to {2**31 - 1}"


def _one_mode(value: wire.DisruptionMode) -> Iterator[Refusal]:
    if (value.single is None) is (value.all_ is None):
        yield "", "both" if value.single is not None else "neither", "single: {}, or all: {}"


def _one_topology(value: wire.SchedulingConstraints) -> Iterator[Refusal]:
    if len(value.topology or ()) > 1:
        yield "topology", [each.key for each in value.topology or ()], "one constraint at most"


def _topology(value: wire.TopologyConstraint) -> Iterator[Refusal]:
    yield from _keys("key", [value.key])


def _pod_group(value: wire.PodGroupSpec) -> Iterator[Refusal]:
    if value.parent_composite_pod_group_name:
        yield (
            "parentCompositePodGroupName",
            value.parent_composite_pod_group_name,
            "none: groups of groups are not scheduled",
        )
    gang = value.scheduling_policy.gang if value.scheduling_policy is not None else None
    if gang is not None and gang.min_count is None:
        yield "schedulingPolicy.gang.minCount", None, "a whole number from 1"


def _weight(value: wire.PreferredNodeTerm | wire.WeightedPodTerm) -> Iterator[Refusal]:
    if not 1 <= value.weight <= _MOST_WEIGHT:
        yield "weight", value.weight, f"a whole number from 1 to {_MOST_WEIGHT}"


def _node_terms(value: wire.NodeTerms) -> Iterator[Refusal]:
    if not value.node_selector_terms:
        yield "nodeSelectorTerms", value.node_selector_terms, "at least one term"
    for number, term in enumerate(value.node_selector_terms or ()):  # of preferred ones the values may be any text
        for place, each in enumerate(term.match_expressions or ()):
            field = f"nodeSelectorTerms[{number}].matchExpressions[{place}].values"
            yield from _values(field, each.values or ())


def _node_term(value: wire.NodeTerm) -> Iterator[Refusal]:
    for number, each in enumerate(value.match_expressions or ()):
        yield from _keys(f"matchExpressions[{number}].key", [each.key])
    yield from _expressions("matchExpressions", value.match_expressions)
    for number, each in enumerate(value.match_fields or ()):
        if each.key != NAME_FIELD:
            yield f"matchFields[{number}].key", each.key, NAME_FIELD
        if each.operator not in ("In", "NotIn") or len(each.values or ()) != 1:
            yield f"matchFields[{number}]", f"{each.operator} {each.values}", "In or NotIn with one value"
        elif not _DNS_NAME.fullmatch((each.values or [""])[0]):
            yield f"matchFields[{number}].values", each.values, "the name of a node"


def _selector(value: wire.Selector) -> Iterator[Refusal]:
    for number, each in enumerate(value.match_expressions or ()):
        if each.operator in _NUMBERS:
            yield f"matchExpressions[{number}].operator", each.operator, "one of In, NotIn, Exists, DoesNotExist"
    yield from _expressions("matchExpressions", value.match_expressions)
    yield from _syntax("matchExpressions", value.match_expressions)
    yield from _labels("matchLabels", value.match_labels)


def _syntax(name: str, expressions: Iterable[wire.Expression] | None) -> Iterator[Refusal]:
    for number, each in enumerate(expressions or ()):
        yield from _keys(f"{name}[{number}].key", [each.key])
        yield from _values(f"{name}[{number}].values", each.values or ())


def _labels(field: str, labels: Mapping[str, str] | None) -> Iterator[Refusal]:
    yield from _keys(field, labels or ())
    for key, value in (labels or {}).items():
        yield from _values(f"{field}.{key}", [value])


def _keys(field: str, keys: Iterable[str]) -> Iterator[Refusal]:
    for key in keys:
        domain, slash, name = key.rpartition("/")
        if not _KEY_NAME.fullmatch(name) or (slash and not _DNS_NAME.fullmatch(domain)):
            yield field, key, _KEY


def _values(field: str, values: Iterable[str]) -> Iterator[Refusal]:
    for value in values:
        if not _LABEL_VALUE.fullmatch(value):
            yield field, value, _VALUE


def _expressions(name: str, expressions: list[wire.Expression] | None) -> Iterator[Refusal]:
    for number, each in enumerate(expressions or ()):
        field, values = f"{name}[{number}].values", each.values or []
        if not each.operator:
            yield f"{name}[{number}].operator", each.operator, "one of In, NotIn, Exists, DoesNotExist"
        if each.operator in _NO_VALUES and values:
            yield field, values, f"none beside {each.operator}"
        elif each.operator in _NUMBERS and len(values) != 1:
            yield field, values, f"one whole number beside {each.operator}"
        elif each.operator not in _NO_VALUES | _NUMBERS and not values:
            yield field, values, f"at least one beside {each.operator}"


def _pod_term(value: wire.PodTerm) -> Iterator[Refusal]:
    for name, keys in (("matchLabelKeys", value.match_label_keys), ("mismatchLabelKeys", value.mismatch_label_keys)):
        if keys and value.label_selector is None:
            yield name, keys, "none without labelSelector"
        yield from _keys(name, keys or ())
    for key in value.match_label_keys or ():
        if key in (value.mismatch_label_keys or ()):
            yield "mismatchLabelKeys", key, "none of matchLabelKeys"
    yield from _keys("topologyKey", [value.topology_key])
    for name in value.namespaces or ():
        if not _DNS_LABEL.fullmatch(name):
            yield "namespaces", name, "names of namespaces"


def _spread(value: wire.SpreadConstraint) -> Iterator[Refusal]:
    if value.match_label_keys and value.label_selector is None:
        yield "matchLabelKeys", value.match_label_keys, "none without labelSelector"
    if value.max_skew > _MOST_NUMBER:
        yield "maxSkew", value.max_skew, f"a whole number from 1 to {_MOST_NUMBER}"
    if value.min_domains is not None and value.when_unsatisfiable != "DoNotSchedule":
        yield "minDomains", value.min_domains, f"none beside {value.when_unsatisfiable}"
    if value.min_domains is not None and value.min_domains > _MOST_NUMBER:
        yield "minDomains", value.min_domains, f"a whole number from 1 to {_MOST_NUMBER}"
    yield from _keys("matchLabelKeys", value.match_label_keys or ())


def _container(value: wire.Container) -> Iterator[Refusal]:
    needs = value.resources
    limits = (needs.limits if needs is not None else None) or {}
    requests = (needs.requests if needs is not None else None) or {}
    for name in (*requests, *limits):
        if not (name in _NATIVE or name.startswith(_NATIVE_PREFIX) or "/" in name):
            yield "resources", name, "cpu, memory, ephemeral-storage, or a name with a domain, as nvidia.com/gpu"
    yield from _keys("resources", (*requests, *limits))
    for name, amount in requests.items():
        if name in limits and _is_above(amount, limits[name]):
            yield f"resources.requests.{name}", amount, f"at most its limit, {limits[name]}"
        elif _is_whole_only(name) and (name not in limits or _is_above(limits[name], amount)):
            yield f"resources.requests.{name}", amount, "as much as its limit, which must stand too"
    yield from _quantities("resources.requests", requests)
    yield from _quantities("resources.limits", limits)
    huge = next((name for name in (*requests, *limits) if name.startswith(_NATIVE_PREFIX)), None)
    if huge is not None and not _POD_LEVEL & {*requests, *limits}:
        yield "resources", huge, "hugepages beside cpu or memory"


def _needs(value: wire.ResourceNeeds) -> Iterator[Refusal]:
    yield from _amounts("requests", value.requests)
    yield from _amounts("limits", value.limits)


def _amounts(field: str, amounts: wire.Quantities) -> Iterator[Refusal]:
    """Yield what is no quantity, or one below 0."""
    for name, amount in (amounts or {}).items():
        try:
            is_negative = parse_quantity(str(amount)) < 0
        except UserError:
            yield f"{field}.{name}", amount, 'a Kubernetes quantity such as "250m", "2" or "1Gi"'
        else:
            if is_negative:
                yield f"{field}.{name}", amount, "a quantity that is not negative"


def _quantities(field: str, amounts: Mapping[str, str | int | float]) -> Iterator[Refusal]:
    """Yield names and amounts that the API server takes of no container."""
    for name, amount in amounts.items():
        if _is_extended(name) and not _is_whole_number(amount):
            yield f"{field}.{name}", amount, "a whole number"
        if _NOT_EXTENDED.match(name) and "/" in name and name.startswith("requests."):
            yield field, name, "a name with a domain that does not begin with requests."
        if name.startswith(_NATIVE_PREFIX) and not _is_multiple(amount, name.removeprefix(_NATIVE_PREFIX)):
            yield f"{field}.{name}", amount, "so many times the size of a page"


def refuse_pod_level(pod: wire.PodObject) -> None:
    """Raise `UserError` for resources of a whole pod, with all defaults, that contradict those of its containers."""
    needs = pod.spec.resources
    if needs is None:
        return
    requests, limits = needs.requests or {}, needs.limits or {}
    for name in (*requests, *limits):
        if name not in _POD_LEVEL and not name.startswith(_NATIVE_PREFIX):
            raise bad_value("spec.resources", name, "cpu, memory or hugepages, for a whole pod")
    asked = container_requests(pod)
    for name, amount in requests.items():
        if name in asked and _is_above(asked[name], amount):
            raise bad_value(f"spec.resources.requests.{name}", amount, f"at least what containers ask: {asked[name]}")
        if name in limits and _is_above(amount, limits[name]):
            raise bad_value(f"spec.resources.requests.{name}", amount, f"at most its limit, {limits[name]}")
    for number, container in enumerate(pod.spec.containers or ()):
        for name, amount in ((container.resources and container.resources.limits) or {}).items():
            if name in limits and _is_above(amount, limits[name]):
                place = f"spec.containers[{number}].resources.limits.{name}"
                raise bad_value(place, amount, f"at most the pod's limit, {limits[name]}")


def _port(value: wire.ContainerPort) -> Iterator[Refusal]:
    if not 1 <= value.container_port <= _MOST_PORT:
        yield "containerPort", value.container_port, f"a whole number from 1 to {_MOST_PORT}"
    if not 0 <= value.host_port <= _MOST_PORT:
        yield "hostPort", value.host_port, f"a whole number from 1 to {_MOST_PORT}"


def _pod(value: wire.PodSpec) -> Iterator[Refusal]:
    constraints = [(each.topology_key, each.when_unsatisfiable) for each in value.topology_spread_constraints or ()]
    for number, each in enumerate(constraints):
        if each in constraints[:number]:
            yield (
                f"topologySpreadConstraints[{number}]",
                " ".join(each),
                "each topologyKey once for each whenUnsatisfiable",
            )
    if value.active_deadline_seconds is not None and not 1 <= value.active_deadline_seconds <= _MOST_NUMBER:
        yield "activeDeadlineSeconds", value.active_deadline_seconds, f"a whole number from 1 to {_MOST_NUMBER}"
    containers = [*(value.init_containers or ()), *(value.containers or ())]
    yield from _once("schedulingGates", [gate.name for gate in value.scheduling_gates or ()])
    yield from _once("containers", [each.name for each in containers if each.name])
    yield from _amounts("overhead", value.overhead)
    yield from _keys("overhead", value.overhead or ())
    yield from _labels("nodeSelector", value.node_selector)
    yield from _keys("schedulingGates", [gate.name for gate in value.scheduling_gates or ()])
    yield from _once("volumes", [each.name for each in value.volumes or ()])
    yield from _taken_ports(value)
    for number, container in enumerate(value.containers or () if value.host_network else ()):
        for place, port in enumerate(container.ports or ()):
            if port.host_port not in (0, port.container_port):
                field = f"containers[{number}].ports[{place}].hostPort"
                yield field, port.host_port, f"its containerPort, {port.container_port}, on the host's network"


def _taken_ports(value: wire.PodSpec) -> Iterator[Refusal]:
    """Yield ports of the host that containers take twice."""
    together = [(f"containers[{number}]", each) for number, each in enumerate(value.containers or ())]
    alone = [[(f"initContainers[{number}]", each)] for number, each in enumerate(value.init_containers or ())]
    for beside in (together, *alone):
        taken: set[tuple[str, str, int]] = set()
        for name, container in beside:
            for place, port in enumerate(container.ports or ()):
                host_port = port.host_port or (port.container_port if value.host_network else 0)
                mine = port.protocol or "TCP", port.host_ip, host_port
                if host_port and mine in taken:
                    yield f"{name}.ports[{place}].hostPort", host_port, "each port of a protocol once"
                taken.add(mine)


def _volume(value: wire.Volume) -> Iterator[Refusal]:
    claim = value.persistent_volume_claim
    if claim is not None and not claim.claim_name:
        yield "persistentVolumeClaim.claimName", claim.claim_name, "the name of a claim"


def _once(field: str, names: Sequence[str]) -> Iterator[Refusal]:
    for number, name in enumerate(names):
        if not name or name in names[:number]:
            yield f"{field}[{number}].name", name, "a name that stands once"


_RULES: Mapping[type, Callable[[Any], Iterator[Refusal]]] = {
    wire.TolerationObject: _toleration, wire.PreferredNodeTerm: _weight, wire.WeightedPodTerm: _weight,
    wire.NodeTerms: _node_terms, wire.NodeTerm: _node_term, wire.Selector: _selector, wire.PodTerm: _pod_term,
    wire.SpreadConstraint: _spread, wire.Container: _container, wire.ContainerPort: _port, wire.PodSpec: _pod,
    wire.TaintObject: _taint, wire.NodeObject: _node, wire.Metadata: _metadata, wire.Volume: _volume,
    wire.ResourceNeeds: _needs, wire.SchedulingPolicy: _one_policy, wire.DisruptionMode: _one_mode,
    wire.SchedulingConstraints: _one_topology, wire.TopologyConstraint: _topology, wire.PodGroupSpec: _pod_group,
    wire.GangPolicy: _gang,
}  # fmt: skip


def _is_integer(text: str) -> bool:
    return bool(_INTEGER.fullmatch(text)) and -(2**63) <= int(text) < 2**63


def _is_extended(name: str) -> bool:
    return "/" in name and not _NOT_EXTENDED.match(name)


def _is_whole_only(name: str) -> bool:
    """Whether a resource cannot be promised more often than it is there."""
    return _is_extended(name) or name.startswith(_NATIVE_PREFIX)


def _is_whole_number(amount: str | float) -> bool:
    """Whether an amount is whole; what is no quantity is told where it is used."""
    try:
        return parse_quantity(str(amount)).denominator == 1
    except UserError:
        return True


def _is_multiple(amount: str | float, page: str) -> bool:
    try:
        size = parse_quantity(page)
        return size > 0 and (parse_quantity(str(amount)) / size).denominator == 1
    except UserError:
        return False


def _is_above(amount: str | float, limit: str | float) -> bool:
    """Whether an amount is above a limit; what is no quantity is told where it is used."""
    try:
        return parse_quantity(str(amount)) > parse_quantity(str(limit))
    except UserError:
        return False
