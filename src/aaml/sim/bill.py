"""BillTask: an episode in which an autoscaler provisions the nodes, and what they cost is what counts."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from types import MappingProxyType

import numpy as np

from aaml.cluster.objects import ARCH_LABEL, CAPACITY_TYPE_LABEL, OS_LABEL, Pod
from aaml.errors import bad_value
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.catalogue_file import openb_catalogue, shipped_catalogue
from aaml.nodes.cluster_autoscaler import ClusterAutoscaler
from aaml.nodes.commitments import NOTHING_COMMITTED, Commitments
from aaml.nodes.descheduler import HighNodeUtilization
from aaml.nodes.karpenter import Karpenter
from aaml.nodes.learned import LearnedNodes
from aaml.nodes.node_policy import NodePolicy, Promise
from aaml.nodes.ports import Autoscaler
from aaml.nodes.requirements import Labels, Values, plain_labels
from aaml.nodes.settings import (
    ClusterAutoscalerSettings,
    HighNodeUtilizationSettings,
    KarpenterSettings,
    NodeTimes,
    Prices,
)
from aaml.sim.cluster import SimCluster
from aaml.sim.metrics import BILLED
from aaml.sim.supply import CONSOLIDATABLE_S, NodeSupply
from aaml.sim.task import Nodes, Task
from aaml.workload.churn import OpenbArrivals
from aaml.workload.model import Workload
from aaml.workload.rhythm import Rhythm

_SUPPLY_STREAM, _CATALOGUE_STREAM = 1, 2  # beside the pods' own, so that a change of one leaves the others alone
_EXPECTED_SEEDS, _EXPECTED_PODS = range(20_231, 20_239), 250
_WORKLOADS = 4  # that a process keeps
_NO_LABELS: Labels = MappingProxyType({})
_DRAWN_BY = (ARCH_LABEL, OS_LABEL)  # what is sold by these labels is drawn from
_KEPT = 0.7  # share of the types that an episode's catalogue has
_OF_FAMILY, _OF_TYPE = 0.1, 0.03  # standard deviations of the logarithm of a price
MakeAutoscaler = Callable[[Catalogue, np.random.Generator], Autoscaler]
"""What can be provisioned, and what draws -> who provisions and terminates the nodes of an episode."""
Alone = KarpenterSettings | ClusterAutoscalerSettings | NodePolicy | MakeAutoscaler
"""One of our autoscalers by its settings, or what makes another."""


@dataclass(frozen=True)
class Descheduled:
    """The descheduler, by its settings, beside an autoscaler."""

    descheduler: HighNodeUtilizationSettings
    autoscaler: Alone


NodeAutoscaler = Alone | Descheduled
"""Who provisions and terminates nodes, with or without a descheduler beside."""

DrawPods = Callable[[int, np.random.Generator], tuple[Workload, float]]
"""About how many nodes, and what draws -> the pods of an episode, and how long it lasts in seconds."""


@dataclass(frozen=True)
class BillTask(Task):
    """Pods of a `Rhythm`, or others, on nodes that an autoscaler provisions, each episode from a catalogue of its own.

    An episode begins without a node; its number of nodes says about how many there will be on average. `catalogue` is
    what each episode's is drawn from, with other prices and without some of the types; None: `shipped`. A NodePool says
    which architectures, operating systems and capacity types are provisioned, and `PLAIN` for all other autoscalers.
    `fixed_prices`: it is taken as it is. `autoscaler` is one of ours by its settings, or a function that makes another,
    or either with a descheduler beside it (`Descheduled`). `promise`: what learned nodes promise, beside what their own
    policy does. `commitments` are paid whether they are used or not; learned nodes know of them, others do not.
    """

    rhythm: DrawPods = Rhythm()
    autoscaler: NodeAutoscaler = KarpenterSettings()
    times: NodeTimes = NodeTimes()
    prices: Prices = Prices()
    catalogue: Catalogue | None = None
    shipped: Callable[[Labels], Catalogue] = shipped_catalogue
    fixed_prices: bool = False
    carbon_g_per_kwh: tuple[float, ...] = ()
    promise: Promise = Promise()
    commitments: Commitments | None = None

    def build(
        self,
        seed: int,
        nodes: int | None = None,
        *,
        pods: int | None = None,
        trace: str | None = None,
        invariants: bool = False,
    ) -> SimCluster:
        """Return a cluster without nodes at the beginning of an episode; the same seed gives the same episode.

        Raises `UserError` for numbers that make no cluster, and for a trace.
        """
        if trace is not None:
            raise bad_value("trace", trace, f"none: {self.name} draws its own pods")
        count, _ = self.size(nodes, pods)
        if isinstance(self.rhythm, Rhythm):
            workload, until_s = _drawn(self.rhythm, count, seed)
        else:
            workload, until_s = self.rhythm(count, np.random.default_rng([seed, count]))
        most = self.pods if pods is None else pods
        if most is not None:
            workload = replace(workload, pods=tuple(islice(workload.pods, most)))
            until_s = min(until_s, workload.duration_s)
        supply = self.supply(np.random.default_rng([seed, count, _SUPPLY_STREAM]), self.drawn_catalogue(seed))
        return SimCluster((), workload, until_s=until_s, supply=supply, invariants=invariants)

    def supply(self, rng: np.random.Generator, catalogue: Catalogue) -> NodeSupply:
        """Return who provisions the nodes of an episode. Autoscalers do not look at once, but at a drawn moment."""
        return NodeSupply(
            self._autoscaler(rng, catalogue), catalogue, rng, times=self.times, prices=self.prices,
            carbon_g_per_kwh=self.carbon_g_per_kwh, commitments=self.commitments,
            consolidatable_s=self._consolidatable_s,
        )  # fmt: skip

    @property
    def _consolidatable_s(self) -> float:
        """After how long without a pod event a node may go."""
        made = self.autoscaler.autoscaler if isinstance(self.autoscaler, Descheduled) else self.autoscaler
        if isinstance(made, KarpenterSettings):
            return made.consolidate_after_s or 0.0
        if isinstance(made, ClusterAutoscalerSettings):
            return made.scale_down_unneeded_time_s
        return CONSOLIDATABLE_S

    def _autoscaler(self, rng: np.random.Generator, catalogue: Catalogue) -> Autoscaler:
        if not isinstance(self.autoscaler, Descheduled):
            return self._alone(self.autoscaler, rng, catalogue)
        beside = self._alone(self.autoscaler.autoscaler, rng, catalogue)
        settings = self.autoscaler.descheduler
        first_look_s = settings.descheduling_interval_s * float(rng.random())
        return HighNodeUtilization(settings, beside, catalogue, first_look_s)

    def _alone(self, made: Alone, rng: np.random.Generator, catalogue: Catalogue) -> Autoscaler:
        """Return an autoscaler by its settings. It does not look at once, but at a drawn moment."""
        if isinstance(made, KarpenterSettings):
            return Karpenter(made, catalogue.meeting(made.labels), made.poll_s * float(rng.random()))
        if isinstance(made, ClusterAutoscalerSettings):
            if catalogue.gpu_count.any():
                raise bad_value("autoscaler", "the Cluster Autoscaler's rule", "Karpenter, for types with GPUs")
            return ClusterAutoscaler(made, catalogue, made.scan_interval_s * float(rng.random()))
        if isinstance(made, NodePolicy):
            known = self.commitments or NOTHING_COMMITTED
            policy = replace(made, **{**self.promise.promised, **made.promised})
            return LearnedNodes(policy, catalogue, made.look_s * float(rng.random()), commitments=known)
        return made(catalogue, rng)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that all its episodes have, dollars too."""
        return (*super().metrics, *BILLED)

    @property
    def sold(self) -> Catalogue:
        """What can be provisioned before anything is drawn. Raises `UserError` where that is nothing."""
        labels = self._required(_DRAWN_BY) | self._required((CAPACITY_TYPE_LABEL,))
        return self.shipped(labels) if self.catalogue is None else self.catalogue.meeting(labels)

    def drawn_catalogue(self, seed: int) -> Catalogue:
        """Return what can be provisioned in an episode. Types and their prices do not depend on the capacity type."""
        if self.fixed_prices:
            return self.sold
        labels = self._required(_DRAWN_BY)
        base = self.shipped(labels) if self.catalogue is None else self.catalogue.meeting(labels)
        drawn = drawn_catalogue(base, np.random.default_rng([seed, _CATALOGUE_STREAM]), self._labels)
        return drawn.meeting(self._required((CAPACITY_TYPE_LABEL,)))

    @property
    def _labels(self) -> Labels:
        """What the autoscaler asks of labels."""
        made = self.autoscaler.autoscaler if isinstance(self.autoscaler, Descheduled) else self.autoscaler
        return made.labels if isinstance(made, KarpenterSettings) else plain_labels()

    def _required(self, keys: Collection[str]) -> dict[str, Values]:
        """Return what the autoscaler asks of these labels."""
        return {key: values for key, values in self._labels.items() if key in keys}

    def expected(self, trace: str | None = None) -> Sequence[Pod]:
        """Return pods of other episodes: what they teach of owners holds here for kinds of owners alone."""
        del trace
        episodes = (self.rhythm(self.nodes, np.random.default_rng(seed))[0] for seed in _EXPECTED_SEEDS)
        drawn = [
            replace(pod, uid=f"{number}-{pod.uid}")
            for number, episode in enumerate(episodes)
            for pod in islice(episode, _EXPECTED_PODS)
        ]
        return sorted(drawn, key=lambda pod: pod.created_s)


