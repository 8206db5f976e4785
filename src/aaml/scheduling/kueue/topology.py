"""Topology-aware scheduling: in which domains the pods of a pod set go, as Kueue 0.17 chooses them.

pkg/cache/scheduler/tas_flavor_snapshot.go: how many pods fit is counted for each leaf, summed up the tree, and the tree
is walked down from the level that was asked for. `required` and `preferred` take the fullest domain that has room for
all (BestFit); `unconstrained` begins with the least free one (LeastFreeCapacity).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aaml.scheduling.kueue.balanced import Balance
from aaml.scheduling.kueue.objects import TopologyRequest

Domain = tuple[str, ...]
"""The values of a domain's labels, from the widest level to its own."""
Assignment = tuple[tuple[Domain, int], ...]
"""Leaves, and how many pods go to each, in the order of their values."""


@dataclass(frozen=True)
class NoRoom:
    """Why pods go nowhere, in Kueue's words."""

    reason: str


@dataclass(frozen=True)
class Topology:
    """A tree of domains: `levels` are labels from wide to narrow, `leaves` the domains of the narrowest."""

    levels: tuple[str, ...]
    leaves: tuple[Domain, ...]
    name: str = "default"
    _children: dict[Domain, list[Domain]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for leaf in dict.fromkeys(self.leaves):
            for depth in range(len(leaf), 0, -1):
                siblings = self._children.setdefault(leaf[: depth - 1], [])
                if leaf[:depth] in siblings:
                    break
                siblings.append(leaf[:depth])

    def children(self, domain: Domain) -> list[Domain]:
        """Return the domains one level below; of () those of the widest level."""
        return self._children.get(domain, [])

    def level(self, depth: int) -> list[Domain]:
        """Return all domains of a level, of which 0 is the widest."""
        found: list[Domain] = [()]
        for _ in range(depth + 1):
            found = [child for domain in found for child in self.children(domain)]
        return found

    def place(
        self, fits: Mapping[Domain, int], count: int, request: TopologyRequest, *, balanced: bool = False
    ) -> Assignment | NoRoom:
        """Return where `count` pods go, of which so many fit in each leaf; `balanced`: with that gate."""
        unconstrained = request.how == "unconstrained"
        level = self.levels[-1] if unconstrained else request.level
        if level not in self.levels:
            return NoRoom(f"no requested topology level: {level}")
        if balanced and request.how == "preferred":
            spread = self._balanced(fits, count, self.levels.index(level))
            if spread is not None:
                return spread
        trial = _Trial(self, self._summed(fits), count, unconstrained)
        found = trial.fitting(self.levels.index(level), required=request.how == "required")
        if isinstance(found, NoRoom):
            return found
        depth, domains = found
        taken = trial.least(domains)
        for _ in range(depth, len(self.levels) - 1):
            below = [child for domain in taken for child in self.children(domain)]
            taken = trial.least(trial.sorted(below))
        return tuple(sorted((domain, pods) for domain, pods in taken.items() if pods))

    def _balanced(self, fits: Mapping[Domain, int], count: int, depth: int) -> Assignment | NoRoom | None:
        """Return where pods go that are spread evenly, None where nothing can be balanced."""
        search = Balance(self.children, self._summed(fits), count)
        leaves = depth == len(self.levels) - 1
        groups = [self.children(above) for above in self.level(depth - 1)]
        found = search.find(groups, leaves=leaves)
        if found is None or isinstance(found, str):
            return None if found is None else NoRoom(found)
        for _ in range(depth if leaves else depth + 1, len(self.levels) - 1):
            below: dict[Domain, int] = {}
            for domain, pods in found.items():
                trial = _Trial(self, search.room, pods, unconstrained=False)
                below |= trial.least(trial.sorted(self.children(domain)))
            found = below
        return tuple(sorted((domain, pods) for domain, pods in found.items() if pods))

    def _summed(self, fits: Mapping[Domain, int]) -> dict[Domain, int]:
        """Return how many pods fit in each domain of every level."""
        room: dict[Domain, int] = {}
        for leaf in dict.fromkeys(self.leaves):
            for depth in range(1, len(leaf) + 1):
                room[leaf[:depth]] = room.get(leaf[:depth], 0) + fits.get(leaf, 0)
        return room


@dataclass(frozen=True)
class _Trial:
    """One search: how many of the `count` pods fit in each domain."""

    topology: Topology
    room: Mapping[Domain, int]
    count: int
    unconstrained: bool

    def sorted(self, domains: Sequence[Domain]) -> list[Domain]:
        """Return domains as they are tried: those with the most room first, or the least where unconstrained."""
        sign = 1 if self.unconstrained else -1
        return sorted(domains, key=lambda domain: (sign * self.room[domain], domain))

    def fitting(self, depth: int, *, required: bool) -> tuple[int, list[Domain]] | NoRoom:
        """Return the domains that hold all pods, and their level: one, if need be of a wider level, else several."""
        domains = self.sorted(self.topology.level(depth))
        if not domains:
            return NoRoom(f"no topology domains at level: {self.topology.levels[depth]}")
        most = max(self.room[domain] for domain in domains)
        if most >= self.count:
            return depth, [self._best(domains, self.count)]
        if required:
            return self._no_room(most)
        if depth > 0 and not self.unconstrained:
            return self.fitting(depth - 1, required=False)
        taken, left = [], self.count
        for place, domain in enumerate(domains):
            if left <= 0:
                break
            chosen = self._last(domains[place:], domain, left)
            taken.append(chosen)
            left -= self.room[chosen]
        return self._no_room(self.count - left) if left > 0 else (depth, taken)

    def least(self, domains: Sequence[Domain]) -> dict[Domain, int]:
        """Return how many pods each of the first of these domains takes, so that the last is filled best."""
        taken: dict[Domain, int] = {}
        left = self.count
        for place, domain in enumerate(domains):
            chosen = self._last(domains[place:], domain, left)
            taken[chosen] = min(self.room[chosen], left)
            left -= taken[chosen]
            if not left:
                break
        return taken

    def _last(self, domains: Sequence[Domain], first: Domain, left: int) -> Domain:
        """Return the domain that comes next: the first, or where that holds all that is left the one that fits best."""
        return self._best(domains, left) if not self.unconstrained and self.room[first] >= left else first

    def _best(self, domains: Sequence[Domain], pods: int) -> Domain:
        """Return the domain with the least room that is enough."""
        enough = [domain for domain in domains if self.room[domain] >= pods]
        return min(enough, key=lambda domain: self.room[domain])

    def _no_room(self, pods: int) -> NoRoom:
        name = self.topology.name
        if pods <= 0:
            return NoRoom(f'topology "{name}" doesn\'t allow to fit any of {self.count} pod(s)')
        return NoRoom(f'topology "{name}" allows to fit only {pods} out of {self.count} pod(s)')
