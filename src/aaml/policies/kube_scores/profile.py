"""A profile of a KubeSchedulerConfiguration as a policy, read as kube-scheduler 1.37 reads it.

`kube-scheduler:FILE.yaml` names the profile of the file that schedules pods which name no scheduler, or its first one;
`kube-scheduler:FILE.yaml#NAME` another one by its schedulerName. Source: `pkg/scheduler/apis/config` of
Kubernetes 1.37.
"""

import logging
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import msgspec

from aaml.errors import UserError, bad_value
from aaml.policies.kube_scores import wire
from aaml.policies.kube_scores.config import KubeSchedulerConfig, Strategy
from aaml.policies.kube_scores.plugins import EnabledPlugins
from aaml.scheduling.queue import BACKOFF_S
from aaml.schema import convert, of_yaml, read_bytes

PREFIX = "kube-scheduler:"
"""What a policy begins with that is a profile of a file."""
API_VERSION, KIND = "kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration"
DEFAULT_PROFILE = "default-scheduler"
STRATEGIES = get_args(Strategy)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile of a file says: the name that pods give for it, how it scores, and what AAML leaves out of it."""

    scheduler_name: str
    config: KubeSchedulerConfig
    unmodelled: tuple[str, ...]


def names_profile(spec: str) -> bool:
    """Whether a policy is a profile of a file."""
    return spec.startswith(PREFIX)


def profile_file(spec: str) -> Path:
    """Return the file of a policy that is a profile of one."""
    return Path(_parts(spec)[0])


def _parts(spec: str) -> tuple[str, str]:
    """Return the path of a policy's file, which may have a # itself, and the profile that it names."""
    named = spec.removeprefix(PREFIX)
    path, number_sign, name = named.rpartition("#")
    return (path, name) if number_sign and not Path(named).is_file() else (named, "")


def read_profile(spec: str) -> Profile:
    """Read the profile that a policy names, with a warning once that names what AAML leaves out of it.

    Raises `UserError` in one line for what kube-scheduler 1.37 would not start with, and for a
    profile that is not there.
    """
    path, name = _parts(spec)
    try:
        changed_ns = Path(path).stat().st_mtime_ns
    except OSError as error:
        raise bad_value("policy", spec, "kube-scheduler:FILE with a KubeSchedulerConfiguration that exists") from error
    return _profile(path, name, changed_ns)


@lru_cache(maxsize=32)
def _profile(path: str, name: str, _changed_ns: int) -> Profile:
    whole = _decode(Path(path), load_document(Path(path)))
    names = [each.scheduler_name or "" for each in whole.profiles]
    if name and name not in names:
        raise bad_value(f"profile of {path}", name, f"one of {', '.join(names)}")
    number = names.index(name or (DEFAULT_PROFILE if DEFAULT_PROFILE in names else names[0]))
    config, unmodelled = _read(path, whole, number)
    found = Profile(names[number], config, (*unmodelled, *_outside(whole)))
    if found.unmodelled and multiprocessing.parent_process() is None:  # who started the workers has said so
        _log.warning("%s, profile %s: not modelled here: %s", path, names[number], "; ".join(found.unmodelled))
    return found


# ---- the file --------------------------------------------------------------------------------------------------------


def load_document(path: Path) -> dict[str, Any]:
    """Return a file's one document."""
    documents = of_yaml(read_bytes(path, "file", "a readable file"), str(path))
    if len(documents) > 1:
        raise UserError(f"{path}: is not one YAML document but {len(documents)}")
    if not documents or not isinstance(documents[0], dict):
        raise UserError(f"{path}: is no {KIND}")
    return documents[0]


