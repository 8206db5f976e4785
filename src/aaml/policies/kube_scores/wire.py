"""KubeSchedulerConfiguration v1 (kubescheduler.config.k8s.io) as values, decoded strictly as kube-scheduler does it.

Fields are those of `k8s.io/kube-scheduler/config/v1` 1.37, ranges those of its validation. What is not in here is an
unknown field, which kube-scheduler refuses too.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
Percentage = Annotated[int, Meta(ge=0, le=100)]
ResourceWeight = Annotated[int, Meta(ge=0, le=100)]  # 0 is read as 1
MAX_SHAPE_SCORE = 10


class _Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    pass


class Plugin(_Strict):
    """A plugin by its name; a weight of 0 counts as 1."""

    name: str
    weight: Int32 = 0


class PluginSet(_Strict):
    """What an extension point runs besides, or instead of, what it runs by default."""

    enabled: list[Plugin] = []
    disabled: list[Plugin] = []


class Plugins(_Strict):
    """Extension points."""

    pre_enqueue: PluginSet = field(default_factory=PluginSet)
    queue_sort: PluginSet = field(default_factory=PluginSet)
    pre_filter: PluginSet = field(default_factory=PluginSet)
    filter: PluginSet = field(default_factory=PluginSet)
    post_filter: PluginSet = field(default_factory=PluginSet)
    pre_score: PluginSet = field(default_factory=PluginSet)
    score: PluginSet = field(default_factory=PluginSet)
    reserve: PluginSet = field(default_factory=PluginSet)
    permit: PluginSet = field(default_factory=PluginSet)
    pre_bind: PluginSet = field(default_factory=PluginSet)
    bind: PluginSet = field(default_factory=PluginSet)
    post_bind: PluginSet = field(default_factory=PluginSet)
    multi_point: PluginSet = field(default_factory=PluginSet)
    placement_generate: PluginSet = field(default_factory=PluginSet)
    placement_score: PluginSet = field(default_factory=PluginSet)


class PluginConfig(_Strict):
    """The arguments of a plugin, read by `ARGS`."""

    name: str
    args: dict[str, Any] = {}


class KubeSchedulerProfile(_Strict):
    """One scheduler, as pods name it."""

    scheduler_name: str | None = None
    percentage_of_nodes_to_score: Percentage | None = None
    plugins: Plugins = field(default_factory=Plugins)
    plugin_config: list[PluginConfig] = []


class _LeaderElection(_Strict):
    leader_elect: bool = True
    lease_duration: str = ""
    renew_deadline: str = ""
    retry_period: str = ""
    resource_lock: str = ""
    resource_name: str = ""
    resource_namespace: str = ""


class _ClientConnection(_Strict):
    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = ""
    qps: float = 0.0
    burst: Int32 = 0


class _ManagedResource(_Strict):
    name: str
    ignored_by_scheduler: bool = False


class _ExtenderTls(_Strict):
    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: str = ""
    key_data: str = ""
    ca_data: str = ""


class Extender(_Strict):
    """A service that kube-scheduler asks."""

    url_prefix: str = ""
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    bind_verb: str = ""
    enable_https: bool = field(name="enableHTTPS", default=False)
    tls_config: _ExtenderTls = field(default_factory=_ExtenderTls)
    http_timeout: str = ""
    node_cache_capable: bool = False
    managed_resources: list[_ManagedResource] = []
    ignorable: bool = False


class KubeSchedulerConfiguration(_Strict):
    """The whole file."""

    api_version: str = ""
    kind: str = ""
    parallelism: Annotated[int, Meta(ge=1, lt=2**31)] = 16
    leader_election: _LeaderElection = field(default_factory=_LeaderElection)
    client_connection: _ClientConnection = field(default_factory=_ClientConnection)
    enable_profiling: bool = True
    enable_contention_profiling: bool = True
    percentage_of_nodes_to_score: Percentage = 0
    pod_initial_backoff_seconds: Annotated[int, Meta(ge=1)] = 1
    pod_max_backoff_seconds: int = 10
    profiles: list[KubeSchedulerProfile] = []
    extenders: list[Extender] = []
    delay_cache_until_active: bool = False


# ---- arguments of plugins --------------------------------------------------------------------------------------------


class _Args(_Strict):
    api_version: str = ""
    kind: str = ""


class ResourceSpec(_Strict):
    """A resource and how much it counts; 0 is read as 1."""

    name: str
    weight: ResourceWeight = 0


class ShapePoint(_Strict):
    """A point of the line of RequestedToCapacityRatio: per cent in use, score."""

    utilization: Percentage
    score: Annotated[int, Meta(ge=0, le=MAX_SHAPE_SCORE)]


class RatioParam(_Strict):
    """The line of RequestedToCapacityRatio."""

    shape: list[ShapePoint] = []


class ScoringStrategy(_Strict):
    """How NodeResourcesFit scores."""

    type: str = ""
    resources: list[ResourceSpec] = []
    requested_to_capacity_ratio: RatioParam | None = None


class NodeResourcesFitArgs(_Args):
    """Of NodeResourcesFit."""

    ignored_resources: list[str] = []
    ignored_resource_groups: list[str] = []
    scoring_strategy: ScoringStrategy | None = None


class NodeResourcesBalancedAllocationArgs(_Args):
    """Of NodeResourcesBalancedAllocation."""

    resources: list[ResourceSpec] = []


class InterPodAffinityArgs(_Args):
    """Of InterPodAffinity."""

    hard_pod_affinity_weight: Percentage = 1
    ignore_preferred_terms_of_existing_pods: bool = False


class SpreadConstraint(_Strict):
    """A constraint for pods that bring none."""

    max_skew: Annotated[int, Meta(ge=1, lt=2**31)]
    topology_key: Annotated[str, Meta(min_length=1)]
    when_unsatisfiable: str
    label_selector: dict[str, Any] | None = None
    min_domains: Int32 | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] = []


class PodTopologySpreadArgs(_Args):
    """Of PodTopologySpread."""

    default_constraints: list[SpreadConstraint] = []
    defaulting_type: str = "System"


class DefaultPreemptionArgs(_Args):
    """Of DefaultPreemption."""

    min_candidate_nodes_percentage: Percentage = 10
    min_candidate_nodes_absolute: Annotated[int, Meta(ge=0, lt=2**31)] = 100


class NodeAffinityArgs(_Args):
    """Of NodeAffinity."""

    added_affinity: dict[str, Any] | None = None


class VolumeBindingArgs(_Args):
    """Of VolumeBinding."""

    bind_timeout_seconds: Annotated[int, Meta(ge=0)] = 600
    shape: list[ShapePoint] = []


class DynamicResourcesArgs(_Args):
    """Of DynamicResources."""

    filter_timeout: str = ""
    binding_timeout: str = ""


ARGS: dict[str, type[_Args]] = {
    kind.__name__.removesuffix("Args"): kind
    for kind in (
        NodeResourcesFitArgs, NodeResourcesBalancedAllocationArgs, InterPodAffinityArgs, PodTopologySpreadArgs,
        DefaultPreemptionArgs, NodeAffinityArgs, VolumeBindingArgs, DynamicResourcesArgs,
    )
}  # fmt: skip
"""By the plugin's name."""