@lru_cache(maxsize=_WORKLOADS)
def _drawn(rhythm: Rhythm, count: int, seed: int) -> tuple[Workload, float]:
    """Return the pods of an episode and when it ends. A search plays each episode under many autoscalers in turn."""
    return rhythm(count, np.random.default_rng([seed, count]))


def drawn_catalogue(base: Catalogue, rng: np.random.Generator, required: Labels = _NO_LABELS) -> Catalogue:
    """Draw which types there are, and what they cost: families differ, and types within them.

    A family is what a type's name begins with, up to the first "-" or ".". Its largest type always stays. Where none of
    what is `asked` for would stay, all of that does.
    """
    families: dict[str, list[InstanceType]] = {}
    for kind in sorted(base.types, key=_on_demand):
        families.setdefault(kind.name.replace(".", "-").partition("-")[0], []).append(kind)
    left, gone = list[InstanceType](), list[InstanceType]()
    for family in sorted(families):
        factor = float(np.exp(rng.normal(0.0, _OF_FAMILY)))
        kept, noise = (
            rng.random(len(families[family])) < _KEPT,
            np.exp(rng.normal(0.0, _OF_TYPE, len(families[family]))),
        )
        kept[-1] = True
        for kind, stays, own in zip(families[family], kept.tolist(), noise.tolist(), strict=True):
            (left if stays else gone).append(_priced(kind, factor * own))
    if not any(each.meeting(required).offerings for each in left):
        left += [each for each in gone if each.meeting(required).offerings]
    return Catalogue(tuple(left))


