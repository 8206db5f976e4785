"""Where pods may go that belong together or apart, as Karpenter counts it: topology spread and affinity between pods.

A group is one rule of some pods: how many pods that it is about each domain of its label has. Pods that are to be
placed do not count where they run now. A claim is a domain of the host name from its first pod on. Where several
domains are as good Karpenter takes any; here it is the first by name. (Karpenter 1.15, `topology.go`,
`topologygroup.go`, `topologynodefilter.go`, `topologydomaingroup.go` of pkg/controllers/provisioning/scheduling.)
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from aaml.cluster.objects import HOSTNAME_LABEL, Pod, PodAffinityTerm, Taint, Toleration, TopologySpread
from aaml.cluster.selectors import has_untolerated_taint, matches_pod
from aaml.sim.autoscaler.ports import Observed
from aaml.sim.autoscaler.requirements import ANY, NONE, Labels, Values, compatible, labels_of, merged, only, required

_DISRUPTED = Taint("karpenter.sh/disrupted")  # of nodes on their way out
_UNBOUNDED = (1 << 31) - 1
Shape = tuple[str, frozenset[tuple[str, str]]]
"""A pod as selectors see it: namespace, labels."""


@dataclass(frozen=True)
class _NodeFilter:
    """Which nodes count for a spread constraint; `terms`: one of them has to hold, all do where there is none."""

    terms: tuple[Labels, ...] = ()
    tolerations: tuple[Toleration, ...] | None = None  # None: whatever taints there are

    @classmethod
    def of(cls, pod: Pod, constraint: TopologySpread) -> "_NodeFilter":
        """Return the filter of a pod's constraint."""
        terms: tuple[Labels, ...] = ()
        if constraint.honor_node_affinity:
            selector, affinity = labels_of(pod.node_selector), pod.affinity.required_nodes
            terms = (selector,) if affinity is None else tuple(merged(selector, required(t.labels)) for t in affinity)
        return cls(terms, pod.tolerations if constraint.honor_node_taints else None)

    def passes(self, labels: Labels, taints: Sequence[Taint] = ()) -> bool:
        """Whether a node with such labels counts."""
        if self.tolerations is not None and has_untolerated_taint(self.tolerations, taints):
            return False
        return not self.terms or any(compatible(labels, term) for term in self.terms)

    @property
    def mark(self) -> object:
        """What Karpenter tells filters apart by: of each term only which labels it names, and equal ones cancel."""
        named = Counter(frozenset(term) for term in self.terms)
        return frozenset(each for each, count in named.items() if count % 2), bool(self.terms), self.tolerations


@dataclass(frozen=True)
class Rule:
    """A constraint of a pod. Groups are the same where what is compared is: not the filter's values, nor the least."""

    kind: Literal["spread", "near", "apart"]
    about: PodAffinityTerm
    max_skew: int = 0
    mark: object = None
    nodes: _NodeFilter = field(default_factory=_NodeFilter, compare=False)
    least_domains: int = field(default=1, compare=False)

    @classmethod
    def spread(cls, pod: Pod, constraint: TopologySpread) -> "Rule":
        """Return the rule of a spread constraint."""
        nodes = _NodeFilter.of(pod, constraint)
        about = PodAffinityTerm(constraint.topology_key, constraint.selector, frozenset({pod.namespace}))
        return cls("spread", about, constraint.max_skew, nodes.mark, nodes, constraint.min_domains)


