"""The policy of `aaml apply -s`: a profile of a KubeSchedulerConfiguration, or score plugins as `simon` reads them.

A file with kube-scheduler's own plugins is the policy `kube-scheduler:FILE`. Others are read as strictly, and their
score plugins are policies of ours by `PLUGIN_POLICIES`; what else they say is told and left out.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from aaml.errors import bad_value
from aaml.policies.kube_scores.plugins import DEFAULTS
from aaml.policies.kube_scores.profile import API_VERSION, KIND, PREFIX, load_document
from aaml.policies.kube_scores.wire import KubeSchedulerConfiguration, KubeSchedulerProfile
from aaml.schema import convert

_GROUP = API_VERSION.partition("/")[0]
_FORMER_FIELDS = frozenset({"healthzBindAddress", "metricsBindAddress"})  # of v1beta1, which `simon` reads
_FORK = {
    "FGDScore": "fgd",
    "BestFitScore": "best-fit",
    "DotProductScore": "dot-product",
    "GpuPackingScore": "gpu-packing",
    "GpuClusteringScore": "gpu-clustering",
    "RandomScore": "random",
}
PLUGIN_POLICIES = {
    **_FORK,
    "NodeResourcesLeastAllocated": "least-allocated",
    "NodeResourcesMostAllocated": "most-allocated",
    "NodeResourcesBalancedAllocation": "balanced-allocation",
    "NodeResourcesFit": "kube-scheduler",
}
"""Score plugins of a scheduler configuration -> our policies. The first six are the GPU-sharing fork's."""
_log = logging.getLogger(__name__)


def read_scheduler_config(path: Path) -> dict[str, float]:
    """Return policy -> weight of a file; a policy is one as `load_policy` takes it.

    Raises `UserError` in one line for what kube-scheduler would not start with.
    """
    content = load_document(path)
    version, kind = content.get("apiVersion"), content.get("kind")
    if kind != KIND or not isinstance(version, str) or version.partition("/")[0] != _GROUP:
        raise bad_value(f"{path}: apiVersion, kind", f"{version}, {kind}", f"{API_VERSION}, {KIND}")
    former = frozenset() if version == API_VERSION else _FORMER_FIELDS
    given = {key: value for key, value in content.items() if key not in former}
    whole = convert(given, KubeSchedulerConfiguration, str(path))
    profile = (whole.profiles or [KubeSchedulerProfile()])[0]
    enabled = profile.plugins.score.enabled
    if version == API_VERSION and all(each.name in DEFAULTS for each in enabled):
        return {f"{PREFIX}{path}": 1.0}
    weights: dict[str, float] = {}
    for each in enabled:
        if each.name not in PLUGIN_POLICIES:
            accepted = ", ".join(PLUGIN_POLICIES)
            raise bad_value(f"{path}: profiles[0].plugins.score.enabled", each.name, f"one of {accepted}")
        if PLUGIN_POLICIES[each.name] in weights:
            raise bad_value(f"{path}: profiles[0].plugins.score.enabled", each.name, "each plugin once")
        if each.weight < 0:
            raise bad_value(f"{path}: weight of {each.name}", each.weight, "a whole number from 0")
        weights[PLUGIN_POLICIES[each.name]] = float(each.weight or 1)  # 0 is read as 1
    if weights and (beyond := list(_beyond(whole, profile))):
        _log.warning("%s: only the first profile's score plugins count; left out: %s", path, "; ".join(beyond))
    return weights or {"kube-scheduler": 1.0}


def _beyond(whole: KubeSchedulerConfiguration, profile: KubeSchedulerProfile) -> Iterator[str]:
    """Name what is left out."""
    if len(whole.profiles) > 1:
        yield f"{len(whole.profiles) - 1} more profiles"
    if profile.plugin_config:
        yield f"pluginConfig of {', '.join(each.name for each in profile.plugin_config)}"
    others = [name for name in profile.plugins.__struct_fields__ if name != "score"]
    if points := [name for name in others if getattr(profile.plugins, name).enabled]:
        yield f"plugins of {', '.join(points)}"
    if whole.extenders:
        yield "extenders"
    if not any(each.name == "*" for each in profile.plugins.score.disabled):
        yield "kube-scheduler's own score plugins, which are not disabled (disabled: [{name: '*'}])"
