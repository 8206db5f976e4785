"""What of kube-scheduler's configuration is searched, and how one configuration becomes another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import get_args

import numpy as np

from aaml.cluster.quantity import CPU, MEMORY
from aaml.policies.kube_scores import KubeSchedulerConfig
from aaml.policies.kube_scores.config import Strategy
from aaml.policies.kube_scores.wire import MAX_SHAPE_SCORE
from aaml.scheduling.queue import BACKOFF_S

FIT, BALANCED = "NodeResourcesFit", "NodeResourcesBalancedAllocation"
_MOST = 10  # a weight in the search; what matters are ratios
_STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
_UTILIZATIONS = (0, 20, 40, 60, 80, 100)
_RISING, _FALLING = (0, 2, 4, 6, 8, 10), (10, 8, 6, 4, 2, 0)
_MAX_BACKOFF_S = (1, 2, 5, 10)
_PERCENTAGES = (0, 5, 10, 20, 30, 50, 70, 100)
SAMPLED_FROM = 101
"""Nodes from which percentageOfNodesToScore makes a difference: 100 are scored in any case."""


@dataclass(frozen=True)
class Space:
    """The configurations that are searched, around one to begin with.

    The weights of `plugins`, the strategy of NodeResourcesFit with its shape, the weights of `resources`; where
    `samples`, percentageOfNodesToScore; where `backs_off`, podMaxBackoffSeconds. The other score plugins say what pods
    ask for (affinity, spreading): together they keep their share of the whole, so their weights grow and shrink with
    the sum of those that are searched.
    """

    start: KubeSchedulerConfig
    plugins: tuple[str, ...] = (FIT, BALANCED)
    resources: tuple[str, ...] = (CPU, MEMORY)
    samples: bool = False
    backs_off: bool = False

    @classmethod
    def of_size(cls, start: KubeSchedulerConfig, nodes: int) -> "Space":
        """Return the usual space for clusters of so many nodes."""
        return cls(start, samples=nodes >= SAMPLED_FROM)

    def beginnings(self) -> list[KubeSchedulerConfig]:
        """Return where the search begins: the start, each strategy with and without evenness within a node."""
        found = [self.start]
        for weights in ((1, 1), (1, 0)):
            config = self._weighed(self.start, dict(zip((FIT, BALANCED), weights, strict=True)))
            found += [replace(config, strategy="LeastAllocated"), replace(config, strategy="MostAllocated")]
            for scores in (_RISING, _FALLING):
                shape = tuple(zip(_UTILIZATIONS, scores, strict=True))
                found.append(replace(config, strategy="RequestedToCapacityRatio", shape=shape))
        return found

    def child(self, parents: Sequence[KubeSchedulerConfig], rng: np.random.Generator) -> KubeSchedulerConfig:
        """Return a configuration made of one parent or two, with one to three changes."""
        one, other = (parents[int(rng.integers(len(parents)))] for _ in range(2))
        if rng.random() < 0.5:
            if rng.random() < 0.5:
                one = replace(one, weights=other.weights)
            if rng.random() < 0.5:
                one = replace(one, strategy=other.strategy, shape=other.shape)
            if rng.random() < 0.5:
                one = replace(one, resources=other.resources)
        changes = [self._weights, self._shape, self._shape, self._resources, self._strategy]
        changes += [self._percentage] * self.samples + [self._backoff] * self.backs_off
        for _ in range(int(rng.integers(1, 4))):
            one = changes[int(rng.integers(len(changes)))](one, rng)
        return one

    def _weighed(self, config: KubeSchedulerConfig, wanted: Mapping[str, int]) -> KubeSchedulerConfig:
        """Return a configuration in which the searched plugins have these weights, or these times a number."""
        searched = {name: wanted.get(name, config.weights.get(name, 0)) for name in self.plugins}
        if not any(searched.values()):
            return config
        shared = gcd(*searched.values())
        searched = {name: weight // shared for name, weight in searched.items()}
        usual = sum(self.start.weights.get(name, 0) for name in self.plugins) or 1
        times = sum(searched.values()) / usual
        others = {
            name: max(1, round(weight * times))
            for name, weight in self.start.weights.items()
            if name not in searched and weight
        }
        return replace(config, weights=others | searched)

    def _weights(self, config: KubeSchedulerConfig, rng: np.random.Generator) -> KubeSchedulerConfig:
        weights = {name: config.weights.get(name, 0) for name in self.plugins}
        name = self.plugins[int(rng.integers(len(self.plugins)))]
        if rng.random() < 0.5:
            weights[name] = int(rng.integers(_MOST + 1))
        else:
            weights[name] = int(np.clip(weights[name] + rng.choice([-2, -1, 1, 2]), 0, _MOST))
        return self._weighed(config, weights)

    def _strategy(self, config: KubeSchedulerConfig, rng: np.random.Generator) -> KubeSchedulerConfig:
        return replace(config, strategy=_STRATEGIES[int(rng.integers(len(_STRATEGIES)))])

    def _shape(self, config: KubeSchedulerConfig, rng: np.random.Generator) -> KubeSchedulerConfig:
        """Move a point of the line, add or drop one, or draw a new line that rises or falls."""
        points, kind = dict(config.shape), rng.random()
        known = sorted(points)
        at = known[int(rng.integers(len(known)))]
        if kind < 0.6:
            points[at] = int(np.clip(points[at] + rng.choice([-3, -2, -1, 1, 2, 3]), 0, MAX_SHAPE_SCORE))
        elif kind < 0.75:
            points[5 * int(rng.integers(21))] = int(rng.integers(MAX_SHAPE_SCORE + 1))
        elif kind < 0.9:
            if len(points) > 2:
                del points[at]
        else:
            scores = np.sort(rng.integers(MAX_SHAPE_SCORE + 1, size=len(_UTILIZATIONS)))
            line = scores if rng.random() < 0.5 else scores[::-1]
            points = dict(zip(_UTILIZATIONS, line.tolist(), strict=True))
        return replace(config, strategy="RequestedToCapacityRatio", shape=tuple(sorted(points.items())))

    def _resources(self, config: KubeSchedulerConfig, rng: np.random.Generator) -> KubeSchedulerConfig:
        weights = {name: dict(config.resources).get(name, 0) for name in self.resources}
        name = self.resources[int(rng.integers(len(self.resources)))]
        weights[name] = int(rng.integers(_MOST + 1))
        if not any(weights.values()):
            return config
        shared = gcd(*weights.values())
        return replace(config, resources=tuple((each, weight // shared) for each, weight in weights.items() if weight))

    def _percentage(self, config: KubeSchedulerConfig, rng: np.random.Generator) -> KubeSchedulerConfig:
        return replace(config, percentage_of_nodes_to_score=_PERCENTAGES[int(rng.integers(len(_PERCENTAGES)))])

    def _backoff(self, config: KubeSchedulerConfig, rng: np.random.Generator) -> KubeSchedulerConfig:
        return replace(config, backoff_s=(BACKOFF_S[0], _MAX_BACKOFF_S[int(rng.integers(len(_MAX_BACKOFF_S)))]))

    def to_dict(self, config: KubeSchedulerConfig) -> dict[str, object]:
        """Return what is searched of a configuration as JSON-able values, the shape and backoffs where they count."""
        ratio = config.strategy == "RequestedToCapacityRatio"
        return {
            "weights": dict(sorted((name, weight) for name, weight in config.weights.items() if weight)),
            "strategy": config.strategy,
            "resources": [list(each) for each in sorted(config.resources)],
            "shape": [list(each) for each in config.shape] if ratio else [],
            "percentage_of_nodes_to_score": config.percentage_of_nodes_to_score,
            **({"backoff_s": list(config.backoff_s)} if config.backoff_s else {}),
        }
