"""A NodePool of Karpenter as a YAML file (karpenter.sh/v1): what the simulator knows of it, read and written.

The two durations of batches are flags of Karpenter, not fields of a NodePool; the file keeps them as annotations.
"""

import copy
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from aaml.cluster.objects import CAPACITY_TYPE_LABEL, TYPE_LABEL
from aaml.errors import UserError, bad_value
from aaml.files import write_text
from aaml.nodes.settings import KarpenterSettings

API_VERSION, KIND = "karpenter.sh/v1", "NodePool"
BATCH_IDLE, BATCH_MAX = "aaml.dev/batch-idle-duration", "aaml.dev/batch-max-duration"
_NEVER = "Never"
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NODE_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_KNOWN = {"consolidationPolicy", "consolidateAfter", "budgets"}
_log = logging.getLogger(__name__)


def read_nodepool(path: Path) -> KarpenterSettings:
    """Read the NodePool of a file that holds one, with a warning that names what the simulator leaves out.

    Raises `UserError` in a line for a file without a NodePool, and for values that Karpenter refuses.
    """
    found = load_nodepool(path)
    spec, where = _mapping(found.get("spec"), f"{path}: spec"), f"{path}: spec.disruption"
    disruption = _mapping(spec.get("disruption", {}), where)
    said: dict[str, Any] = {}
    if "consolidationPolicy" in disruption:
        said["consolidation_policy"] = disruption["consolidationPolicy"]
    if "consolidateAfter" in disruption:
        after = disruption["consolidateAfter"]
        said["consolidate_after_s"] = None if after == _NEVER else _seconds(after, f"{where}.consolidateAfter")
    budgets = disruption.get("budgets", [{"nodes": "10%"}])
    left_out = [f"disruption.{name}" for name in sorted(disruption.keys() - _KNOWN)]
    plain = [_mapping(each, f"{where}.budgets") for each in budgets]
    left_out += ["budgets with a schedule or reasons" for each in plain[:1] if any(set(b) - {"nodes"} for b in plain)]
    said["budgets"] = tuple(str(each.get("nodes", "10%")) for each in plain if not set(each) - {"nodes"})
    annotations = found.get("metadata", {}).get("annotations", {})
    for key, name in ((BATCH_IDLE, "batch_idle_duration_s"), (BATCH_MAX, "batch_max_duration_s")):
        if key in annotations:
            said[name] = _seconds(annotations[key], f"{path}: metadata.annotations.{key}")
    for each in _requirements(spec):
        key, operator = each.get("key"), each.get("operator")
        if key == TYPE_LABEL and operator == "In":
            allowed = said.get("instance_types", each.get("values", ()))
            said["instance_types"] = tuple(name for name in allowed if name in each.get("values", ()))
            if not said["instance_types"]:
                raise bad_value(f"{path}: {TYPE_LABEL}", each.get("values", []), f"values among {list(allowed)}")
        elif key not in _of_catalogue or operator != "In":
            left_out.append(f"the requirement {operator} on {key}")
    left_out += [name for name in ("limits", "weight", "replicas") if name in spec]
    if left_out:
        _log.warning("%s: not modelled here: %s", path, ", ".join(left_out))
    try:
        return KarpenterSettings(**said)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


_of_catalogue = {CAPACITY_TYPE_LABEL, "kubernetes.io/arch", "kubernetes.io/os"}
"""Requirements that a catalogue has been read by."""


def load_nodepool(path: Path) -> dict[str, Any]:
    """Return the first NodePool of a YAML file. Raises `UserError` for a file that has none."""
    accepted = f"a YAML file with a {KIND} of {API_VERSION}"
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise bad_value("nodepool", str(path), f"{accepted} ({str(error).splitlines()[0]})") from error
    for each in documents:
        if isinstance(each, dict) and each.get("kind") == KIND and each.get("apiVersion") == API_VERSION:
            return each
    raise bad_value("nodepool", str(path), accepted)


def document(settings: KarpenterSettings, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a NodePool with these settings, to be written as YAML; all else is that of `base` (`load_nodepool`).

    Without a base it is one of Karpenter's KWOK provider.
    """
    content: dict[str, Any] = copy.deepcopy(dict(base)) if base is not None else _plain()
    metadata = content.setdefault("metadata", {})
    metadata["annotations"] = {
        **metadata.get("annotations", {}),
        BATCH_IDLE: _text(settings.batch_idle_duration_s),
        BATCH_MAX: _text(settings.batch_max_duration_s),
    }
    spec = content.setdefault("spec", {})
    inner = spec.setdefault("template", {}).setdefault("spec", {})
    others = [each for each in _requirements(spec) if (each.get("key"), each.get("operator")) != (TYPE_LABEL, "In")]
    named = [{"key": TYPE_LABEL, "operator": "In", "values": list(settings.instance_types)}]
    inner["requirements"] = others + (named if settings.instance_types else [])
    after = settings.consolidate_after_s
    spec["disruption"] = {
        **spec.get("disruption", {}),
        "consolidationPolicy": settings.consolidation_policy,
        "consolidateAfter": _NEVER if after is None else f"{round(after)}s",  # it takes whole seconds
        "budgets": [{"nodes": each} for each in settings.budgets],
    }
    return content


def write_nodepool(path: Path, content: Mapping[str, Any], notes: Sequence[str] = ()) -> None:
    """Write a NodePool, with `notes` and the flags of its batches as comments on top."""
    annotations = content["metadata"]["annotations"]
    flags = f"--batch-idle-duration {annotations[BATCH_IDLE]} --batch-max-duration {annotations[BATCH_MAX]}"
    lines = [*notes, f"Karpenter's flags (Helm: settings.batchIdleDuration, settings.batchMaxDuration): {flags}"]
    text = "".join(f"# {line}\n" for line in lines) + yaml.safe_dump(dict(content), sort_keys=False, width=120)
    write_text(path, text, field="out")


def to_dict(settings: KarpenterSettings) -> dict[str, Any]:
    """Return settings as JSON-able values, which `of_dict` reads."""
    return asdict(settings)


def of_dict(found: Mapping[str, Any]) -> KarpenterSettings:
    """Return the settings that `to_dict` wrote."""
    return KarpenterSettings(**found)


def _plain() -> dict[str, Any]:
    requirements = [
        {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
        {"key": CAPACITY_TYPE_LABEL, "operator": "In", "values": ["on-demand"]},
    ]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "default"},
        "spec": {"template": {"spec": {"nodeClassRef": _NODE_CLASS, "requirements": requirements}}},
    }


def _requirements(spec: Mapping[str, Any]) -> list[Any]:
    return list(spec.get("template", {}).get("spec", {}).get("requirements", ()))


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise bad_value(where, value, "a mapping")
    return value


def _seconds(value: Any, where: str) -> float:
    text = str(value)
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise bad_value(where, value, "a duration such as 30s, 5m or 1h30m, or Never")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _text(seconds: float) -> str:
    """Return a duration as Go has it, to the millisecond: 90s, 2.5s or 250ms."""
    milliseconds = round(1000 * seconds)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    return f"{milliseconds / 1000:.3f}".rstrip("0").rstrip(".") + "s"
