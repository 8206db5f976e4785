"""What pods ask of one another: topology spread and affinity between pods as rules, and which pods each is about.

Rules and what they select stay the same while pods come and go, so that it is found out once.
(Karpenter 1.15, `topologygroup.go` and `topologynodefilter.go` of pkg/controllers/provisioning/scheduling.)
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from aaml.cluster.objects import Pod, PodAffinityTerm, Taint, Toleration, TopologySpread
from aaml.cluster.selectors import NamespaceLabels, has_untolerated_taint, matches_pod
from aaml.nodes.requirements import Labels, compatible, labels_of, merged, required

Shape = tuple[str, frozenset[tuple[str, str]]]
"""A pod as selectors see it: namespace, labels."""


@dataclass(frozen=True)
class NodeFilter:
    """Which nodes count for a spread constraint; `terms`: one of them has to hold, all do where there is none."""

    terms: tuple[Labels, ...] = ()
    tolerations: tuple[Toleration, ...] | None = None  # None: whatever taints there are

    @classmethod
    def of(cls, pod: Pod, constraint: TopologySpread) -> "NodeFilter":
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
    def is_open(self) -> bool:
        """Whether every node counts."""
        return self.tolerations is None and (not self.terms or not all(self.terms))

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
    nodes: NodeFilter = field(default_factory=NodeFilter, compare=False)
    least_domains: int = field(default=1, compare=False)

    @classmethod
    def spread(cls, pod: Pod, constraint: TopologySpread) -> "Rule":
        """Return the rule of a spread constraint."""
        nodes = NodeFilter.of(pod, constraint)
        about = PodAffinityTerm(constraint.topology_key, constraint.selector, frozenset({pod.namespace}))
        return cls("spread", about, constraint.max_skew, nodes.mark, nodes, constraint.min_domains)


class Selection:
    """Which of the shapes that were seen a rule is about, and which of them count where they run.

    Without a selector all pods of its namespaces count, and none is selected.
    """

    def __init__(self, about: PodAffinityTerm) -> None:
        self.selected: set[Shape] = set()
        self.counted: dict[Shape, None] = {}  # in the order in which they were seen
        self._about, self._looked_at = about, 0

    def extend(self, shapes: Sequence[tuple[Shape, Pod]], namespaces: NamespaceLabels) -> None:
        """Look at the shapes, with a pod each, that were seen since the last time."""
        for shape, pod in shapes[self._looked_at :]:
            selects = matches_pod(self._about, pod, namespaces)
            if selects:
                self.selected.add(shape)
            if selects if self._about.selector is not None else pod.namespace in self._about.namespaces:
                self.counted[shape] = None
        self._looked_at = len(shapes)


Ruled = tuple[int, Rule]
"""A rule with its number."""


class Rules:
    """The rules of pods with a number each, which is the same for those that Karpenter has one group for."""

    def __init__(self) -> None:
        self._numbers: dict[Rule, int] = {}
        self._known: dict[tuple[Rule, int, str], Rule] = {}  # one for all that are the same in everything
        self._apart: dict[int, tuple[PodAffinityTerm, Ruled]] = {}  # by the identity of a term, which is kept with it
        self._shape_of: dict[tuple[str, int], tuple[Mapping[str, str], Shape]] = {}  # by the identity of labels
        self._shapes: dict[Shape, Pod] = {}
        self._listed: list[tuple[Shape, Pod]] = []  # the same
        self._namespaces: NamespaceLabels = {}
        self._selections: dict[int, Selection] = {}  # by the identity of a rule

    def numbered(self, rule: Rule) -> Ruled:
        """Return a rule with its number."""
        known = self._known.setdefault((rule, rule.least_domains, repr(rule.nodes)), rule)
        return self._numbers.setdefault(rule, len(self._numbers)), known

    def apart(self, term: PodAffinityTerm) -> Ruled:
        """Return the rule of a term of anti-affinity."""
        known = self._apart.get(id(term))
        if known is None:
            known = self._apart[id(term)] = term, self.numbered(Rule("apart", term))
        return known[1]

    def of(self, pod: Pod) -> tuple[Ruled, ...]:
        """Return all rules of a pod, preferred ones too: a preference counts until it is given up."""
        affinity = pod.affinity
        found = [self.numbered(Rule.spread(pod, constraint)) for constraint in pod.spread]
        found += [self.numbered(Rule("near", term)) for term in affinity.required_pods]
        found += map(self.apart, affinity.required_anti_pods)
        found += [
            self.numbered(Rule("near" if each.weight > 0 else "apart", each.term)) for each in affinity.preferred_pods
        ]
        return tuple(dict(reversed(found)).items())  # of several with a number the first

    def shape(self, pod: Pod) -> Shape:
        """Return a pod as selectors see it."""
        key = pod.namespace, id(pod.labels) if pod.labels else 0
        known = self._shape_of.get(key)
        if known is None:
            shape = pod.namespace, frozenset(pod.labels.items())
            known = self._shape_of[key] = pod.labels, shape
            if shape not in self._shapes:
                self._shapes[shape] = pod
                self._listed.append((shape, pod))
        return known[1]

    def heed(self, namespaces: NamespaceLabels) -> None:
        """Let selectors of namespaces look at these labels from now on."""
        if self._namespaces != namespaces:
            self._namespaces = dict(namespaces)
            self._selections = {}

    def selection(self, rule: Rule) -> Selection:
        """Return which of the shapes that were seen so far a rule is about."""
        found = self._selections.get(id(rule))
        if found is None:
            found = self._selections[id(rule)] = Selection(rule.about)
        found.extend(self._listed, self._namespaces)
        return found
