"""A DeschedulerPolicy as a YAML file (descheduler/v1alpha2): what the simulator knows of HighNodeUtilization in it.

The descheduling interval is a flag of the descheduler, or the schedule of its CronJob; the file does not say it.
"""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from aaml.errors import UserError, bad_value
from aaml.nodes.settings import HighNodeUtilizationSettings
from aaml.schema import convert
from aaml.settings import changed

API_VERSION, KIND = "descheduler/v1alpha2", "DeschedulerPolicy"
_PLUGIN, _EVICTOR = "HighNodeUtilization", "DefaultEvictor"
_LIMITS = {
    "maxNoOfPodsToEvictPerNode": "max_no_of_pods_to_evict_per_node",
    "maxNoOfPodsToEvictTotal": "max_no_of_pods_to_evict_total",
}
_ARGS = {"thresholds": "thresholds", "numberOfNodes": "number_of_nodes", "evictionModes": "eviction_modes"}
_RESOURCES = ("cpu", "memory", "pods")
_EVICTOR_ARGS = {"noEvictionPolicy": "no_eviction_policy"}
_log = logging.getLogger(__name__)


class _PluginConfig(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    args: dict[str, Any] = {}


class _Enabled(msgspec.Struct, forbid_unknown_fields=True):
    enabled: list[str] = []
    disabled: list[str] = []


class _Profile(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    name: str = ""
    plugin_config: list[_PluginConfig] = []
    plugins: dict[str, _Enabled] = {}


class _Policy(msgspec.Struct):
    profiles: list[_Profile] = []


def read_descheduler_policy(content: Mapping[str, Any], source: str) -> HighNodeUtilizationSettings:
    """Return the settings of a decoded file, with a warning that names what the simulator leaves out.

    Raises `UserError` in a line where no profile configures HighNodeUtilization, and for values that are not taken.
    """
    profiles = convert(content, _Policy, source).profiles
    chosen = next((each for each in profiles if _configures(each)), None)
    if chosen is None:
        raise bad_value("nodes", source, f"a {KIND} of {API_VERSION} with a profile that configures {_PLUGIN}")
    plugins = {each.name: each.args for each in chosen.plugin_config}
    if len(plugins) < len(chosen.plugin_config):
        raise bad_value(f"{source}: pluginConfig", ", ".join(each.name for each in chosen.plugin_config), "a name once")
    settings: dict[str, Any] = {}
    left_out = ["other profiles"] if len(profiles) > 1 else []
    for given, known, where in (
        ({key: value for key, value in content.items() if key not in {"apiVersion", "kind", "profiles"}}, _LIMITS, ""),
        (plugins.pop(_PLUGIN), _ARGS, f"{_PLUGIN}."),
        (plugins.pop(_EVICTOR, {}), _EVICTOR_ARGS, f"{_EVICTOR}."),
    ):
        settings |= {known[key]: value for key, value in given.items() if key in known and value not in ("", None)}
        left_out += [f"{where}{key}" for key in sorted(given.keys() - known)]
    left_out += sorted({*plugins, *_enabled(chosen)} - {_PLUGIN, _EVICTOR})
    if "thresholds" in settings:
        _check_thresholds(settings["thresholds"], f"{source}: thresholds")
    if left_out:
        _log.warning("%s: not modelled here: %s", source, ", ".join(left_out))
    try:
        return changed(HighNodeUtilizationSettings(), settings)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def _check_thresholds(thresholds: object, where: str) -> None:
    if not isinstance(thresholds, Mapping) or not thresholds:
        raise bad_value(where, thresholds, f"percentages by resource: {', '.join(_RESOURCES)}")
    for name, value in thresholds.items():
        if name not in _RESOURCES:
            raise bad_value(where, name, f"one of {', '.join(_RESOURCES)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
            raise bad_value(f"{where}.{name}", value, "a percentage from 0 to 100")


def _configures(profile: _Profile) -> bool:
    """Whether a profile has arguments for the plugin, and enables it where it says what it enables."""
    named = any(each.name == _PLUGIN for each in profile.plugin_config)
    return named and (not profile.plugins or _PLUGIN in _enabled(profile))


def _enabled(profile: _Profile) -> set[str]:
    return {name for each in profile.plugins.values() for name in each.enabled}
