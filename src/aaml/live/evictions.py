"""Which pods may be evicted now by the PodDisruptionBudgets: the rules of the eviction API, evaluated beforehand."""

from collections.abc import Iterable

from aaml.cluster.objects import DisruptionBudget, Pod
from aaml.cluster.selectors import matches_labels


class Evictions:
    """The evictions that budgets allow at one moment. `leaving` are pods that are being evicted; they count as gone."""

    def __init__(self, budgets: Iterable[DisruptionBudget], leaving: Iterable[Pod] = ()) -> None:
        self._by_namespace: dict[str, list[DisruptionBudget]] = {}
        self._left: dict[tuple[str, str], int] = {}
        for each in budgets:
            self._by_namespace.setdefault(each.namespace, []).append(each)
            self._left[each.namespace, each.name] = each.disruptions_allowed
        self.take(leaving)

    def forbidden(self, pod: Pod) -> str:
        """Return what forbids to evict a pod now, "" where nothing does."""
        mine = self._budgets(pod)
        if len(mine) > 1:
            return f"several budgets ({', '.join(each.name for each in mine)})"
        return next((f"budget {each.name}" for each in mine if self._left[each.namespace, each.name] < 1), "")

    def take(self, pods: Iterable[Pod]) -> None:
        """Count pods as evicted."""
        for pod in pods:
            for each in self._budgets(pod):
                if pod.name not in each.disrupted:
                    self._left[each.namespace, each.name] -= 1

    def _budgets(self, pod: Pod) -> list[DisruptionBudget]:
        there = self._by_namespace.get(pod.namespace, ())
        return [each for each in there if matches_labels(each.selector, pod.labels)]
