"""A DeschedulerPolicy as a YAML file (descheduler/v1alpha2): what the simulator knows of HighNodeUtilization in it.

The descheduling interval is a flag of the descheduler, or the schedule of its CronJob; the file does not say it.
"""

import logging
from collections.abc import Mapping
from typing import Any

from aaml.errors import UserError, bad_value
from aaml.nodes.settings import HighNodeUtilizationSettings
from aaml.settings import changed

API_VERSION, KIND = "descheduler/v1alpha2", "DeschedulerPolicy"
_PLUGIN, _EVICTOR = "HighNodeUtilization", "DefaultEvictor"
_LIMITS = {
    "maxNoOfPodsToEvictPerNode": "max_no_of_pods_to_evict_per_node",
    "maxNoOfPodsToEvictTotal": "max_no_of_pods_to_evict_total",
}
_ARGS = {"thresholds": "thresholds", "numberOfNodes": "number_of_nodes", "evictionModes": "eviction_modes"}
_EVICTOR_ARGS = {"noEvictionPolicy": "no_eviction_policy"}
_log = logging.getLogger(__name__)


def read_descheduler_policy(content: Mapping[str, Any], source: str) -> HighNodeUtilizationSettings:
    """Return the settings of a decoded file, with a warning that names what the simulator leaves out.

    Raises `UserError` in a line where no profile configures HighNodeUtilization, and for values that are not taken.
    """
    accepted = f"a {KIND} of {API_VERSION} with a profile that configures {_PLUGIN}"
    if content.get("apiVersion") != API_VERSION:
        raise bad_value("nodes", source, accepted)
    profiles = [_plugins(each) for each in _list(content.get("profiles"))]
    chosen = next((each for each in profiles if _PLUGIN in each), None)
    if chosen is None:
        raise bad_value("nodes", source, accepted)
    said: dict[str, Any] = {}
    left_out = ["other profiles"] if len(profiles) > 1 else []
    for given, known, where in (
        ({key: value for key, value in content.items() if key not in {"apiVersion", "kind", "profiles"}}, _LIMITS, ""),
        (chosen.pop(_PLUGIN), _ARGS, f"{_PLUGIN}."),
        (chosen.pop(_EVICTOR, {}), _EVICTOR_ARGS, f"{_EVICTOR}."),
    ):
        said |= {known[key]: value for key, value in given.items() if key in known and value not in ("", None)}
        left_out += [f"{where}{key}" for key in sorted(given.keys() - known)]
    left_out += sorted(chosen)
    if left_out:
        _log.warning("%s: not modelled here: %s", source, ", ".join(left_out))
    try:
        return changed(HighNodeUtilizationSettings(), said)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def _plugins(profile: Any) -> dict[str, Mapping[str, Any]]:
    """Return the arguments of the plugins that a profile configures, by name."""
    found = _list(profile.get("pluginConfig") if isinstance(profile, dict) else None)
    return {
        str(each.get("name")): dict(args) if isinstance(args := each.get("args"), dict) else {}
        for each in found
        if isinstance(each, dict)
    }


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