class Rules:
    """The rules of pods with a number each, which is the same for those that Karpenter has one group for."""

    def __init__(self) -> None:
        self._numbers: dict[Rule, int] = {}
        self._known: dict[tuple[Rule, int, str], Rule] = {}  # one for all that are the same in everything
        self._apart: dict[int, tuple[PodAffinityTerm, Ruled]] = {}  # by the identity of a term, which is kept with it

    def numbered(self, rule: Rule) -> "Ruled":
        """Return a rule with its number."""
        known = self._known.setdefault((rule, rule.least_domains, repr(rule.nodes)), rule)
        return self._numbers.setdefault(rule, len(self._numbers)), known

    def apart(self, term: PodAffinityTerm) -> "Ruled":
        """Return the rule of a term of anti-affinity."""
        known = self._apart.get(id(term))
        if known is None:
            known = self._apart[id(term)] = term, self.numbered(Rule("apart", term))
        return known[1]

    def of(self, pod: Pod) -> "tuple[Ruled, ...]":
        """Return all rules of a pod, preferred ones too: a preference counts until it is given up."""
        affinity = pod.affinity
        found = [self.numbered(Rule.spread(pod, constraint)) for constraint in pod.spread]
        found += [self.numbered(Rule("near", term)) for term in affinity.required_pods]
        found += map(self.apart, affinity.required_anti_pods)
        found += [
            self.numbered(Rule("near" if each.weight > 0 else "apart", each.term)) for each in affinity.preferred_pods
        ]
        return tuple(dict(reversed(found)).items())  # of several with a number the first


Ruled = tuple[int, Rule]


class _Group:
    """How many of the pods that a rule is about each domain has. `empty` are the domains where none ever was."""

    def __init__(self, rule: Rule, about: "_About", domains: Iterable[str]) -> None:
        self.rule, self.key, self._about = rule, rule.about.topology_key, about
        self.counts = dict.fromkeys(domains, 0)
        self.empty = set(self.counts)

    def selects(self, pod: Pod, shape: Shape) -> bool:
        """Whether the rule is about a pod."""
        return self._about.selects(pod, shape)

    def record(self, domains: Iterable[str], count: int = 1) -> None:
        """Take note of pods in each of these domains."""
        for domain in domains:
            self.counts[domain] = self.counts.get(domain, 0) + count
            self.empty.discard(domain)

    def register(self, domains: frozenset[str]) -> None:
        """Take note of domains."""
        for domain in domains - self.counts.keys():
            self.counts[domain] = 0
            self.empty.add(domain)

    def allowed(self, pod: Pod, shape: Shape, asked: Values, there: Values) -> Values:
        """Return the domains where a pod that asks for some may go, of those `there`."""
        host = next(iter(there.listed)) if self.key == HOSTNAME_LABEL and len(there.listed) == 1 else None
        own = self.selects(pod, shape)
        if self.rule.kind == "spread":
            return self._spread(asked, there, host, int(own))
        if self.rule.kind == "near":
            return self._near(asked, there, host, own=own)
        return self._apart(asked, there, host)

    def _spread(self, asked: Values, there: Values, host: str | None, own: int) -> Values:
        """Return the domain with the fewest pods, if with this one it has not too many more than the emptiest."""
        if host is not None:  # there can always be another host, without a pod
            return only(host) if self.counts.get(host, 0) + own <= self.rule.max_skew else NONE
        fewest = self._fewest(asked)
        fitting = [domain for domain in self._of(there) if self.counts[domain] + own - fewest <= self.rule.max_skew]
        return only(min(fitting, key=lambda domain: self.counts[domain])) if fitting else NONE

    def _fewest(self, asked: Values) -> int:
        if self.key == HOSTNAME_LABEL:
            return 0
        counts = [count for domain, count in self.counts.items() if asked.allows(domain)]
        if self.rule.least_domains > 1 and len(counts) < self.rule.least_domains:
            return 0
        return min(counts, default=_UNBOUNDED)

    def _near(self, asked: Values, there: Values, host: str | None, *, own: bool) -> Values:
        """Return the domains with such a pod; if there is none, the first pod of its kind may go anywhere."""
        first = own and (len(self.counts) == len(self.empty) or not any(
            count > 0 and asked.allows(domain) for domain, count in self.counts.items()
        ))  # fmt: skip
        if host is not None:
            if not asked.allows(host) or (self.counts.get(host, 0) <= 0 and not first):
                return NONE
            return only(host)
        found = [domain for domain in self._of(there) if asked.allows(domain) and self.counts[domain] > 0]
        if found or not first:
            return only(*found)
        both = asked.both(there)
        here = [domain for domain in sorted(self.counts) if both.allows(domain)][:1]
        anywhere = [domain for domain in sorted(self.counts) if asked.allows(domain)][:1]
        return only(*here, *anywhere)

    def _apart(self, asked: Values, there: Values, host: str | None) -> Values:
        """Return the domains without such a pod."""
        if host is not None:
            return NONE if self.counts.get(host, 0) else only(host)
        return only(*(domain for domain in self.empty if there.allows(domain) and asked.allows(domain)))

    def _of(self, there: Values) -> list[str]:
        """Return its domains of those, by name."""
        if there.is_list:
            return sorted(domain for domain in there.listed if domain in self.counts)
        return sorted(domain for domain in self.counts if there.allows(domain))


