"""Writing a KubeSchedulerConfiguration: a profile that scores as told, in a file of its own or in one that there is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aaml.files import write_text
from aaml.policies.kube_scores import wire
from aaml.policies.kube_scores.config import DEFAULT_WEIGHTS, KubeSchedulerConfig
from aaml.policies.kube_scores.plugins import DEFAULTS, EnabledPlugins
from aaml.policies.kube_scores.profile import (
    API_VERSION,
    DEFAULT_PROFILE,
    KIND,
    load_document,
    profile_file,
    read_profile,
)
from aaml.scheduling.queue import BACKOFF_S
from aaml.schema import convert, without_nulls
from aaml.yaml_text import yaml_text


def document(config: KubeSchedulerConfig, base: str = "") -> dict[str, Any]:
    """Return a KubeSchedulerConfiguration whose profile scores like `config`, to be written as YAML.

    It says the weights and the strategy of NodeResourcesFit. Everything else is kube-scheduler's default, or what the
    profile that `base` (a policy) names and the rest of its file say.
    """
    content: dict[str, Any]
    content = without_nulls(load_document(profile_file(base))) if base else {"apiVersion": API_VERSION, "kind": KIND}
    profiles = content["profiles"] = content.get("profiles") or [{"schedulerName": DEFAULT_PROFILE}]
    if config.backoff_s or content.keys() & {"podInitialBackoffSeconds", "podMaxBackoffSeconds"}:
        content["podInitialBackoffSeconds"], content["podMaxBackoffSeconds"] = config.backoff_s or BACKOFF_S
    name = read_profile(base).scheduler_name if base else DEFAULT_PROFILE
    profile = next((each for each in profiles if each.get("schedulerName") == name), profiles[0])
    if config.percentage_of_nodes_to_score or "percentageOfNodesToScore" in {**content, **profile}:
        profile["percentageOfNodesToScore"] = config.percentage_of_nodes_to_score
    plugins = profile.get("plugins", {})
    enabled, disabled = (
        [each for each in plugins.get("score", {}).get(kind, ()) if each["name"] not in DEFAULT_WEIGHTS]
        for kind in ("enabled", "disabled")
    )
    for plugin, usual in DEFAULT_WEIGHTS.items():
        weight = config.weights.get(plugin, 0)
        if not weight:
            disabled.append({"name": plugin})
        elif base or weight != usual:
            enabled.append({"name": plugin, "weight": weight})
    if changed := {kind: names for kind, names in (("enabled", enabled), ("disabled", disabled)) if names}:
        profile["plugins"] = {**plugins, "score": changed, **_prepared(plugins, config)}
    strategy: dict[str, Any] = {
        "type": config.strategy,
        "resources": [{"name": name, "weight": weight} for name, weight in config.resources],
    }
    if config.strategy == "RequestedToCapacityRatio":
        shape = [{"utilization": utilization, "score": value} for utilization, value in config.shape]
        strategy["requestedToCapacityRatio"] = {"shape": shape}
    arguments = profile.setdefault("pluginConfig", [])
    fit = next((each for each in arguments if each["name"] == "NodeResourcesFit"), None)
    if fit is None:
        arguments.append(fit := {"name": "NodeResourcesFit"})
    fit["args"] = {**fit.get("args", {}), "scoringStrategy": strategy}
    return content


def _prepared(plugins: dict[str, Any], config: KubeSchedulerConfig) -> dict[str, Any]:
    """Return preScore with what scores and would run there by default: where that is off, kube-scheduler fails."""
    where = "preScore"
    runs = EnabledPlugins(convert(plugins, wire.Plugins, "plugins"), "plugins").at(where)
    lacking = [name for name, weight in config.weights.items() if weight and name not in runs]
    if not (more := [{"name": name} for name in lacking if where in DEFAULTS[name][0]]):
        return {}
    given = plugins.get(where, {})
    return {where: {**given, "enabled": [*given.get("enabled", ()), *more]}}


def write_configuration(path: Path, content: Mapping[str, Any], notes: Sequence[str] = ()) -> None:
    """Write a configuration, with `notes` as comments on top."""
    comments = "".join(f"# {note}\n" for note in notes)
    text = comments + yaml_text(content)
    write_text(path, text, field="out")