def _decode(path: Path, content: Mapping[str, Any]) -> wire.KubeSchedulerConfiguration:
    """Return the file's values. Raises `UserError` for what kube-scheduler's decoder or its validation refuses."""
    version = content.get("apiVersion"), content.get("kind")
    if version != (API_VERSION, KIND):
        raise bad_value(f"{path}: apiVersion, kind", f"{version[0]}, {version[1]}", f"{API_VERSION}, {KIND}")
    whole = convert(content, wire.KubeSchedulerConfiguration, str(path))
    profiles = whole.profiles or [wire.KubeSchedulerProfile()]
    if len(profiles) == 1 and profiles[0].scheduler_name is None:
        profiles = [msgspec.structs.replace(profiles[0], scheduler_name=DEFAULT_PROFILE)]
    names = [each.scheduler_name or "" for each in profiles]
    for number, name in enumerate(names):
        if not name or name in names[:number]:
            raise bad_value(f"{path}: profiles[{number}].schedulerName", name, "a name that no other profile has")
        if profiles[number].plugins.queue_sort != profiles[0].plugins.queue_sort:
            raise UserError(f"{path}: profiles[{number}].plugins.queueSort: is not that of all profiles")
    if whole.pod_max_backoff_seconds < whole.pod_initial_backoff_seconds:
        raise bad_value(
            f"{path}: podMaxBackoffSeconds", whole.pod_max_backoff_seconds,
            f"at least podInitialBackoffSeconds, {whole.pod_initial_backoff_seconds}",
        )  # fmt: skip
    for number, extender in enumerate(whole.extenders):
        if extender.prioritize_verb and extender.weight <= 0:
            raise bad_value(f"{path}: extenders[{number}].weight", extender.weight, "a whole number from 1")
    if sum(bool(each.bind_verb) for each in whole.extenders) > 1:
        raise UserError(f"{path}: extenders: more than one has a bindVerb")
    return msgspec.structs.replace(whole, profiles=profiles)


def _outside(whole: wire.KubeSchedulerConfiguration) -> Iterator[str]:
    """Name what of the file concerns all profiles and is not modelled."""
    if whole.extenders:
        yield f"{len(whole.extenders)} extender" + "s" * (len(whole.extenders) > 1)


# ---- a profile -------------------------------------------------------------------------------------------------------


def _read(path: str, whole: wire.KubeSchedulerConfiguration, number: int) -> tuple[KubeSchedulerConfig, list[str]]:  # noqa: C901
    """Return how a profile scores, and what of it is not modelled."""
    profile, where = whole.profiles[number], f"{path}: profiles[{number}]"
    plugins = EnabledPlugins(profile.plugins, f"{where}.plugins")
    unmodelled = list(plugins.unmodelled())
    given: dict[str, Any] = {}
    for position, each in enumerate(profile.plugin_config):
        at = f"{where}.pluginConfig[{position}]"
        if each.name in given:
            raise bad_value(at, each.name, "a plugin that has no other arguments here")
        given[each.name] = kind = wire.ARGS.get(each.name)
        if kind is None:
            continue
        args = convert(each.args, kind, f"{at}.args")
        if (args.api_version or API_VERSION, args.kind or f"{each.name}Args") != (API_VERSION, f"{each.name}Args"):
            raise bad_value(f"{at}.args", f"{args.api_version}, {args.kind}", f"{API_VERSION}, {each.name}Args")
        given[each.name] = args
    fit, spread = given.get("NodeResourcesFit"), given.get("PodTopologySpread")
    affinity, balanced = given.get("InterPodAffinity"), given.get("NodeResourcesBalancedAllocation")
    settings: dict[str, Any] = {}
    if fit is not None:
        settings |= _strategy(fit.scoring_strategy, f"{where}: NodeResourcesFit.scoringStrategy")
        unmodelled += ["NodeResourcesFit: ignored resources"] * bool(
            fit.ignored_resources or fit.ignored_resource_groups
        )
    if balanced is not None and balanced.resources:
        settings["balanced_resources"] = _balanced(balanced.resources, f"{where}: NodeResourcesBalancedAllocation")
    if affinity is not None:
        settings["hard_pod_affinity_weight"] = affinity.hard_pod_affinity_weight
        settings["ignore_preferred_terms_of_existing_pods"] = affinity.ignore_preferred_terms_of_existing_pods
    if spread is not None:
        settings |= _spreading(spread, f"{where}: PodTopologySpread", unmodelled)
    if (of_nodes := given.get("NodeAffinity")) is not None and of_nodes.added_affinity:
        unmodelled.append("NodeAffinity: addedAffinity")
    if (preemption := given.get("DefaultPreemption")) is not None:
        counts = preemption.min_candidate_nodes_percentage, preemption.min_candidate_nodes_absolute
        if not any(counts):
            raise bad_value(
                f"{where}: DefaultPreemption: minCandidateNodesPercentage, -Absolute", counts, "one above 0"
            )
        unmodelled += ["DefaultPreemption: how many candidate nodes"] * (counts != (10, 100))
    if (volumes := given.get("VolumeBinding")) is not None and volumes.shape:
        settings["storage_shape"] = _points(volumes.shape, f"{where}: VolumeBinding.shape")
    share = profile.percentage_of_nodes_to_score
    backoff_s = whole.pod_initial_backoff_seconds, whole.pod_max_backoff_seconds
    return KubeSchedulerConfig(
        weights=plugins.weights(),
        backoff_s=None if backoff_s == BACKOFF_S else backoff_s,
        percentage_of_nodes_to_score=whole.percentage_of_nodes_to_score if share is None else share,
        **settings,
    ), unmodelled