class _About:
    """Which pods a rule is about, and how many of those that have a node each domain has, at one moment."""

    def __init__(self, rule: Rule, placed: "Placed") -> None:
        self._rule, self._spaces, self._selected = rule, placed.seen.namespace_labels, dict[Shape, bool]()
        key, nodes = rule.about.topology_key, placed.seen.nodes
        self.domains: dict[str, str] = {}  # by node that counts
        for name, labels in placed.nodes.items():
            values, taints = labels.get(key), (_DISRUPTED,) if nodes[name].deleting else ()
            if values is not None and rule.nodes.passes(labels, taints):
                self.domains[name] = next(iter(values.listed))
        self.staying = Counter(domain for name, domain in self.domains.items() if not nodes[name].deleting)
        self.counts: Counter[str] = Counter()
        for shape, (pod, held) in placed.shapes.items():
            if self.is_counted(pod, shape):
                for name, count in held.items():
                    if name in self.domains:
                        self.counts[self.domains[name]] += count

    def selects(self, pod: Pod, shape: Shape) -> bool:
        """Whether the rule is about a pod."""
        known = self._selected.get(shape)
        if known is None:
            known = self._selected[shape] = matches_pod(self._rule.about, pod, self._spaces)
        return known

    def is_counted(self, pod: Pod, shape: Shape) -> bool:
        """Whether a pod that has a node counts: without a selector all of the namespaces do, and none is selected."""
        about = self._rule.about
        return self.selects(pod, shape) if about.selector is not None else pod.namespace in about.namespaces


