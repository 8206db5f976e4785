"""What can be set about autoscalers and the descheduler, under their own names, and about nodes' delays and prices."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from aaml.cluster.objects import TYPE_LABEL, Requirement
from aaml.errors import bad_value
from aaml.nodes.requirements import PLAIN, Labels, merged, only, required
from aaml.settings import Count, Fraction, Natural, NotNegative, Positive, Settings

ConsolidationPolicy = Literal["WhenEmptyOrUnderutilized", "WhenEmpty", "Balanced"]
Budget = Annotated[str, Meta(pattern=r"^((100|[0-9]{1,2})%|[0-9]+)$")]
Threshold = Annotated[str, Meta(pattern=r"^(cpu|memory|pods)=(100|[0-9]{1,2}(\.[0-9]+)?)$")]


@dataclass(frozen=True)
class KarpenterSettings(Settings):
    """A NodePool's disruption settings, and the flags of its batches, under Karpenter's names; 1.15's defaults.

    Its constants are settings too, because they are what an episode of minutes is short against.
    """

    consolidation_policy: ConsolidationPolicy = "WhenEmptyOrUnderutilized"
    """which nodes may be removed: only empty ones, or underutilized ones too; Balanced: these if it saves enough"""
    consolidate_after_s: NotNegative | None = 0.0
    """seconds without a pod event on a node before it may be removed; none: never"""
    budgets: tuple[Budget, ...] = ("10%",)
    """how many nodes may be disrupted at once: numbers or percentages; the smallest counts"""
    batch_idle_duration_s: Positive = 1.0
    """a batch ends after so many seconds without another unschedulable pod"""
    batch_max_duration_s: Positive = 10.0
    """a batch ends after so many seconds at the latest"""
    instance_types: tuple[str, ...] = ()
    """names of the instance types that may be provisioned; all types when empty"""
    requirements: tuple[Requirement, ...] = PLAIN
    """what types and offerings may be provisioned by their labels: all that meet every requirement"""
    spot_to_spot_consolidation: bool = False
    """whether spot nodes may be replaced by spot nodes"""
    poll_s: Positive = 10.0
    """seconds between two searches for nodes to disrupt"""
    validation_s: NotNegative = 15.0
    """seconds between a disruption command and its validation"""

    @property
    def labels(self) -> Labels:
        """What labels nodes that are provisioned may have."""
        named = {TYPE_LABEL: only(*self.instance_types)} if self.instance_types else {}
        return merged(required(self.requirements), named)


@dataclass(frozen=True)
class ClusterAutoscalerSettings(Settings):
    """The Cluster Autoscaler's flags under its names, with its defaults."""

    expander: Literal["least-waste", "price"] = "least-waste"
    """expander: the node group that wastes least, or the cheapest"""
    scan_interval_s: Positive = 10.0
    """seconds between two scans of the cluster"""
    scale_down_utilization_threshold: Fraction = 0.5
    """a node may be removed below this share of requested CPU and memory"""
    scale_down_unneeded_time_s: NotNegative = 600.0
    """seconds that a node must have been below it"""
    scale_down_delay_after_add_s: NotNegative = 600.0
    """seconds after a scale-up before any node is removed"""
    max_empty_bulk_delete: Count = 10
    """empty nodes that are removed at once, at most"""
    max_nodes_total: Count = 1000
    """most nodes of the cluster"""


@dataclass(frozen=True)
class HighNodeUtilizationSettings(Settings):
    """What the descheduler's plugin HighNodeUtilization and its default evictor take, under their names (0.36).

    Thresholds are those of its documentation's example, the interval that of its CronJob; all else are its defaults.
    Raises `UserError` for no threshold at all.
    """

    thresholds: tuple[Threshold, ...] = ("cpu=20", "memory=20", "pods=20")
    """percentages of what a node offers: pods of nodes are evicted of which all requests are at or below these"""
    number_of_nodes: Natural = 0
    """nothing is evicted unless more nodes than this are below the thresholds"""
    eviction_modes: tuple[Literal["OnlyThresholdingResources"], ...] = ()
    """OnlyThresholdingResources: only pods that request something that has a threshold are evicted"""
    no_eviction_policy: Literal["Preferred", "Mandatory"] = "Preferred"
    """Mandatory: pods marked do-not-disrupt stay, as if they had its own annotation prefer-no-eviction too"""
    max_no_of_pods_to_evict_per_node: Natural | None = None
    """most pods that are evicted from a node in a round; none: no limit"""
    max_no_of_pods_to_evict_total: Natural | None = None
    """most pods that are evicted in a round; none: no limit"""
    descheduling_interval_s: Positive = 120.0
    """seconds between two rounds"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.thresholds:
            raise bad_value("thresholds", "none", "at least one of cpu=N, memory=N and pods=N")

    @property
    def percent(self) -> Mapping[str, float]:
        """The thresholds by resource."""
        return {name: float(value) for name, _, value in (each.partition("=") for each in self.thresholds)}


@dataclass(frozen=True)
class NodeTimes(Settings):
    """How long nodes take to come and to go, and a scheduler to try a pod."""

    registration_delay_s: NotNegative = 20.0
    """seconds from the launch of a node until it is registered"""
    initialization_s: NotNegative = 0.8
    """seconds from then until it is initialized and takes pods, at least"""
    initialization_spread_s: NotNegative = 1.2
    """so many seconds more at most, drawn uniformly"""
    join_step_s: NotNegative = 0.0
    """seconds between three steps in which a node joins: at each, kube-scheduler tries pods; 0: it joins in one"""
    min_drain_s: NotNegative = 5.0
    """seconds from the deletion of a node until it is gone, at least"""
    grace_s: NotNegative = 0.0
    """seconds from the eviction of a pod until it has stopped"""
    recreate_s: NotNegative = 1.2
    """seconds from then until its replacement is pending"""
    retry_s: Positive = 5.0
    """seconds between two tries of an eviction that a PodDisruptionBudget refuses"""
    pod_event_s: NotNegative = 10.0
    """further pod events of a node within so many seconds do not count"""
    failed_try_s: NotNegative = 0.0
    """seconds that a try takes which finds no node"""


@dataclass(frozen=True)
class Prices(Settings):
    """What waiting and evictions count beside the bill, in dollars."""

    wait_target_s: NotNegative = 30.0
    """seconds that a pod may wait at no cost"""
    wait_per_hour: NotNegative = 1.0
    """dollars for an hour that a pod waits beyond that"""
    eviction: NotNegative = 0.001
    """dollars for an eviction"""