def _strategy(given: wire.ScoringStrategy | None, where: str) -> dict[str, Any]:
    """Return the settings of NodeResourcesFit's scoring."""
    if given is None:
        return {}
    if given.type not in STRATEGIES:
        raise bad_value(f"{where}.type", given.type, f"one of {', '.join(STRATEGIES)}")
    found: dict[str, Any] = {"strategy": given.type}
    if given.resources:
        found["resources"] = tuple((each.name, each.weight or 1) for each in given.resources)
    ratio = given.requested_to_capacity_ratio
    if (ratio is not None) != (given.type == "RequestedToCapacityRatio"):
        raise bad_value(
            f"{where}.requestedToCapacityRatio",
            "none" if ratio is None else "given",
            "it with type RequestedToCapacityRatio alone",
        )
    if ratio is not None:
        found["shape"] = _points(ratio.shape, f"{where}.requestedToCapacityRatio.shape")
    return found


def _points(shape: Sequence[wire.ShapePoint], where: str) -> tuple[tuple[int, int], ...]:
    """Return the points of a line: utilisation in per cent, score from 0 to 10."""
    points = tuple((each.utilization, each.score) for each in shape)
    if not points or any(right[0] <= left[0] for left, right in pairwise(points)):
        raise bad_value(where, points, "points in rising order of utilization")
    return points


def _balanced(given: Sequence[wire.ResourceSpec], where: str) -> tuple[str, ...]:
    names = tuple(each.name for each in given)
    if len(set(names)) < len(names):
        raise bad_value(f"{where}.resources", ", ".join(names), "each resource once")
    if any(each.weight not in (0, 1) for each in given):
        raise bad_value(f"{where}.resources: weight", [each.weight for each in given], "1 for each")
    return names


def _spreading(given: wire.PodTopologySpreadArgs, where: str, unmodelled: list[str]) -> dict[str, Any]:
    """Return the settings of PodTopologySpread's defaults for pods that bring no constraints."""
    constraints = given.default_constraints
    if given.defaulting_type not in ("System", "List") or (given.defaulting_type == "System" and constraints):
        raise bad_value(f"{where}.defaultingType", given.defaulting_type, "System, or List with defaultConstraints")
    for number, each in enumerate(constraints):
        if each.when_unsatisfiable not in ("DoNotSchedule", "ScheduleAnyway") or each.label_selector is not None:
            raise bad_value(
                f"{where}.defaultConstraints[{number}]", each.when_unsatisfiable,
                "whenUnsatisfiable: DoNotSchedule or ScheduleAnyway, without a labelSelector",
            )  # fmt: skip
    if given.defaulting_type == "System":
        return {}
    soft = [each for each in constraints if each.when_unsatisfiable == "ScheduleAnyway"]
    if len(soft) < len(constraints):
        unmodelled.append("PodTopologySpread: default constraints that must hold")
    if any(each.node_affinity_policy or each.node_taints_policy or each.match_label_keys for each in soft):
        unmodelled.append("PodTopologySpread: policies and matchLabelKeys of default constraints")
    return {"default_spreading": tuple((each.max_skew, each.topology_key) for each in soft), "system_spreading": False}
