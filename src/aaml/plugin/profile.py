"""kube-scheduler's own score plugins as a policy in the plugin: a profile of a configuration, or one by its name."""

from typing import Any

from aaml.policies.kube_scores import KubeSchedulerConfig
from aaml.policies.kube_scores.config import DEFAULT_WEIGHTS, PACKING
from aaml.policies.kube_scores.document import document
from aaml.policies.kube_scores.profile import DEFAULT_PROFILE, names_profile, read_profile

NAMED = {"kube-scheduler": KubeSchedulerConfig(), "kube-scheduler-packing": PACKING}
"""Profiles that are policies by name."""


def is_profile(spec: str) -> bool:
    """Whether a policy is a profile of kube-scheduler's own score plugins."""
    return names_profile(spec) or spec in NAMED


def profile_of(spec: str) -> KubeSchedulerConfig:
    """Return how a profile scores. Raises `UserError` for a file that kube-scheduler would not start with."""
    return read_profile(spec).config if names_profile(spec) else NAMED[spec]


def score_document(spec: str) -> dict[str, Any]:
    """Return a KubeSchedulerConfiguration that says how a profile scores and no more, each plugin with its weight."""
    config, base = profile_of(spec), spec if names_profile(spec) else ""
    whole = document(config, base)
    name = read_profile(base).scheduler_name if base else DEFAULT_PROFILE
    profiles = whole["profiles"]
    profile = next((each for each in profiles if each.get("schedulerName") == name), profiles[0])
    enabled = [{"name": plugin, "weight": weight} for plugin, weight in config.weights.items() if weight]
    arguments = [each for each in profile["pluginConfig"] if each["name"] in DEFAULT_WEIGHTS]
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
