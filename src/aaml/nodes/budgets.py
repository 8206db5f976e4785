"""PodDisruptionBudgets: how many pods of a kind may be evicted at once, from what runs and what waits."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from aaml.cluster.kernels import columns, inlined, interpreted
from aaml.cluster.objects import Pod
from aaml.errors import bad_value

LIMIT = columns(("unavailable", "amount", "percent"))
"""Of a budget: whether `amount` says how many pods may be unavailable, not how many must be available, and whether it
is a percentage."""
NOBODY, SEVERAL = -1, -2
"""In place of the number of the budget that protects a pod: there is none, or there are several."""


@inlined
def evictable(limit: Any, available: int, expected: int) -> int:
    """Return how many more of `expected` pods may be evicted, of which so many are available; `limit` [LIMIT].

    A share is rounded up, as Kubernetes does.
    """
    wanted = limit[LIMIT.amount]
    if limit[LIMIT.percent]:
        wanted = int(np.ceil(wanted * expected / 100))
    if limit[LIMIT.unavailable]:
        wanted = expected - wanted
    left: int = max(0, available - max(0, wanted))
    return left


@dataclass(frozen=True)
class PodBudget:
    """A PodDisruptionBudget over the pods of a namespace that carry these labels.

    One of `max_unavailable` and `min_available` is given, as a number or "30%". Pods that wait, or are stopping, are
    unavailable. Raises `UserError` for both, or none.
    """

    labels: Mapping[str, str] = field(hash=False)
    max_unavailable: int | str | None = None
    min_available: int | str | None = None
    namespace: str = "default"

    def __post_init__(self) -> None:
        if (self.max_unavailable is None) == (self.min_available is None):
            accepted = "max_unavailable or min_available, and not both"
            raise bad_value("disruption budget", (self.max_unavailable, self.min_available), accepted)

    def selects(self, pod: Pod) -> bool:
        """Whether it protects a pod."""
        return pod.namespace == self.namespace and all(pod.labels.get(key) == each for key, each in self.labels.items())

    @property
    def lets_none_go(self) -> bool:
        """Whether it says that no pod may ever be evicted (Karpenter's utils/pdb, isFullyBlocking)."""
        return self.max_unavailable in (0, "0%") or self.min_available == "100%"

    @cached_property
    def limit(self) -> tuple[int, int, int]:
        """[LIMIT], as rules read it."""
        amount = self.min_available if self.max_unavailable is None else self.max_unavailable
        percent = isinstance(amount, str)
        return self.max_unavailable is not None, int(str(amount).removesuffix("%")), percent

    def allowed(self, available: int, expected: int) -> int:
        """Return how many more may be evicted, of `expected` pods of which so many are available."""
        return int(interpreted(evictable)(self.limit, available, expected))


def protector(budgets: Sequence[PodBudget], pod: Pod) -> int:
    """Return the number of the budget that protects a pod, `NOBODY` or `SEVERAL`."""
    mine = [number for number, budget in enumerate(budgets) if budget.selects(pod)]
    return NOBODY if not mine else mine[0] if len(mine) == 1 else SEVERAL


def is_stuck(budgets: Sequence[PodBudget], pod: Pod) -> bool:
    """Whether a pod may never be evicted: a budget says so, or several protect it."""
    return sum(budget.selects(pod) for budget in budgets) > 1 or any(
        budget.lets_none_go and budget.selects(pod) for budget in budgets
    )


def allowed_evictions(budgets: Sequence[PodBudget], pod: Pod, running: Iterable[Pod], missing: Iterable[Pod]) -> float:
    """Return how many pods like this one may be evicted now; 0 where several budgets protect it, as in Kubernetes.

    `running` are the pods that are on a node and stay there, `missing` those that stop or wait.
    """
    number = protector(budgets, pod)
    if number < 0:
        return math.inf if number == NOBODY else 0
    return _left(budgets[number], running, missing)


def _left(budget: PodBudget, running: Iterable[Pod], missing: Iterable[Pod]) -> int:
    """Return how many more of its pods a budget lets go."""
    available = sum(map(budget.selects, running))
    return budget.allowed(available, available + sum(map(budget.selects, missing)))


def blocked_pods(budgets: Sequence[PodBudget], running: Iterable[Pod], missing: Iterable[Pod]) -> frozenset[str]:
    """Return the uids of the running pods that may not be evicted now."""
    running, missing = list(running), list(missing)
    numbers = [protector(budgets, pod) for pod in running]
    full = {each for each in set(numbers) if each >= 0 and _left(budgets[each], running, missing) < 1}
    return frozenset(pod.uid for pod, each in zip(running, numbers, strict=True) if each == SEVERAL or each in full)


def stuck_pods(budgets: Sequence[PodBudget], running: Iterable[Pod]) -> frozenset[str]:
    """Return the uids of the running pods that may never be evicted."""
    return frozenset(pod.uid for pod in running if is_stuck(budgets, pod))
