"""Where pods may go that belong together or apart, as Karpenter counts it: topology spread and affinity between pods.

A group is one rule of some pods: how many pods that it is about each domain of its label has. Pods that are to be
placed do not count where they run now. A claim is a domain of the host name from its first pod on. Where several
domains are as good Karpenter takes any; here it is the first by name. (Karpenter 1.15, `topology.go`,
`topologygroup.go`, `topologynodefilter.go`, `topologydomaingroup.go` of pkg/controllers/provisioning/scheduling.)
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from aaml.cluster.objects import HOSTNAME_LABEL, Pod, PodAffinityTerm, Taint, Toleration, TopologySpread
from aaml.cluster.selectors import has_untolerated_taint, matches_pod
from aaml.sim.autoscaler.ports import Observed, OwnedNode
from aaml.sim.autoscaler.requirements import ANY, NONE, Labels, Values, compatible, labels_of, merged, only, required

_DISRUPTED = Taint("karpenter.sh/disrupted")  # of nodes on their way out
_UNBOUNDED = (1 << 31) - 1
Shape = tuple[str, frozenset[tuple[str, str]]]  # a pod as selectors see it: namespace, labels


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
class _Rule:
    """A constraint of a pod. Groups are the same where what is compared is: not the filter's values, nor the least."""

    kind: Literal["spread", "near", "apart"]
    about: PodAffinityTerm
    max_skew: int = 0
    mark: object = None
    nodes: _NodeFilter = field(default_factory=_NodeFilter, compare=False)
    least_domains: int = field(default=1, compare=False)

    @classmethod
    def spread(cls, pod: Pod, constraint: TopologySpread) -> "_Rule":
        """Return the rule of a spread constraint."""
        nodes = _NodeFilter.of(pod, constraint)
        about = PodAffinityTerm(constraint.topology_key, constraint.selector, frozenset({pod.namespace}))
        return cls("spread", about, constraint.max_skew, nodes.mark, nodes, constraint.min_domains)


def rules_of(pod: Pod) -> Iterator[_Rule]:
    """Return all rules of a pod, preferred ones too: a preference counts until it is given up."""
    for constraint in pod.spread:
        yield _Rule.spread(pod, constraint)
    affinity = pod.affinity
    for term in affinity.required_pods:
        yield _Rule("near", term)
    for term in affinity.required_anti_pods:
        yield _Rule("apart", term)
    for each in affinity.preferred_pods:
        yield _Rule("near" if each.weight > 0 else "apart", each.term)


class _Group:
    """How many of the pods that a rule is about each domain has. `empty` are the domains where none ever was."""

    def __init__(self, rule: _Rule, domains: Iterable[str], spaces: Mapping[str, Mapping[str, str]]) -> None:
        self.rule, self.key, self._spaces = rule, rule.about.topology_key, spaces
        self.counts = dict.fromkeys(domains, 0)
        self.empty = set(self.counts)
        self._selected: dict[Shape, bool] = {}

    def selects(self, pod: Pod, shape: Shape) -> bool:
        """Whether the rule is about a pod."""
        known = self._selected.get(shape)
        if known is None:
            known = self._selected[shape] = matches_pod(self.rule.about, pod, self._spaces)
        return known

    def record(self, domains: Iterable[str], count: int = 1) -> None:
        """Take note of pods in each of these domains."""
        for domain in domains:
            self.counts[domain] = self.counts.get(domain, 0) + count
            self.empty.discard(domain)

    def register(self, domain: str) -> None:
        """Take note of a domain."""
        if domain not in self.counts:
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


