"""Where pods may go that belong together or apart, as Karpenter counts it: topology spread and affinity between pods.

A group is one rule of some pods: how many pods that it is about each domain of its label has. An inverse group is the
anti-affinity of other pods, which keeps those away that it is about. Pods that are to be placed do not count where they
run now. Where several domains are as good Karpenter takes any; here it is the first by name. (Karpenter 1.15,
`topology.go`, `topologygroup.go`, `topologydomaingroup.go` of pkg/controllers/provisioning/scheduling.)
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from aaml.cluster.objects import HOSTNAME_LABEL, HostPort, Pod, Taint
from aaml.nodes.ports import Observed
from aaml.nodes.requirements import ANY, NONE, Labels, Values, only
from aaml.nodes.rules import Rule, Ruled, Rules, Shape

_DISRUPTED = Taint("karpenter.sh/disrupted")  # of nodes on their way out
_UNBOUNDED = (1 << 31) - 1
_NOWHERE: Mapping[str, int] = {}


class _Group:
    """How many of the pods that a rule is about each domain has. `empty` are the domains where none ever was.

    Host names are no domains until a pod is there: there can always be another host, and each target names its own.
    """

    def __init__(self, rule: Rule, selected: Collection[Shape], domains: Iterable[str]) -> None:
        self.rule, self.key, self._selected = rule, rule.about.topology_key, selected
        self.counts = dict.fromkeys(domains if self.key != HOSTNAME_LABEL else (), 0)
        self.empty = set(self.counts)

    def selects(self, shape: Shape) -> bool:
        """Whether the rule is about a pod."""
        return shape in self._selected

    def record(self, domains: Iterable[str], count: int = 1) -> None:
        """Take note of pods in each of these domains."""
        for domain in domains:
            self.counts[domain] = self.counts.get(domain, 0) + count
            self.empty.discard(domain)

    def allowed(self, shape: Shape, wanted: Values, there: Values) -> Values:
        """Return the domains where a pod that asks for some may go, of those `there`."""
        host = next(iter(there.listed)) if self.key == HOSTNAME_LABEL and len(there.listed) == 1 else None
        own = self.selects(shape)
        if self.rule.kind == "spread":
            return self._spread(wanted, there, host, int(own))
        if self.rule.kind == "near":
            return self._near(wanted, there, host, own=own)
        return self._apart(wanted, there, host)

    def _spread(self, wanted: Values, there: Values, host: str | None, own: int) -> Values:
        """Return the domain with the fewest pods, if with this one it has not too many more than the emptiest."""
        if host is not None:  # there can always be another host, without a pod
            return only(host) if self.counts.get(host, 0) + own <= self.rule.max_skew else NONE
        fewest = self._fewest(wanted)
        fitting = [domain for domain in self._of(there) if self.counts[domain] + own - fewest <= self.rule.max_skew]
        return only(min(fitting, key=lambda domain: self.counts[domain])) if fitting else NONE

    def _fewest(self, wanted: Values) -> int:
        if self.key == HOSTNAME_LABEL:
            return 0
        counts = [count for domain, count in self.counts.items() if wanted.allows(domain)]
        if self.rule.least_domains > 1 and len(counts) < self.rule.least_domains:
            return 0
        return min(counts, default=_UNBOUNDED)

    def _near(self, wanted: Values, there: Values, host: str | None, *, own: bool) -> Values:
        """Return the domains with such a pod; if there is none, the first pod of its kind may go anywhere."""
        first = own and (len(self.counts) == len(self.empty) or not any(
            count > 0 and wanted.allows(domain) for domain, count in self.counts.items()
        ))  # fmt: skip
        if host is not None:
            if not wanted.allows(host) or (self.counts.get(host, 0) <= 0 and not first):
                return NONE
            return only(host)
        found = [domain for domain in self._of(there) if wanted.allows(domain) and self.counts[domain] > 0]
        if found or not first:
            return only(*found)
        both = wanted.both(there)
        here = [domain for domain in sorted(self.counts) if both.allows(domain)][:1]
        anywhere = [domain for domain in sorted(self.counts) if wanted.allows(domain)][:1]
        return only(*here, *anywhere)

    def _apart(self, wanted: Values, there: Values, host: str | None) -> Values:
        """Return the domains without such a pod."""
        if host is not None:
            return NONE if self.counts.get(host, 0) else only(host)
        return only(*(domain for domain in self.empty if there.allows(domain) and wanted.allows(domain)))

    def _of(self, there: Values) -> list[str]:
        """Return its domains of those, by name."""
        if there.is_list:
            return sorted(domain for domain in there.listed if domain in self.counts)
        return sorted(domain for domain in self.counts if there.allows(domain))


@dataclass(frozen=True, slots=True)
class _Domains:
    """The nodes that count for some rules: the domain of each, and how many nodes that stay each domain has."""

    of: Mapping[str, str]
    staying: Counter[str]


class Placed:
    """The pods that have a node at one moment, as groups count them."""

    def __init__(self, seen: Observed, rules: Rules) -> None:
        self.seen, self.rules = seen, rules
        self.nodes: dict[str, Labels] = {}  # labels of those that are there, by name
        self.homes: dict[str, str] = {}  # by pod: its node
        self.shapes: dict[Shape, Counter[str]] = {}  # how many pods like it each node has
        self.apart: dict[int, tuple[Rule, Counter[str]]] = {}  # anti-affinity of pods, and how many each node has of it
        self.ports: dict[str, list[tuple[str, HostPort]]] = {}  # by node: host ports that are taken, by whom
        self._domains: dict[tuple[str, int], _Domains] = {}  # by label, and the identity of a rule that omits nodes
        self._counts: dict[int, Counter[str]] = {}  # by the identity of a rule, which `rules` keep
        self._inverse: dict[Shape, frozenset[int]] = {}
        rules.heed(seen.namespace_labels)
        for name, node in seen.nodes.items():
            if node.initialized_s is None:
                continue
            self.nodes[name] = node.requirements
            for uid, pod in seen.pods_on(name).items():
                self.homes[uid] = name
                if pod.host_ports:
                    self.ports.setdefault(name, []).extend((pod.key, each) for each in pod.host_ports)
                for number, rule in set(map(rules.apart, pod.affinity.required_anti_pods)):
                    self.apart.setdefault(number, (rule, Counter()))[1][name] += 1
                if uid not in seen.stopping:
                    shape = rules.shape(pod)
                    if shape not in self.shapes:
                        self.shapes[shape] = Counter()
                    self.shapes[shape][name] += 1

    def domains(self, rule: Rule) -> _Domains:
        """Return the nodes that count for a rule."""
        key, passes = rule.about.topology_key, rule.nodes.passes
        place = key, 0 if rule.nodes.is_open else id(rule)
        if place not in self._domains:
            nodes, found = self.seen.nodes, dict[str, str]()
            for name, labels in self.nodes.items():
                values, taints = labels.get(key), (_DISRUPTED,) if nodes[name].deleting else ()
                if values is not None and passes(labels, taints):
                    found[name] = next(iter(values.listed))
            staying = Counter(domain for name, domain in found.items() if not nodes[name].deleting)
            self._domains[place] = _Domains(found, staying)
        return self._domains[place]

    def counts(self, rule: Rule) -> Counter[str]:
        """Return how many of the pods that a rule is about each domain has."""
        if id(rule) not in self._counts:
            domains, counts = self.domains(rule).of, Counter[str]()
            for shape in self.rules.selection(rule).counted:
                for name, count in self.shapes.get(shape, _NOWHERE).items():
                    if name in domains:
                        counts[domains[name]] += count
            self._counts[id(rule)] = counts
        return self._counts[id(rule)]

    def inverse(self, shape: Shape) -> frozenset[int]:
        """Return the numbers of the anti-affinity, of pods that have a node, that keeps such a pod away."""
        if shape not in self._inverse:
            self._inverse[shape] = frozenset(
                number for number, (rule, _) in self.apart.items() if shape in self.rules.selection(rule).selected
            )
        return self._inverse[shape]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A pod that is to be placed: `rules` are its own, `inverse` those that keep others away from it."""

    pod: Pod
    shape: Shape
    rules: tuple[Ruled, ...]
    inverse: tuple[Ruled, ...]


