"""SupplyPlan: who buys and gives back an episode's nodes, as arrays for compiled code."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.cluster.state import PODS_COLUMN, ClusterState
from aaml.episodes.ports import Supply
from aaml.episodes.refusals import check_supply
from aaml.nodes import cluster_autoscaler_rules, karpenter_rules, learned_rules
from aaml.nodes.arrays import Sold
from aaml.nodes.budgets import LIMIT, is_stuck, protector
from aaml.nodes.catalogue import Catalogue, InstanceType
from aaml.nodes.cluster_autoscaler import ClusterAutoscaler, scan_terms
from aaml.nodes.commitments import NOTHING_COMMITTED, Book
from aaml.nodes.committed import book_of
from aaml.nodes.descheduler import TRAITS, HighNodeUtilization, round_terms, traits_of
from aaml.nodes.karpenter import Karpenter, budgets_of, terms_of
from aaml.nodes.learned import LearnedNodes
from aaml.nodes.meter import Meter, billed, charged
from aaml.nodes.node_policy import NodePolicy
from aaml.nodes.rows import TRAIT
from aaml.nodes.settings import ClusterAutoscalerSettings, HighNodeUtilizationSettings, KarpenterSettings
from aaml.nodes.successors import LETTERS, begins_anew, chooser, drawn, is_made_again, is_next_late, node_name
from aaml.workload.model import Workload

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
_RANKS = [sorted(LETTERS).index(letter) for letter in LETTERS]


@dataclass(frozen=True, eq=False)
class SupplyPlan:
    """K types, R resources, T pods.

    ===========  =============  ====================================================================================
    offers       int64 [K, R]   what pods can have of each type, in the columns of the plan's requests
    prices       float64 [OFFER, K] columns of `aaml.nodes.rows.OFFER`
    pods         int64 [TRAIT, T] columns of `TRAIT`
    kept_s       float64 [T]    for how long on a node a pod may not be evicted, inf: for good
    budgets      int64 [2, U]   a number of nodes, and whether it is a percentage
    protected    int32 [T]      number of the budget that protects a pod, or `NOBODY` or `SEVERAL`
    selected     bool [Q, T]    of which pods each budget is
    limits       int64 [Q, 3]   budgets of pods, in the columns of `LIMIT`
    stuck        bool [T]       which pods may never be evicted
    alike        int64 [K, 2]   in how many ways each type costs what a launch pays; which of them are spot, as bits
    devices      int64 [K, G]   thousandths of each GPU of a type
    models       str [K]        the model of a type's GPUs
    may          bool [T, K]    which types a pod's GPU models allow; [0, 0] where none names any
    ===========  =============  ====================================================================================

    `catalogue`: what may be bought, which may be less than what `supply` knows. `karpenter`, `policy`, `scans`: what
    whoever provisions is configured to do; the latter two are None for Karpenter. `descheduler`: what one beside it is,
    from `first_round_s` on. `book`: commitments, over a pool for each type.
    """

    supply: Supply
    catalogue: Catalogue
    karpenter: KarpenterSettings
    policy: NodePolicy | None
    scans: ClusterAutoscalerSettings | None
    descheduler: HighNodeUtilizationSettings | None
    first_look_s: float
    first_round_s: float
    offers: IntArray
    prices: FloatArray
    pods: IntArray
    kept_s: FloatArray
    budgets: IntArray
    protected: npt.NDArray[np.int32]
    selected: npt.NDArray[np.bool_]
    limits: IntArray
    stuck: npt.NDArray[np.bool_]
    alike: IntArray
    devices: IntArray
    models: tuple[str, ...]
    may: npt.NDArray[np.bool_]
    book: Book

    @classmethod
    def of(cls, supply: Supply, state: ClusterState, workload: Workload) -> "SupplyPlan":
        """Take over who buys nodes, at the beginning. Raises `UserError` for what compiled episodes do not know."""
        buyer, beside = check_supply(supply, workload.pods), supply.autoscaler
        descheduler = beside.settings if isinstance(beside, HighNodeUtilization) else None
        first_round_s = beside.first_look_s if isinstance(beside, HighNodeUtilization) else inf
        karpenter = buyer.settings if isinstance(buyer, Karpenter) else KarpenterSettings(budgets=())
        policy = buyer.policy if isinstance(buyer, LearnedNodes) else None
        scans = buyer.settings if isinstance(buyer, ClusterAutoscaler) else None
        catalogue = buyer.catalogue
        ranks = {uid: rank for rank, uid in enumerate(sorted(pod.uid for pod in workload.pods))}
        pods = np.zeros((len(TRAIT), len(workload.pods)), np.int64)
        pods[[TRAIT.rank, TRAIT.owned, TRAIT.anew, TRAIT.next_late]] = np.array(
            [(ranks[pod.uid], is_made_again(pod), begins_anew(pod), is_next_late(pod)) for pod in workload.pods]
        ).T
        if descheduler is not None:
            pods[[*TRAITS]] = traits_of(workload.pods, descheduler)
        offers = np.zeros((len(catalogue), len(state.resources)), dtype=np.int64)
        for number, kind in enumerate(catalogue.types):
            for name, amount in kind.allocatable:
                offers[number, state.resource_index[name]] = amount
        sold = Sold.of(catalogue, 0.0 if policy is None else policy.size_power)
        models = tuple(kind.gpu_model for kind in catalogue.types)
        may = np.ones((0, 0), np.bool_)
        if any(pod.gpu.models for pod in workload.pods):
            may = np.array([[not pod.gpu.models or name in pod.gpu.models for name in models] for pod in workload.pods])
        return cls(
            supply, catalogue, karpenter, policy, scans, descheduler, buyer.first_look_s, first_round_s, offers,
            sold.offers, pods,
            np.array([pod.do_not_disrupt_s if pod.do_not_disrupt else 0.0 for pod in workload.pods]),
            budgets_of(karpenter), np.array([protector(supply.budgets, pod) for pod in workload.pods], np.int32),
            np.array([[each.selects(pod) for pod in workload.pods] for each in supply.budgets], np.bool_),
            np.array([budget.limit for budget in supply.budgets], np.int64).reshape(-1, len(LIMIT)),
            np.array([is_stuck(supply.budgets, pod) for pod in workload.pods], np.bool_),
            np.array([_alike(kind) for kind in catalogue.types], np.int64), sold.devices, models, may,
            book_of(supply.meter.commitments, catalogue.types),
        )  # fmt: skip

    @property
    def rule(self) -> Any:
        """The compiled rule of who provisions nodes."""
        if self.scans is not None:
            return cluster_autoscaler_rules.decide
        return karpenter_rules.decide if self.policy is None else learned_rules.decide

    @property
    def corners(self) -> FloatArray:
        """float64 [V, 2], of the fluid bound."""
        return self.supply.meter.fluid.corners

    @property
    def carbon(self) -> Sequence[float]:
        """Grams of CO2 for a kWh in each hour."""
        return self.supply.meter.carbon_g_per_kwh

    @property
    def zones(self) -> set[str]:
        """The zones in which nodes may be bought."""
        return {offering.zone for kind in self.catalogue.types for offering in kind.offerings}

    def terms(self) -> dict[str, float]:
        """Return the numbers of `aaml.nodes.rows.TERMS`, but for the order of waiting pods."""
        times, prices, buyer = self.supply.times, self.supply.prices, self.supply.autoscaler
        buyer = buyer.beside if isinstance(buyer, HighNodeUtilization) else buyer
        return {
            **terms_of(self.karpenter), "kinds": len(self.offers), "corners": len(self.corners),
            "hours": len(self.supply.meter.carbon_g_per_kwh), "first_look_s": self.first_look_s,
            "registration_delay_s": times.registration_delay_s, "initialization_s": times.initialization_s,
            "min_drain_s": times.min_drain_s, "grace_s": times.grace_s, "recreate_s": times.recreate_s,
            "retry_s": times.retry_s, "join_step_s": times.join_step_s, "failed_try_s": times.failed_try_s,
            "pod_event_s": times.pod_event_s, "wait_target_s": prices.wait_target_s,
            "wait_per_hour": prices.wait_per_hour, "eviction": prices.eviction,
            "consolidatable_s": self.supply.consolidatable_s, "learned": self.policy is not None,
            **(self.policy or NodePolicy()).terms(), **scan_terms(self.scans or ClusterAutoscalerSettings()),
            "scans": self.scans is not None, "commitments": len(self.book.amounts), "steps": len(self.book.steps),
            "committed": self.book.fixed,
            "knows": isinstance(buyer, LearnedNodes) and buyer.commitments != NOTHING_COMMITTED,
            **round_terms(self.descheduler, PODS_COLUMN, self.first_round_s),
        }  # fmt: skip

    @cached_property
    def _drawn(self) -> tuple[np.random.Generator, list[int], list[int], list[float]]:
        """What draws, and what it has drawn of nodes (`draw`)."""
        return deepcopy(self.supply.rng), [], [], []

    def draw(self, count: int) -> tuple[IntArray, IntArray, FloatArray]:
        """Draw the first nodes.

        Returns by what their names are ordered, which of several ways to launch each takes, how much later it is ready.
        """
        rng, ranks, choices, spreads = self._drawn
        while len(ranks) < count:
            (letters, later_s), rank = drawn(rng, self.supply.times.initialization_spread_s), 0
            for letter in letters:
                rank = rank * len(LETTERS) + _RANKS[letter]
            ranks.append(rank)
            choices.append(chooser(node_name(letters)))
            spreads.append(later_s)
        return np.array(ranks[:count], dtype=np.int64), np.array(choices[:count], np.int64), np.array(spreads[:count])

    def billed(
        self, meter: Mapping[str, float], waits_s: FloatArray, evicted: int, now_s: float
    ) -> Mapping[str, float]:
        """Return the metrics of the bill from what ran up, of pods that have waited so long: `NodeSupply.metrics`."""
        own = self.supply.meter
        ran_up: Any = {"fluid": own.fluid, "carbon_g_per_kwh": own.carbon_g_per_kwh, **meter}
        return billed(Meter(**ran_up), charged(self.supply.prices, waits_s, evicted), evicted, now_s)


def _alike(kind: InstanceType) -> tuple[int, int]:
    """Return in how many ways a type costs what a launch pays, and which of them are spot, as bits."""
    spots = [each.capacity_type == "spot" for each in kind.launched]
    return len(spots), sum(spot << number for number, spot in enumerate(spots))
