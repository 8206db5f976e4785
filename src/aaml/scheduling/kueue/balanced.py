"""Balanced placement: the pods of a preferred level spread evenly over as few domains as hold them.

Kueue's gate TASBalancedPlacement (pkg/cache/scheduler/tas_balanced_placement.go), alpha in 0.17 and off by default. Of
sets of domains that are equally good Kueue takes any; here the first by name is taken.
"""

from collections.abc import Callable, Sequence
from math import log2

Domain = tuple[str, ...]
_CANNOT = "TAS Balanced Placement: Cannot find optimal domain set to fit the request"
_TOO_FEW = "TAS Balanced Placement: Not enough slices to meet the threshold"
_NOT_ALL = "TAS Balanced Placement: Not all slices or leaders could be placed"


class Balance:
    """One search: `room` is how many of the `count` pods fit in each domain, of which what is too small is cleared."""

    def __init__(self, children: Callable[[Domain], Sequence[Domain]], room: dict[Domain, int], count: int) -> None:
        self._children, self.room, self._count = children, room, count

    def find(self, groups: Sequence[Sequence[Domain]], *, leaves: bool) -> dict[Domain, int] | str | None:
        """Return how many pods each domain takes, why none can be had, or None where nothing can be balanced.

        `groups` are domains of the level that is asked for, by what they are part of; all pods go to one group. Unless
        these are the `leaves`, pods are balanced over the domains below them.
        """
        threshold, needed, best = 0, 0, list[Domain]()
        for group in groups:
            found = self._greedy(group if leaves else self._below(group))
            if found is None:
                continue
            own = min(self._count // found[0], self.room[found[1]])
            if own < threshold:
                continue
            self._clear_below(group, own)
            kept = self._greedy(group)
            domains = 0 if kept is None else kept[0]
            if own > threshold or domains < needed:
                threshold, needed, best = own, domains, list(group)
        return self._spread(best, threshold, leaves=leaves) if threshold else None

    def _spread(self, group: Sequence[Domain], threshold: int, *, leaves: bool) -> dict[Domain, int] | str:
        domains = list(group)
        if not leaves:
            chosen = self._fewest(sorted(group, key=lambda each: (-self.room[each], -self._entropy(each), each)))
            if chosen is None:
                return _CANNOT
            domains = self._below(chosen)
        taken = self._fewest(domains)
        if taken is None:
            return _CANNOT
        extra = self._count - len(taken) * threshold
        if extra < 0:
            return _TOO_FEW
        found = {}
        for domain in sorted(taken, key=lambda each: (-self.room[each], each)):
            more = min(self.room[domain] - threshold, extra) if extra > 0 else 0
            found[domain], extra = threshold + more, extra - more
        return _NOT_ALL if extra > 0 else found

    def _below(self, domains: Sequence[Domain]) -> list[Domain]:
        return [child for domain in domains for child in self._children(domain)]

    def _greedy(self, domains: Sequence[Domain]) -> tuple[int, Domain] | None:
        """Return how many of the fullest domains hold all pods, and the last of them; None where all do not."""
        left, used = self._count, list[Domain]()
        for domain in sorted(domains, key=lambda each: (-self.room[each], each)):
            if left <= 0 or self.room[domain] <= 0:
                break
            used.append(domain)
            left -= self.room[domain]
        return None if left > 0 or not used else (len(used), used[-1])

    def _fewest(self, domains: Sequence[Domain]) -> list[Domain] | None:
        """Return the fewest domains that hold all pods, and of these those that leave the least room."""
        found = self._greedy(domains)
        if found is None:
            return None
        sets: list[dict[int, list[Domain]]] = [{} for _ in range(found[0] + 1)]  # by size, by the pods that are left
        sets[0][self._count] = []
        for domain in domains:
            for size in range(found[0], 0, -1):
                for left in sorted(sets[size - 1]):
                    if left > 0 and self.room[domain] > 0:
                        sets[size].setdefault(left - self.room[domain], [*sets[size - 1][left], domain])
        enough = [left for left in sets[found[0]] if left <= 0]
        return sets[found[0]][max(enough)] if enough else None

    def _clear_below(self, group: Sequence[Domain], threshold: int) -> None:
        """Take out what cannot have its share: domains below a group first, then those of the group."""
        for child in self._below(group):
            if self.room[child] < threshold:
                self._clear(child)
        for domain in group:
            self._sum_up(domain)
            if self.room[domain] < threshold:
                self._clear(domain)

    def _clear(self, domain: Domain) -> None:
        self.room[domain] = 0
        for child in self._children(domain):
            self._clear(child)

    def _sum_up(self, domain: Domain) -> int:
        if children := self._children(domain):
            self.room[domain] = sum(self._sum_up(child) for child in children)
        return self.room[domain]

    def _entropy(self, domain: Domain) -> float:
        """Return how evenly a domain's room is spread over those below it."""
        rooms = [self.room[child] for child in self._children(domain) if self.room[child] > 0]
        return -sum(each / sum(rooms) * log2(each / sum(rooms)) for each in rooms)
