"""kube-scheduler's own score plugins as a policy in the plugin: a profile of a configuration, or one by its name."""

import logging
from typing import Any

from aaml.policies.kube_scores import KubeSchedulerConfig
from aaml.policies.kube_scores.config import DEFAULT_WEIGHTS, PACKING
from aaml.policies.kube_scores.document import document
from aaml.policies.kube_scores.profile import DEFAULT_PROFILE, names_profile, read_profile

NAMED = {"kube-scheduler": KubeSchedulerConfig(), "kube-scheduler-packing": PACKING}
"""Profiles that are policies by name."""
CARRIED = frozenset(DEFAULT_WEIGHTS) - {"VolumeBinding"}
"""The score plugins that the Go module carries. VolumeBinding's would need what its filter keeps of the pod."""
_log = logging.getLogger(__name__)


def is_profile(spec: str) -> bool:
    """Whether a policy is a profile of kube-scheduler's own score plugins."""
    return names_profile(spec) or spec in NAMED


def profile_of(spec: str) -> KubeSchedulerConfig:
    """Return how a profile scores. Raises `UserError` for a file that kube-scheduler would not start with."""
    return read_profile(spec).config if names_profile(spec) else NAMED[spec]


def score_document(spec: str) -> dict[str, Any]:
    """Return a KubeSchedulerConfiguration that says how a profile scores and no more, each plugin with its weight.

    VolumeBinding stays behind, with a warning in the log where the profile says how it scores.
    """
    config, base = profile_of(spec), spec if names_profile(spec) else ""
    whole = document(config, base)
    name = read_profile(base).scheduler_name if base else DEFAULT_PROFILE
    profiles = whole["profiles"]
    profile = next((each for each in profiles if each.get("schedulerName") == name), profiles[0])
    enabled = [
        {"name": plugin, "weight": weight} for plugin, weight in config.weights.items() if weight and plugin in CARRIED
    ]
    arguments = [each for each in profile["pluginConfig"] if each["name"] in CARRIED]
    usual = KubeSchedulerConfig()
    if config.weights.get("VolumeBinding", 0) > 1 or config.storage_shape != usual.storage_shape:
        _log.warning("%s: its score of VolumeBinding stays behind; a plugin does not score by free storage", spec)
    return {
        "apiVersion": whole["apiVersion"],
        "kind": whole["kind"],
        "profiles": [
            {
                "schedulerName": DEFAULT_PROFILE,
                "plugins": {"score": {"disabled": [{"name": "*"}], "enabled": enabled}},
                "pluginConfig": arguments,
            }
        ],
    }