class Placed:
    """The pods that have a node at one moment, as groups count them."""

    def __init__(self, seen: Observed, rules: Rules) -> None:
        self.seen = seen
        self.nodes: dict[str, Labels] = {}  # labels of those that are there, by name
        self.homes: dict[str, str] = {}  # by pod: its node
        self.shapes: dict[Shape, tuple[Pod, Counter[str]]] = {}  # a pod, and how many like it each node has
        self.apart: dict[int, tuple[Rule, Counter[str]]] = {}  # anti-affinity of pods, and how many each node has of it
        self._about: dict[int, _About] = {}  # by the identity of a rule, which `rules` keep
        for name, node in seen.nodes.items():
            if node.initialized_s is None:
                continue
            self.nodes[name] = node.requirements
            for uid, pod in seen.pods_on(name).items():
                self.homes[uid] = name
                for number, rule in set(map(rules.apart, pod.affinity.required_anti_pods)):
                    self.apart.setdefault(number, (rule, Counter()))[1][name] += 1
                if uid not in seen.stopping:
                    shape = shape_of(pod)
                    if shape not in self.shapes:
                        self.shapes[shape] = pod, Counter()
                    self.shapes[shape][1][name] += 1

    def about(self, rule: Rule) -> _About:
        """Return which pods a rule is about, and where they are."""
        if id(rule) not in self._about:
            self._about[id(rule)] = _About(rule, self)
        return self._about[id(rule)]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A pod that is to be placed: `rules` are its own, `turned` those that keep others away from it."""

    pod: Pod
    shape: Shape
    rules: tuple[Ruled, ...]
    turned: tuple[Ruled, ...]


class Topology:
    """The groups that matter to some pods that are to be placed. `without` names nodes that might go.

    `types` are the domains of labels that types have, `hosts` the nodes that stay.
    """

    def __init__(
        self, types: Mapping[str, frozenset[str]], placed: Placed, pods: Sequence[Chosen], without: Collection[str],
        hosts: frozenset[str],
    ) -> None:  # fmt: skip
        self._types, self._placed, self._without = types, placed, [name for name in without if name in placed.nodes]
        self._leaving = [(each, placed.homes[each.pod.uid]) for each in pods if each.pod.uid in placed.homes]
        self._groups: dict[int, _Group] = {}
        self._owned: dict[str, list[_Group]] = {}  # by pod
        self._turned: dict[int, _Group] = {}  # anti-affinity of other pods, which keeps those away that it is about
        self._turned_of: dict[str, list[_Group]] = {}  # by the pod that has it
        self._turn(pods)
        for each in pods:
            self.update(each.pod.uid, each.rules)
        for group in (*self._groups.values(), *self._turned.values()):
            if group.key == HOSTNAME_LABEL:
                group.register(hosts)
        self._keeping: dict[Shape, list[_Group]] = {}
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

    def register(self, host: str) -> None:
        """Take note of a claim for a node."""
        for group in (*self._groups.values(), *self._turned.values()):
            if group.key == HOSTNAME_LABEL:
                group.register(frozenset((host,)))

    def narrowed(self, pod: Pod, shape: Shape, strict: Labels, there: Labels) -> Labels | None:
        """Return the labels that a node with some may have for a pod; None where it may not go there."""
        if shape not in self._keeping:
            self._keeping[shape] = [group for group in self._turned.values() if group.selects(pod, shape)]
        found: dict[str, Values] = {}
        for group in (*self._owned[pod.uid], *self._keeping[shape]):
            domains = group.allowed(pod, shape, strict.get(group.key, ANY), there.get(group.key, ANY))
            if not domains.listed:
                return None
            found[group.key] = domains.both(found[group.key]) if group.key in found else domains
        return found

    def record(self, pod: Pod, shape: Shape, there: Labels) -> None:
        """Take note that a pod goes to a node with such labels."""
        if shape not in self._selecting:
            self._selecting[shape] = [group for group in self._groups.values() if group.selects(pod, shape)]
        for group in self._selecting[shape]:
            if group.rule.nodes.passes(there):
                domains = there.get(group.key, ANY)
                if group.rule.kind == "apart" or (domains.is_list and len(domains.listed) == 1):
                    group.record(domains.listed)
        for group in self._turned_of.get(pod.uid, ()):
            group.record(there.get(group.key, ANY).listed)

    def _counted(self, rule: Rule) -> _Group:
        """Return a new group, with the pods that are counted already: not those that are to be placed."""
        about, key = self._placed.about(rule), rule.about.topology_key
        staying, counts = about.staying, about.counts
        if self._without:
            staying = staying - Counter(about.domains[name] for name in self._without if name in about.domains)
        group = _Group(rule, about, chain(self._types.get(key, ()), staying))
        counted = (
            about.domains[name]
            for each, name in self._leaving
            if name in about.domains and about.is_counted(each.pod, each.shape)
            and each.pod.uid not in self._placed.seen.stopping
        )  # fmt: skip
        for domain, count in (counts - Counter(counted)).items():
            group.record((domain,), count)
        return group

    def _turn(self, pods: Sequence[Chosen]) -> None:
        """Let anti-affinity of all pods keep others away; of those that are to be placed only once they are."""
        placed = self._placed
        moved: dict[int, Counter[str]] = {}
        for each, name in self._leaving:
            for number, _ in each.turned:
                moved.setdefault(number, Counter())[name] += 1
        for number, (rule, held) in placed.apart.items():
            left = held - moved[number] if number in moved else held
            group = self._turned[number] = self._turning(rule)
            for name in left:
                group.record(placed.nodes[name].get(group.key, NONE).listed)
        for each in pods:
            if each.turned:
                for number, rule in each.turned:
                    if number not in self._turned:
                        self._turned[number] = self._turning(rule)
                self._turned_of[each.pod.uid] = [self._turned[number] for number, _ in each.turned]

    def _turning(self, rule: Rule) -> _Group:
        return _Group(rule, self._placed.about(rule), self._types.get(rule.about.topology_key, ()))


def shape_of(pod: Pod) -> Shape:
    """Return a pod as selectors see it."""
    return pod.namespace, frozenset(pod.labels.items())
