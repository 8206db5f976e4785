"""PodDisruptionBudgets: how many pods of a kind may be evicted at once, from what runs and what waits."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aaml.cluster.objects import Pod
from aaml.errors import bad_value


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

    def allowed(self, available: int, expected: int) -> int:
        """Return how many more may be evicted, of `expected` pods of which so many are available."""
        if self.max_unavailable is not None:
            wanted = expected - _scaled(self.max_unavailable, expected)
        else:
            wanted = _scaled(self.min_available or 0, expected)
        return max(0, available - max(0, wanted))


def _scaled(amount: int | str, whole: int) -> int:
    """Return a number, or that share of `whole`, rounded up as Kubernetes does."""
    return math.ceil(int(amount[:-1]) * whole / 100) if isinstance(amount, str) else amount


def allowed_evictions(budgets: Sequence[PodBudget], pod: Pod, running: Iterable[Pod], missing: Iterable[Pod]) -> float:
    """Return how many pods like this one may be evicted now; 0 where several budgets protect it, as in Kubernetes.

    `running` are the pods that are on a node and stay there, `missing` those that stop or wait.
    """
    mine = [budget for budget in budgets if budget.selects(pod)]
    if len(mine) != 1:
        return 0 if mine else math.inf
    available = sum(map(mine[0].selects, running))
    return mine[0].allowed(available, available + sum(map(mine[0].selects, missing)))


def blocked_pods(budgets: Sequence[PodBudget], running: Iterable[Pod], missing: Iterable[Pod]) -> frozenset[str]:
    """Return the uids of the running pods that may not be evicted now."""
    running, missing = list(running), list(missing)
    return frozenset(pod.uid for pod in running if allowed_evictions(budgets, pod, running, missing) < 1)


def stuck_pods(budgets: Sequence[PodBudget], running: Iterable[Pod]) -> frozenset[str]:
    """Return the uids of the running pods that may never be evicted: a budget says so, or several protect them."""
    found = ((pod, [budget for budget in budgets if budget.selects(pod)]) for pod in running)
    return frozenset(pod.uid for pod, mine in found if len(mine) > 1 or any(each.lets_none_go for each in mine))