class Topology:
    """The groups that matter to some pods that are to be placed. `without` names nodes that might go.

    `types` are the domains of labels that types have.
    """

    def __init__(
        self, types: Mapping[str, frozenset[str]], placed: Placed, pods: Sequence[Chosen], without: Collection[str]
    ) -> None:
        self._types, self._placed, self._without = types, placed, [name for name in without if name in placed.nodes]
        self._leaving = [(each, placed.homes[each.pod.uid]) for each in pods if each.pod.uid in placed.homes]
        self._groups: dict[int, _Group] = {}
        self._owned: dict[str, list[_Group]] = {}  # by pod
        self._inverse: dict[int, _Group] = {}  # anti-affinity of other pods, which keeps those away that it is about
        self._inverse_of: dict[str, list[_Group]] = {}  # by the pod that has it
        self._count_inverse(pods)
        for each in pods:
            self.update(each.pod.uid, each.rules)
        self._against: dict[Shape, list[_Group]] = {}
        self._selecting: dict[Shape, list[_Group]] = {}

    def update(self, uid: str, rules: Iterable[Ruled]) -> None:
        """Let the rules of a pod be these."""
        owned = list[_Group]()
        for number, rule in rules:
            group = self._groups.get(number)
            if group is None:
                group = self._groups[number] = self._counted(rule)
                self._selecting = {}
            owned.append(group)
        self._owned[uid] = owned

    def narrowed(self, pod: Pod, shape: Shape, strict: Labels, there: Labels) -> Labels | None:
        """Return the labels that a node with some may have for a pod; None where it may not go there."""
        if shape not in self._against:
            self._against[shape] = [group for group in self._inverse.values() if group.selects(shape)]
        found: dict[str, Values] = {}
        for group in (*self._owned[pod.uid], *self._against[shape]):
            domains = group.allowed(shape, strict.get(group.key, ANY), there.get(group.key, ANY))
            if not domains.listed:
                return None
            found[group.key] = domains.both(found[group.key]) if group.key in found else domains
        return found

    def record(self, pod: Pod, shape: Shape, there: Labels) -> None:
        """Take note that a pod goes to a node with such labels."""
        if shape not in self._selecting:
            self._selecting[shape] = [group for group in self._groups.values() if group.selects(shape)]
        for group in self._selecting[shape]:
            if group.rule.nodes.passes(there):
                domains = there.get(group.key, ANY)
                if group.rule.kind == "apart" or (domains.is_list and len(domains.listed) == 1):
                    group.record(domains.listed)
        for group in self._inverse_of.get(pod.uid, ()):
            group.record(there.get(group.key, ANY).listed)

    def _counted(self, rule: Rule) -> _Group:
        """Return a new group, with the pods that are counted already: not those that are to be placed."""
        domains, selection = self._placed.domains(rule), self._placed.rules.selection(rule)
        staying, key = domains.staying, rule.about.topology_key
        if self._without and key != HOSTNAME_LABEL:
            staying = staying - Counter(domains.of[name] for name in self._without if name in domains.of)
        group = _Group(rule, selection.selected, chain(self._types.get(key, ()), staying))
        moved = Counter(
            domains.of[name]
            for each, name in self._leaving
            if name in domains.of and each.shape in selection.counted
            and each.pod.uid not in self._placed.seen.stopping
        )  # fmt: skip
        for domain, count in self._placed.counts(rule).items():
            if count > moved[domain]:
                group.record((domain,), count - moved[domain])
        return group

    def _count_inverse(self, pods: Sequence[Chosen]) -> None:
        """Let anti-affinity of all pods keep others away; of those that are to be placed only once they are."""
        placed = self._placed
        moved: dict[int, Counter[str]] = {}
        for each, name in self._leaving:
            for number, _ in each.inverse:
                moved.setdefault(number, Counter())[name] += 1
        needed = {number for each in pods for number, _ in each.inverse}
        needed.update(*(placed.inverse(shape) for shape in {each.shape for each in pods}))
        for number in (each for each in placed.apart if each in needed):
            rule, count = placed.apart[number]
            left = count - moved[number] if number in moved else count
            group = self._inverse[number] = self._inverse_group(rule)
            for name in left:
                group.record(placed.nodes[name].get(group.key, NONE).listed)
        for each in pods:
            if each.inverse:
                for number, rule in each.inverse:
                    if number not in self._inverse:
                        self._inverse[number] = self._inverse_group(rule)
                self._inverse_of[each.pod.uid] = [self._inverse[number] for number, _ in each.inverse]

    def _inverse_group(self, rule: Rule) -> _Group:
        selected = self._placed.rules.selection(rule).selected
        return _Group(rule, selected, self._types.get(rule.about.topology_key, ()))
