"""A NodePool of Karpenter as a YAML file (karpenter.sh/v1): what the simulator knows of it, read and written.

The two durations of batches are flags of Karpenter, not fields of a NodePool; the file keeps them as annotations.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from aaml.cluster.objects import CAPACITY_TYPE_LABEL, HOSTNAME_LABEL, TYPE_LABEL, Operator, Requirement
from aaml.cluster.selectors import integer
from aaml.errors import UserError, bad_value
from aaml.files import write_text
from aaml.nodes import nodepool_wire as wire
from aaml.nodes.catalogue import CAPACITY_TYPES
from aaml.nodes.requirements import ANY, DESCRIBING, WELL_KNOWN, required, usual_key
from aaml.nodes.settings import KarpenterSettings
from aaml.schema import convert, of_kind, of_yaml, read_bytes, without_nulls
from aaml.yaml_text import yaml_text

API_VERSION, KIND = "karpenter.sh/v1", "NodePool"
BATCH_IDLE, BATCH_MAX = "aaml.dev/batch-idle-duration", "aaml.dev/batch-max-duration"
_NEVER = "Never"
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_WHOLE = re.compile(r"([0-9]+)(s|m|h)")  # as the NodePool's schema has it
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NODE_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_log = logging.getLogger(__name__)


def read_nodepool(path: Path) -> KarpenterSettings:
    """Read the NodePool of a file that holds one, with a warning that names what the simulator leaves out.

    Raises `UserError` in a line for a file without a NodePool, and for values that Karpenter refuses.
    """
    found = convert(load_nodepool(path), wire.NodePool, str(path))
    disruption, where = found.spec.disruption, f"{path}: spec.disruption"
    settings: dict[str, Any] = {}
    if disruption.consolidation_policy is not None:
        settings["consolidation_policy"] = disruption.consolidation_policy
    if (after := disruption.consolidate_after) is not None:
        settings["consolidate_after_s"] = (
            None if after == _NEVER else _seconds(after, f"{where}.consolidateAfter", _WHOLE)
        )
    budgets = [wire.Budget()] if disruption.budgets is None else disruption.budgets
    settings["budgets"] = tuple(each.nodes for each in budgets if not _is_at_times(each))
    annotations = found.metadata.annotations
    for key, name in ((BATCH_IDLE, "batch_idle_duration_s"), (BATCH_MAX, "batch_max_duration_s")):
        if key in annotations:
            settings[name] = _seconds(annotations[key], f"{path}: metadata.annotations.{key}")
    claim = found.spec.template.spec
    requirements = [
        _requirement(each, f"{path}: spec.template.spec.requirements[{number}]")
        for number, each in enumerate(claim.requirements)
    ]
    labels = {usual_key(key): value for key, value in found.spec.template.metadata.labels.items()}
    requirements += [Requirement(key, "In", (value,)) for key, value in labels.items() if key in _PLAYED]
    settings["instance_types"] = _named_types(requirements, path)
    settings["requirements"] = tuple(each for each in requirements if each.key in _PLAYED and not _names_types(each))
    left_out = list(_left_out(found.spec, requirements))
    if left_out:
        _log.warning("%s: not modelled here: %s", path, ", ".join(left_out))
    try:
        return KarpenterSettings(**settings)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _left_out(spec: wire.Spec, requirements: Sequence[Requirement]) -> Iterator[str]:
    """Name what a NodePool says and the simulator does not play."""
    if any(_is_at_times(each) for each in spec.disruption.budgets or ()):
        yield "budgets with a schedule or reasons"
    for each in requirements:
        if each.key not in _PLAYED:
            yield f"the requirement {each.operator} on {each.key}"
    claim = spec.template.spec
    if required(requirements).get(CAPACITY_TYPE_LABEL, ANY).allows("spot"):
        yield "interruptions of spot nodes"
    unplayed = {
        "limits": spec.limits, "weight": spec.weight, "replicas": spec.replicas is not None,
        "minValues": any(each.min_values for each in claim.requirements),
        "labels of nodes": {usual_key(key) for key in spec.template.metadata.labels} - _PLAYED,
        "taints": claim.taints, "startupTaints": claim.startup_taints,
        f"expireAfter {claim.expire_after}": claim.expire_after not in ("", _NEVER),
        "terminationGracePeriod": claim.termination_grace_period,
    }  # fmt: skip
    yield from (name for name, is_set in unplayed.items() if is_set)


def _is_at_times(budget: wire.Budget) -> bool:
    return not (budget.schedule is None and budget.duration is None and budget.reasons is None)


_PLAYED = WELL_KNOWN | DESCRIBING
"""Labels that types and offerings have."""


def _requirement(read: wire.NodePoolRequirement, where: str) -> Requirement:
    """Return a requirement as pods have it. Raises `UserError` for what Karpenter refuses (`ValidateRequirement`)."""
    key, values = usual_key(read.key), tuple(read.values)
    if key in {HOSTNAME_LABEL, "karpenter.sh/nodepool"}:
        raise bad_value(f"{where}.key", key, "a label that nodes of a pool may differ by")
    if read.operator in {"Gt", "Lt", "Gte", "Lte"}:
        if len(values) != 1 or not values[0].isdecimal() or (bound := integer(values[0])) is None:
            raise bad_value(f"{where}.values", list(values), f"one whole number from 0 for {read.operator}")
        if read.operator in {"Gte", "Lte"}:  # Karpenter's own; at least N is above N - 1
            operator: Operator = "Gt" if read.operator == "Gte" else "Lt"
            return Requirement(key, operator, (str(bound - 1 if operator == "Gt" else bound + 1),))
    if read.operator == "In" and not values:
        raise bad_value(f"{where}.values", [], "at least one value for In")
    if key == CAPACITY_TYPE_LABEL and read.operator == "In" and not set(values) & set(CAPACITY_TYPES):
        raise bad_value(f"{where}.values", list(values), f"some of {', '.join(CAPACITY_TYPES)}")
    return Requirement(key, cast("Operator", read.operator), values)


def _names_types(each: Requirement) -> bool:
    return each.key == TYPE_LABEL and each.operator == "In"


def _named_types(requirements: Iterable[Requirement], path: Path) -> tuple[str, ...]:
    """Return the types that every requirement names, in the order of the first; none where none names any."""
    lists = [each.values for each in requirements if _names_types(each)]
    for number in range(1, len(lists)):
        common = tuple(name for name in lists[number - 1] if name in lists[number])
        if not common:
            raise bad_value(f"{path}: {TYPE_LABEL}", list(lists[number]), f"values among {list(lists[number - 1])}")
        lists[number] = common
    return lists[-1] if lists else ()


def load_nodepool(path: Path) -> dict[str, Any]:
    """Return the NodePool of a YAML file. Raises `UserError` for a file that has none, or several."""
    accepted = f"a YAML file with a {KIND} of {API_VERSION}"
    found = of_kind(of_yaml(read_bytes(path, "nodepool", accepted), str(path)), {KIND: API_VERSION}, str(path))
    if found is None:
        raise bad_value("nodepool", str(path), accepted)
    return dict(found)


def least_values(base: Mapping[str, Any]) -> dict[str, int]:
    """Return by label how many of its values have to be left at least: `minValues` of a NodePool (`load_nodepool`)."""
    least: dict[str, int] = {}
    for each in convert(base, wire.NodePool, KIND).spec.template.spec.requirements:
        if each.min_values is not None:
            key = usual_key(each.key)
            least[key] = max(least.get(key, 1), each.min_values)
    return least


def document(settings: KarpenterSettings, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a NodePool with these settings, to be written as YAML; all else is that of `base` (`load_nodepool`).

    That is its budgets with a schedule or reasons, too. Without a base it is one of Karpenter's KWOK provider.
    """
    content: dict[str, Any] = without_nulls(base) if base is not None else _plain(settings)
    metadata = content.setdefault("metadata", {})
    metadata["annotations"] = {
        **metadata.get("annotations", {}),
        BATCH_IDLE: _text(settings.batch_idle_duration_s),
        BATCH_MAX: _text(settings.batch_max_duration_s),
    }
    spec = content.setdefault("spec", {})
    inner = spec.setdefault("template", {}).setdefault("spec", {})
    others = [
        each
        for each in inner.get("requirements", ())
        if (usual_key(each["key"]), each["operator"]) != (TYPE_LABEL, "In")
    ]
    named: list[dict[str, Any]] = [{"key": TYPE_LABEL, "operator": "In", "values": list(settings.instance_types)}]
    if base is not None and (least := least_values(base).get(TYPE_LABEL, 1)) > 1:
        named[0]["minValues"] = least
    inner["requirements"] = others + (named if settings.instance_types else [])
    after, before = settings.consolidate_after_s, spec.get("disruption", {})
    at_times = [each for each in before.get("budgets", ()) if each.keys() & {"schedule", "duration", "reasons"}]
    spec["disruption"] = {
        **before,
        "consolidationPolicy": settings.consolidation_policy,
        "consolidateAfter": _NEVER if after is None else f"{round(after)}s",  # it takes whole seconds
        "budgets": [*({"nodes": each} for each in settings.budgets), *at_times],
    }
    return content


