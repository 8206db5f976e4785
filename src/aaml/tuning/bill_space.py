"""What is searched for a bill: kube-scheduler's configuration and the NodePool together, and how bills are played."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar, get_args

import numpy as np
import numpy.typing as npt

from aaml.cluster.quantity import CPU
from aaml.nodes.catalogue import Catalogue, InstanceType
from aaml.nodes.requirements import ANY
from aaml.nodes.settings import ConsolidationPolicy, KarpenterSettings
from aaml.policies.kube_scores import PACKING, KubeSchedulerConfig
from aaml.sim.recorded_bill import under
from aaml.sim.task import Task
from aaml.tuning.episodes import metrics_of
from aaml.tuning.space import Space

FloatArray = npt.NDArray[np.float64]
Number = TypeVar("Number", int, float)
_POLICIES: tuple[ConsolidationPolicy, ...] = get_args(ConsolidationPolicy)
_AFTER_S = (0.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0)
_PERCENTS, _USUAL_PERCENT = (5, 10, 15, 20, 30, 40, 50, 70, 100), 10
_IDLE_S = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0)
_MAX_S = (2.0, 3.0, 5.0, 7.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0, 45.0, 60.0)
_SCHEDULER_SHARE = 0.4  # of changes; the others are the NodePool's
_SLACK = 1.05  # a type of "8 cores" has a little less for pods


@dataclass(frozen=True)
class Setup:
    """A configuration of kube-scheduler beside a NodePool."""

    scheduler: KubeSchedulerConfig
    pool: KarpenterSettings


@dataclass(frozen=True)
class SetupSpace:
    """The pairs of a configuration and a NodePool, around those that one has.

    Of the NodePool: the consolidation policy, consolidateAfter, one budget, both durations of batches, and which
    instance types may be provisioned: all of `catalogue` with at least so many and at most so many cores, without some
    families. Of each label in `least_values` so many values are left at least: fewer, and Karpenter provisions nothing.
    `catalogue` has what `pool` allows.
    """

    scheduler: Space
    pool: KarpenterSettings
    catalogue: Catalogue
    least_values: Mapping[str, int] = field(default_factory=dict)

    def beginnings(self) -> list[Setup]:
        """Return where the search begins: both as they are, MostAllocated, longer batches and backoffs of a second."""
        stock = self.scheduler.start
        packing = replace(stock, weights=PACKING.weights, strategy=PACKING.strategy)
        quick = replace(packing, backoff_s=(1, 1))
        longer = replace(self.pool, batch_idle_duration_s=5.0, batch_max_duration_s=15.0)
        longest = replace(self.pool, batch_idle_duration_s=10.0, batch_max_duration_s=30.0)
        return [
            Setup(stock, self.pool), Setup(packing, self.pool), Setup(packing, replace(self.pool, budgets=("30%",))),
            Setup(packing, longer), Setup(packing, replace(longer, budgets=("30%",))),
            Setup(packing, replace(self.pool, consolidation_policy="Balanced")), Setup(quick, longest),
            Setup(quick, replace(longest, budgets=("30%",))),
        ]  # fmt: skip

    def child(self, parents: Sequence[Setup], rng: np.random.Generator) -> Setup:
        """Return a pair made of one or two, with one to three changes."""
        one, other = (parents[int(rng.integers(len(parents)))] for _ in range(2))
        if rng.random() < 0.5:
            one = replace(one, scheduler=other.scheduler)
        for _ in range(int(rng.integers(1, 4))):
            if rng.random() < _SCHEDULER_SHARE:
                one = replace(one, scheduler=self.scheduler.child([one.scheduler], rng))
            else:
                one = replace(one, pool=self._changed(one.pool, rng))
        return one

    def to_dict(self, config: Setup) -> dict[str, object]:
        """Return a pair as JSON-able values."""
        return {"scheduler": self.scheduler.to_dict(config.scheduler), "pool": asdict(config.pool)}

    def _changed(self, pool: KarpenterSettings, rng: np.random.Generator) -> KarpenterSettings:
        changes = (self._policy, self._after, self._budget, self._types, self._idle, self._most)
        return changes[int(rng.integers(len(changes)))](pool, rng)

    @staticmethod
    def _policy(pool: KarpenterSettings, rng: np.random.Generator) -> KarpenterSettings:
        return replace(pool, consolidation_policy=_POLICIES[int(rng.integers(len(_POLICIES)))])

    @staticmethod
    def _after(pool: KarpenterSettings, rng: np.random.Generator) -> KarpenterSettings:
        return replace(pool, consolidate_after_s=_beside(_AFTER_S, pool.consolidate_after_s or 0.0, rng))

    @staticmethod
    def _budget(pool: KarpenterSettings, rng: np.random.Generator) -> KarpenterSettings:
        now = int(pool.budgets[0][:-1]) if len(pool.budgets) == 1 and pool.budgets[0].endswith("%") else _USUAL_PERCENT
        return replace(pool, budgets=(f"{_beside(_PERCENTS, now, rng)}%",))

    @staticmethod
    def _idle(pool: KarpenterSettings, rng: np.random.Generator) -> KarpenterSettings:
        idle_s = _beside(_IDLE_S, pool.batch_idle_duration_s, rng)
        return replace(pool, batch_idle_duration_s=idle_s, batch_max_duration_s=max(pool.batch_max_duration_s, idle_s))

    @staticmethod
    def _most(pool: KarpenterSettings, rng: np.random.Generator) -> KarpenterSettings:
        most_s = _beside(_MAX_S, pool.batch_max_duration_s, rng)
        return replace(pool, batch_max_duration_s=max(most_s, pool.batch_idle_duration_s))

    def _types(self, pool: KarpenterSettings, rng: np.random.Generator) -> KarpenterSettings:
        """Draw which types may be provisioned: a third of the times all that the NodePool one has allows."""
        kinds = self.catalogue.types
        cores = sorted({dict(each.allocatable)[CPU] for each in kinds})
        if rng.random() < 1 / 3:
            return replace(pool, instance_types=self.pool.instance_types)
        low = cores[int(rng.integers(max(1, len(cores) // 3)))]
        high = cores[int(rng.integers(len(cores) // 2, len(cores)))]
        families = sorted({family(each.name) for each in kinds})
        dropped = families[int(rng.integers(len(families)))] if len(families) > 1 and rng.random() < 1 / 3 else ""
        chosen = [
            each for each in kinds
            if low <= dict(each.allocatable)[CPU] <= high * _SLACK and family(each.name) != dropped
        ]  # fmt: skip
        fewer = len(chosen) < len(kinds) and self._has_enough(chosen)
        return replace(pool, instance_types=tuple(each.name for each in chosen) if fewer else self.pool.instance_types)

    def _has_enough(self, kinds: Sequence[InstanceType]) -> bool:
        """Whether enough values of each label are left; not where nobody here knows which values it has."""
        if not kinds:
            return False
        found = [each.described for each in kinds]
        return all(
            len({value for labels in found for value in labels.get(key, ANY).listed}) >= least
            for key, least in self.least_values.items()
        )


def family(name: str) -> str:
    """Return the family of an instance type: what its name begins with, up to the first "-" or "."."""
    return name.replace(".", "-").partition("-")[0]


def _beside(values: Sequence[Number], now: float, rng: np.random.Generator) -> Number:
    """Return one of the values, at most two places from what holds now."""
    at = min(range(len(values)), key=lambda place: abs(values[place] - now))
    return values[int(np.clip(at + rng.choice([-2, -1, 1, 2]), 0, len(values) - 1))]


def evaluate_setups(
    task: Task, seed: int, nodes: int | None, configs: Sequence[Setup], metrics: Sequence[str]
) -> FloatArray:
    """Return [configurations, metrics] of an episode under each pair."""
    played = []
    for config in configs:
        found = metrics_of(under(task, config.pool).build(seed, nodes), config.scheduler, seed)
        played.append([found[name] for name in metrics])
    return np.array(played, dtype=np.float64)