@dataclass
class Placed:
    """The pods that have a node at one moment, as groups count them."""

    seen: Observed
    nodes: dict[str, Labels] = field(default_factory=dict)  # labels of those that are there, by name
    homes: dict[str, OwnedNode] = field(default_factory=dict)  # by pod
    apart: list[tuple[Pod, str]] = field(default_factory=list)  # with required anti-affinity, and their node
    _shapes: dict[Shape, tuple[Pod, Counter[str]]] = field(default_factory=dict)  # a pod, how many each node has
    _counted: dict[_Rule, Counter[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, node in self.seen.nodes.items():
            if node.initialized_s is None:
                continue
            self.nodes[name] = node_labels(node)
            for uid, pod in self.seen.pods_on(name).items():
                self.homes[uid] = node
                if pod.affinity.required_anti_pods:
                    self.apart.append((pod, name))
                if uid not in self.seen.stopping:
                    self._shapes.setdefault(shape_of(pod), (pod, Counter()))[1][name] += 1

    def counts(self, rule: _Rule) -> Counter[str]:
        """Return how many pods that a rule is about each domain has."""
        if rule not in self._counted:
            found = self._counted[rule] = Counter()
            for pod, nodes in self._shapes.values():
                if self._is_counted(rule, pod):
                    for name, count in nodes.items():
                        if (domain := self._domain(rule, self.seen.nodes[name])) is not None:
                            found[domain] += count
        return self._counted[rule].copy()

    def counts_without(self, rule: _Rule, pods: Iterable[Pod]) -> Counter[str]:
        """Return the same, but for some of the pods."""
        found = self.counts(rule)
        for pod in pods:
            node = self.homes.get(pod.uid)
            if node is None or pod.uid in self.seen.stopping or not self._is_counted(rule, pod):
                continue
            if (domain := self._domain(rule, node)) is not None:
                found[domain] -= 1
        return found

    def domains(self, rule: _Rule, without: Collection[str]) -> Iterator[str]:
        """Return the domains of nodes that stay, with pods or without."""
        for name, labels in self.nodes.items():
            node = self.seen.nodes[name]
            if not node.deleting and name not in without and rule.nodes.passes(labels):
                values = labels.get(rule.about.topology_key, NONE)
                yield from values.listed

    def _is_counted(self, rule: _Rule, pod: Pod) -> bool:
        about = rule.about
        if about.selector is None:  # Karpenter counts all pods of the namespaces then, and selects none
            return pod.namespace in about.namespaces
        return matches_pod(about, pod, self.seen.namespace_labels)

    def _domain(self, rule: _Rule, node: OwnedNode) -> str | None:
        labels = self.nodes[node.name]
        if not rule.nodes.passes(labels, (_DISRUPTED,) if node.deleting else ()):
            return None
        return next(iter(labels.get(rule.about.topology_key, NONE).listed), None)


class Topology:
    """The groups that matter to some pods that are to be placed. `without` names nodes that might go."""

    def __init__(
        self, types: Mapping[str, frozenset[str]], placed: Placed, pods: Sequence[Pod], without: Collection[str],
        hosts: Iterable[str],
    ) -> None:  # fmt: skip
        self._types, self._placed, self._pods, self._without = types, placed, pods, without
        self._groups: dict[_Rule, _Group] = {}
        self._owned: dict[str, list[_Group]] = {}  # by pod
        self._turned: dict[_Rule, _Group] = {}  # anti-affinity of other pods, which keeps those away that it is about
        self._turned_of: dict[str, list[_Group]] = {}  # by the pod that has it
        chosen = {pod.uid for pod in pods}
        for pod, name in placed.apart:
            if pod.uid not in chosen:
                for group in self._turn(pod):
                    group.record(placed.nodes[name].get(group.key, NONE).listed)
        for pod in pods:
            self._turned_of[pod.uid] = self._turn(pod)
        for pod in pods:
            self.update(pod)
        for host in hosts:
            self.register(host)
        self._about: dict[Shape, list[_Group]] = {}

    def update(self, pod: Pod) -> None:
        """Let the rules of a pod be those that it has now."""
        owned: dict[_Rule, _Group] = {}
        for rule in rules_of(pod):
            group = self._groups.get(rule)
            if group is None:
                group = self._groups[rule] = self._counted(rule)
            owned[rule] = group
        self._owned[pod.uid] = list(owned.values())

    def register(self, host: str) -> None:
        """Take note of a node, or of a claim for one."""
        for group in (*self._groups.values(), *self._turned.values()):
            if group.key == HOSTNAME_LABEL:
                group.register(host)

    def matter(self, pod: Pod, shape: Shape) -> list[_Group]:
        """Return the groups that say where a pod may go."""
        if shape not in self._about:
            self._about[shape] = [group for group in self._turned.values() if group.selects(pod, shape)]
        return self._owned[pod.uid] + self._about[shape]

    def narrowed(self, pod: Pod, shape: Shape, strict: Labels, there: Labels) -> Labels | None:
        """Return the labels that a node with some may have for a pod; None where it may not go there."""
        found: dict[str, Values] = {}
        for group in self.matter(pod, shape):
            domains = group.allowed(pod, shape, strict.get(group.key, ANY), there.get(group.key, ANY))
            if not domains.listed:
                return None
            found = merged(found, {group.key: domains})
        return found

    def record(self, pod: Pod, shape: Shape, there: Labels) -> None:
        """Take note that a pod goes to a node with such labels."""
        for group in self._groups.values():
            if group.selects(pod, shape) and group.rule.nodes.passes(there):
                domains = there.get(group.key, ANY)
                if group.rule.kind == "apart" or (domains.is_list and len(domains.listed) == 1):
                    group.record(domains.listed)
        for group in self._turned_of[pod.uid]:
            group.record(there.get(group.key, ANY).listed)

    def _counted(self, rule: _Rule) -> _Group:
        """Return a new group, with the pods that are counted already."""
        group = _Group(rule, self._types.get(rule.about.topology_key, ()), self._placed.seen.namespace_labels)
        for domain in self._placed.domains(rule, self._without):
            group.register(domain)
        for domain, count in self._placed.counts_without(rule, self._pods).items():
            if count:
                group.record((domain,), count)
        return group

    def _turn(self, pod: Pod) -> list[_Group]:
        spaces, found = self._placed.seen.namespace_labels, list[_Group]()
        for term in pod.affinity.required_anti_pods:
            rule = _Rule("apart", term)
            if rule not in self._turned:
                self._turned[rule] = _Group(rule, self._types.get(term.topology_key, ()), spaces)
            found.append(self._turned[rule])
        return found


def node_labels(node: OwnedNode) -> Labels:
    """Return the labels of a node that was bought."""
    return labels_of({**node.type.labels(node.offering), HOSTNAME_LABEL: node.name})


def shape_of(pod: Pod) -> Shape:
    """Return a pod as selectors see it."""
    return pod.namespace, frozenset(pod.labels.items())