def write_nodepool(path: Path, content: Mapping[str, Any], notes: Sequence[str] = ()) -> None:
    """Write a NodePool, with `notes` and the flags of its batches as comments on top."""
    annotations = content["metadata"]["annotations"]
    flags = f"--batch-idle-duration {annotations[BATCH_IDLE]} --batch-max-duration {annotations[BATCH_MAX]}"
    lines = [*notes, f"Karpenter's flags (Helm: settings.batchIdleDuration, settings.batchMaxDuration): {flags}"]
    text = "".join(f"# {line}\n" for line in lines) + yaml_text(dict(content))
    write_text(path, text, field="out")


def _plain(settings: KarpenterSettings) -> dict[str, Any]:
    requirements = [
        {"key": each.key, "operator": each.operator, **({"values": list(each.values)} if each.values else {})}
        for each in settings.requirements
    ]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "default"},
        "spec": {"template": {"spec": {"nodeClassRef": _NODE_CLASS, "requirements": requirements}}},
    }


def _seconds(value: Any, where: str, of: re.Pattern[str] = _DURATION) -> float:
    text = str(value)
    parts = of.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise bad_value(where, value, "a duration such as 30s, 5m or 1h30m" + (", or Never" if of is _WHOLE else ""))
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _text(seconds: float) -> str:
    """Return a duration as Go has it, to the millisecond: 90s, 2.5s or 250ms."""
    milliseconds = round(1000 * seconds)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    return f"{milliseconds / 1000:.3f}".rstrip("0").rstrip(".") + "s"
