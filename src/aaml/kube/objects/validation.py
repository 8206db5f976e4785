"""What the API server refuses in a pod beside words that it does not know (pkg/apis/core/validation), where it matters.

Each would be scheduled as something else than what was meant.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from aaml.cluster.quantity import CPU, EPHEMERAL_STORAGE, MEMORY, parse_quantity
from aaml.cluster.selectors import NAME_FIELD
from aaml.errors import UserError, bad_value
from aaml.kube.objects import wire

Refusal = tuple[str, object, str]
"""A field, its value, and what is accepted."""
_MOST_PORT = 65_535
_MOST_WEIGHT = 100
_MOST_NUMBER = 2**31 - 1
_NATIVE = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})
_NATIVE_PREFIX = "hugepages-"
_NO_VALUES = frozenset({"Exists", "DoesNotExist"})
_NUMBERS = frozenset({"Gt", "Lt"})


def validate(value: Any, where: str, place: str = "") -> None:
    """Raise `UserError` for the first field of an object that the API server would refuse."""
    if isinstance(value, list):
        for number, each in enumerate(value):
            validate(each, where, f"{place}[{number}]")
    elif isinstance(value, msgspec.Struct):
        for field, found, accepted in _RULES.get(type(value), _nothing)(value):
            raise bad_value(f"{where}: {place}.{field}", found, accepted)
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
    if operator in _NUMBERS and not _is_whole(value.value or ""):
        yield "value", value.value, f"a whole number beside {operator}"


def _weight(value: wire.PreferredNodeTerm | wire.WeightedPodTerm) -> Iterator[Refusal]:
    if not 1 <= value.weight <= _MOST_WEIGHT:
        yield "weight", value.weight, f"a whole number from 1 to {_MOST_WEIGHT}"


def _node_terms(value: wire.NodeTerms) -> Iterator[Refusal]:
    if not value.node_selector_terms:
        yield "nodeSelectorTerms", value.node_selector_terms, "at least one term"


def _node_term(value: wire.NodeTerm) -> Iterator[Refusal]:
    yield from _expressions("matchExpressions", value.match_expressions)
    for number, each in enumerate(value.match_fields or ()):
        if each.key != NAME_FIELD:
            yield f"matchFields[{number}].key", each.key, NAME_FIELD
        if each.operator not in ("In", "NotIn") or len(each.values or ()) != 1:
            yield f"matchFields[{number}]", f"{each.operator} {each.values}", "In or NotIn with one value"


def _selector(value: wire.Selector) -> Iterator[Refusal]:
    for number, each in enumerate(value.match_expressions or ()):
        if each.operator in _NUMBERS:
            yield f"matchExpressions[{number}].operator", each.operator, "one of In, NotIn, Exists, DoesNotExist"
    yield from _expressions("matchExpressions", value.match_expressions)


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


def _spread(value: wire.SpreadConstraint) -> Iterator[Refusal]:
    if value.match_label_keys and value.label_selector is None:
        yield "matchLabelKeys", value.match_label_keys, "none without labelSelector"
    if value.max_skew > _MOST_NUMBER:
        yield "maxSkew", value.max_skew, f"a whole number from 1 to {_MOST_NUMBER}"
    if value.min_domains is not None and value.when_unsatisfiable != "DoNotSchedule":
        yield "minDomains", value.min_domains, f"none beside {value.when_unsatisfiable}"


def _container(value: wire.Container) -> Iterator[Refusal]:
    needs = value.resources
    limits = (needs.limits if needs is not None else None) or {}
    requests = (needs.requests if needs is not None else None) or {}
    for name in (*requests, *limits):
        if not (name in _NATIVE or name.startswith(_NATIVE_PREFIX) or "/" in name):
            yield "resources", name, "cpu, memory, ephemeral-storage, or a name with a domain, as nvidia.com/gpu"
    for name, amount in requests.items():
        if name in limits and _is_above(amount, limits[name]):
            yield f"resources.requests.{name}", amount, f"at most its limit, {limits[name]}"
        elif "/" in name and (name not in limits or _is_above(limits[name], amount)):
            yield f"resources.requests.{name}", amount, "as much as its limit, which must stand too"


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
    for number, container in enumerate(value.containers or () if value.host_network else ()):
        for place, port in enumerate(container.ports or ()):
            if port.host_port not in (0, port.container_port):
                field = f"containers[{number}].ports[{place}].hostPort"
                yield field, port.host_port, f"its containerPort, {port.container_port}, on the host's network"


def _once(field: str, names: Sequence[str]) -> Iterator[Refusal]:
    for number, name in enumerate(names):
        if not name or name in names[:number]:
            yield f"{field}[{number}].name", name, "a name that stands once"


_RULES: Mapping[type, Callable[[Any], Iterator[Refusal]]] = {
    wire.TolerationObject: _toleration, wire.PreferredNodeTerm: _weight, wire.WeightedPodTerm: _weight,
    wire.NodeTerms: _node_terms, wire.NodeTerm: _node_term, wire.Selector: _selector, wire.PodTerm: _pod_term,
    wire.SpreadConstraint: _spread, wire.Container: _container, wire.ContainerPort: _port, wire.PodSpec: _pod,
}  # fmt: skip


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def _is_above(amount: str | float, limit: str | float) -> bool:
    """Whether an amount is above a limit; what is no quantity is told where it is used."""
    try:
        return parse_quantity(str(amount)) > parse_quantity(str(limit))
    except UserError:
        return False
