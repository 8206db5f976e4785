"""Workloads that differ from episode to episode, in their pods, nodes, bursts and lifetimes: what one mix never shows.

A policy that has learned from one mix of pods may be wrong about another one. Here each episode draws a mix and a fleet
of its own, so that only what holds for most of them can be learned. (Domain randomisation: Tobin et al., IROS 2017.)
"""

from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np

from aaml.cluster.fleet import STANDARD, NodeShape, workers
from aaml.cluster.objects import Node
from aaml.cluster.quantity import CPU, MEMORY
from aaml.workload.load import Load, draw_load, take_load
from aaml.workload.model import Workload
from aaml.workload.synthetic import Lifetime, PodShape, WorkloadSpec

_USUAL = 0.3  # share of the episodes that have the usual mix
_ALIKE = 0.6  # share of the fleets whose nodes are all alike
_MOST_KINDS = 12  # of pods in a mix
_MEAN_SIZES = (1 / 60, 1 / 8)  # what the mean pod of a mix asks for, as a fraction of a node
_LARGEST = 0.5  # pod, as a fraction of the smallest node
_MOST_AT_ONCE = 20.0  # pods of a burst, on average
_LIFETIMES: tuple[Lifetime, ...] = tuple(each for each in get_args(Lifetime) if each != "endless")


@dataclass(frozen=True)
class Varied:
    """Draws a mix of pods, and pods of this mix, that keep a fraction `load` of the nodes in use on average.

    A mix has up to 12 kinds of pods of random sizes, shares and lifetimes, which come one by one or in bursts of up to
    20 on average, all of a burst of one kind or not. Three tenths of the episodes have the mix `usual`.
    """

    load: Load
    usual: WorkloadSpec = field(hash=False)  # it holds mappings

    def __post_init__(self) -> None:
        take_load(self.load)

    def __call__(self, nodes: tuple[Node, ...], pods: int, rng: np.random.Generator) -> Workload:
        """Draw a workload of so many pods."""
        mix = self.usual if rng.random() < _USUAL else self.mix(nodes, rng)
        burst = 1.0 if rng.random() < 0.5 else float(np.exp(rng.uniform(0.0, np.log(_MOST_AT_ONCE))))
        mix = replace(mix, burst=burst, uniform_bursts=bool(rng.random() < 0.5))
        return mix.at_load(draw_load(self.load, rng), nodes).generate(pods, rng)

    def mix(self, nodes: tuple[Node, ...], rng: np.random.Generator) -> WorkloadSpec:
        """Draw a mix for these nodes."""
        kinds = int(rng.integers(1, _MOST_KINDS + 1))
        low, high = np.log(_MEAN_SIZES)
        skew = rng.normal(0.0, 0.5)  # some mixes ask for more CPU than memory
        sizes = np.exp(rng.uniform(low, high) + rng.normal(0.0, 0.8, (kinds, 1)) + rng.normal(0.0, 0.5, (kinds, 2)))
        sizes = np.minimum(sizes * np.exp([skew / 2, -skew / 2]), _LARGEST)
        weights, lifetimes_s = rng.exponential(1.0, kinds), 900.0 * np.exp(rng.normal(0.0, 0.7, kinds))
        cpu, memory = (min(node.allocatable[resource] for node in nodes) for resource in (CPU, MEMORY))
        shapes = tuple(
            PodShape(
                f"kind-{kind}", {CPU: max(1, int(size[0] * cpu)), MEMORY: max(1, int(size[1] * memory))},
                max(float(weight), 0.05), float(lifetime_s),
            )
            for kind, (size, weight, lifetime_s) in enumerate(zip(sizes, weights, lifetimes_s, strict=True))
        )  # fmt: skip
        return WorkloadSpec(shapes, lifetime=_LIFETIMES[int(rng.integers(len(_LIFETIMES)))], name="varied")


def varied_nodes(count: int, rng: np.random.Generator) -> tuple[Node, ...]:
    """Draw a fleet: nodes that are all alike, or of two or three kinds that differ by up to eight times."""
    if rng.random() < _ALIKE:
        return workers(count)
    kinds = []
    for _ in range(int(rng.integers(2, 4))):
        times, more = 2.0 ** rng.uniform(-1.5, 1.5), 2.0 ** rng.uniform(-0.7, 0.7)
        standard = STANDARD.allocatable()
        cpu, memory = int(standard[CPU] * times), int(standard[MEMORY] * times * more) >> 20
        kinds.append(workers(count, NodeShape(cpu=f"{cpu}m", memory=f"{memory}Mi", pods=STANDARD.pods)))
    return tuple(kinds[int(rng.integers(len(kinds)))][number] for number in range(count))
