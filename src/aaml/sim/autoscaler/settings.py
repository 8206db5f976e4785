"""What can be set about autoscalers: Karpenter's NodePool and flags, the Cluster Autoscaler's flags, nodes' delays."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from aaml.settings import Count, Fraction, NotNegative, Positive, Settings

ConsolidationPolicy = Literal["WhenEmptyOrUnderutilized", "WhenEmpty", "Balanced"]
Budget = Annotated[str, Meta(pattern=r"^((100|[0-9]{1,2})%|[0-9]+)$")]


@dataclass(frozen=True)
class KarpenterSettings(Settings):
    """A NodePool's disruption settings, and the flags of its batches, under Karpenter's names; 1.15's defaults.

    Its constants are settings too, because they are what an episode of minutes is short against.
    """

    consolidation_policy: ConsolidationPolicy = "WhenEmptyOrUnderutilized"
    """which nodes may go: empty ones alone, or others too; Balanced: others if it saves enough"""
    consolidate_after_s: NotNegative | None = 0.0
    """seconds without a bind or an end of a pod before a node may go; none: no node ever does"""
    budgets: tuple[Budget, ...] = ("10%",)
    """how many nodes may be on their way out at once: numbers or percentages, of which the least counts"""
    batch_idle_duration_s: Positive = 1.0
    """seconds without a further unschedulable pod that end a batch"""
    batch_max_duration_s: Positive = 10.0
    """seconds after which a batch ends all the same"""
    spot_to_spot_consolidation: bool = False
    """whether spot nodes may be replaced by spot nodes"""
    poll_s: Positive = 10.0
    """seconds between two looks for nodes that may go"""
    validation_s: NotNegative = 15.0
    """seconds after which a plan is looked at once more before it is carried out"""


@dataclass(frozen=True)
class ClusterAutoscalerSettings(Settings):
    """The Cluster Autoscaler's flags under its names, with its defaults."""

    expander: Literal["least-waste", "price"] = "least-waste"
    """which group of nodes grows: the one that leaves the least unused, or the cheapest"""
    scan_interval_s: Positive = 10.0
    """seconds between two looks at the cluster"""
    scale_down_utilization_threshold: Fraction = 0.5
    """share of CPU and of memory requested below which a node may go"""
    scale_down_unneeded_time_s: NotNegative = 600.0
    """seconds for which a node must have been below it"""
    scale_down_delay_after_add_s: NotNegative = 600.0
    """seconds after the cluster has grown before any node goes"""
    max_empty_bulk_delete: Count = 10
    """empty nodes that go at once"""
    max_nodes_total: Count = 1000
    """nodes beyond which it does not grow"""


@dataclass(frozen=True)
class NodeTimes(Settings):
    """How long nodes take to come and to go."""

    registration_delay_s: NotNegative = 20.0
    """seconds from the purchase until a node has joined the cluster"""
    initialization_s: NotNegative = 0.8
    """seconds from then until it takes pods, at least"""
    initialization_spread_s: NotNegative = 1.2
    """and at most so many more, drawn evenly"""
    min_drain_s: NotNegative = 5.0
    """seconds that a node is kept after it was told to go, at least"""
    grace_s: NotNegative = 0.0
    """seconds that a pod takes to stop once it is evicted"""
    recreate_s: NotNegative = 1.2
    """seconds from then until its owner's next pod waits"""
    retry_s: Positive = 5.0
    """seconds after which an eviction is tried again that a disruption budget has refused"""
    pod_event_s: NotNegative = 10.0
    """seconds within which further pod events of a node do not count"""


@dataclass(frozen=True)
class Prices(Settings):
    """What waiting and evictions count beside the bill, in dollars."""

    wait_target_s: NotNegative = 30.0
    """seconds that a pod may wait for nothing"""
    wait_per_hour: NotNegative = 1.0
    """dollars for an hour that a pod waits beyond that"""
    eviction: NotNegative = 0.001
    """dollars for an eviction"""