def _on_demand(kind: InstanceType) -> tuple[float, str]:
    """Return what types are ordered by: the price on demand, or the best where there is none."""
    listed = kind.of(("on-demand",))
    return (listed if listed.offerings else kind).cheapest.price, kind.name


def _priced(kind: InstanceType, factor: float) -> InstanceType:
    return replace(kind, offerings=tuple(
        Offering(round(each.price * factor, 6), each.capacity_type, each.zone) for each in kind.offerings
    ))  # fmt: skip


def no_nodes(_count: int) -> Nodes:
    """Return the nodes that an episode begins with: none."""
    return ()


def no_draw(_nodes: Nodes, _pods: int, _rng: np.random.Generator) -> Workload:
    """Refuse to draw pods for given nodes: an episode has none at first."""
    raise AssertionError("a bill's pods are drawn by its rhythm")


_SUMMARY = "services and jobs come in waves, and an autoscaler provisions nodes for them; "
_BILL = BillTask(
    "bill", _SUMMARY + "pay as little as possible", "cost", reward="bill", nodes=20, pods_per_node=30,
    make_nodes=no_nodes, draw=no_draw, autoscaler=KarpenterSettings(consolidate_after_s=15.0),
)  # fmt: skip
BILL_TASKS = {
    task.name: task
    for task in (
        _BILL,
        replace(
            _BILL, name="bill-when-empty", summary=_SUMMARY + "only empty nodes may go",
            autoscaler=KarpenterSettings(consolidation_policy="WhenEmpty", consolidate_after_s=15.0),
        ),
        replace(
            _BILL, name="bill-cluster-autoscaler", summary=_SUMMARY + "groups of nodes grow and shrink",
            autoscaler=ClusterAutoscalerSettings(scale_down_unneeded_time_s=60.0, scale_down_delay_after_add_s=60.0),
        ),
        replace(
            _BILL, name="bill-openb",
            summary="pods of openb with their GPUs and lifetimes, and an autoscaler provisions nodes for them; "
            "pay as little as possible", rhythm=OpenbArrivals(), shipped=openb_catalogue,
        ),
    )
}  # fmt: skip
"""The tasks that are judged by what nodes cost."""
