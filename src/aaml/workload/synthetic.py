"""Synthetic workloads: mixed pods that arrive at random and run for a random time, and seed A's random deployments."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.errors import bad_value
from aaml.settings import NotNegative, Positive, Settings, Share, take
from aaml.workload.bursts import arrival_times
from aaml.workload.deployments import RandomDeployments
from aaml.workload.model import Workload

Lifetime = Literal["exponential", "lognormal", "fixed", "endless"]


@dataclass(frozen=True)
class PodShape:
    """A kind of pod: what it requests, how often it comes (`weight`), and the mean of how long it runs.

    Without a `lifetime_s` of its own it runs as long as the mix says. `owner`: who its pods belong to, such as
    "Job/etl"; a ReplicaSet of the shape's name where nothing is said.
    """

    name: str
    requests: Mapping[str, int] = field(default_factory=dict)
    weight: float = 1.0
    lifetime_s: float | None = None
    owner: str = ""

    def __post_init__(self) -> None:
        take(f"shape {self.name}: weight", self.weight, Positive)
        take(f"shape {self.name}: lifetime_s", self.lifetime_s, Positive | None)


class Draws(NamedTuple):
    """A workload as numbers: shapes int64 [T], times of arrival and lifetimes float64 [T] in seconds (inf: endless)."""

    kinds: npt.NDArray[np.int64]
    created_s: npt.NDArray[np.float64]
    lifetimes_s: npt.NDArray[np.float64]


@dataclass(frozen=True)
class WorkloadSpec:
    """A mix of pods: how they arrive and how long they run.

    Bursts of pods arrive as a Poisson process, and `rate_per_s` counts their pods. The number of pods in a burst is
    geometric with the mean `burst`, where 1 gives a plain Poisson process. With `uniform_bursts` all pods of a burst
    have one shape. `lifetime_sigma` is the standard deviation of the logarithm of lognormal lifetimes; with the usual
    1.2 the tail is heavy: the longest tenth of the pods take 45% of the time.
    """

    shapes: tuple[PodShape, ...]
    rate_per_s: float = 1.0
    burst: float = 1.0
    uniform_bursts: bool = False
    lifetime: Lifetime = "exponential"
    lifetime_s: float = 600.0
    name: str = "synthetic"
    lifetime_sigma: float = 1.2

    def __post_init__(self) -> None:
        if not self.shapes:
            raise bad_value("shapes", [], "at least one shape of pod")
        take("rate_per_s", self.rate_per_s, Positive)
        take("burst", self.burst, Annotated[float, Meta(ge=1)])
        take("lifetime", self.lifetime, Lifetime)
        take("lifetime_s", self.lifetime_s, Positive)
        take("lifetime_sigma", self.lifetime_sigma, Positive)

    def mean_request(self, resource: str) -> float:
        """Return the amount of a resource that an arriving pod holds in the mean, times its lifetime in seconds."""
        total = sum(shape.weight for shape in self.shapes)
        return sum(
            shape.weight * shape.requests.get(resource, 0) * (shape.lifetime_s or self.lifetime_s)
            for shape in self.shapes
        ) / total  # fmt: skip

    def at_load(self, load: float, nodes: Sequence[Node]) -> "WorkloadSpec":
        """Return the mix at the rate that keeps the scarcest of CPU and memory used to the fraction `load`."""
        work = max(
            self.mean_request(resource) / max(sum(node.allocatable.get(resource, 0) for node in nodes), 1)
            for resource in (CPU, MEMORY)
        )
        if not work:
            raise bad_value("shapes", [shape.name for shape in self.shapes], "a shape that requests CPU or memory")
        return replace(self, rate_per_s=load / work)

    def generate(self, pods: int, rng: np.random.Generator) -> Workload:
        """Draw a workload of so many pods."""
        return Workload(tuple(self._pods(pods, rng)), self.name)

    def draw(self, count: int, rng: np.random.Generator) -> "Draws":
        """Draw so many pods as numbers alone, the same that `generate` makes pods of."""
        weights = np.array([shape.weight for shape in self.shapes])
        kinds = rng.choice(len(self.shapes), size=count, p=weights / weights.sum())
        times_s = arrival_times(rng, count, self.burst, self.rate_per_s)
        if self.uniform_bursts:
            first = np.flatnonzero(np.diff(times_s, prepend=-np.inf))  # bursts never come at the same moment
            kinds = kinds[np.repeat(first, np.diff(first, append=count))]
        if self.lifetime == "exponential":
            factors = rng.exponential(1.0, count)
        elif self.lifetime == "lognormal":
            factors = rng.lognormal(-0.5 * self.lifetime_sigma**2, self.lifetime_sigma, count)  # mean 1
        else:
            factors = np.ones(count)
        means_s = np.array([shape.lifetime_s or self.lifetime_s for shape in self.shapes])
        lifetimes_s = np.full(count, np.inf) if self.lifetime == "endless" else factors * means_s[kinds]
        return Draws(kinds, times_s, lifetimes_s)

    def pod(self, number: int, kind: int, created_s: float = 0.0, lifetime_s: float | None = None) -> Pod:
        """Return the pod of that number in a workload, of the shape `kind`."""
        shape = self.shapes[kind]
        return Pod(
            f"{shape.name}-{number}",
            uid=f"{self.name}-{number}",
            requests=shape.requests,
            owner=shape.owner or f"ReplicaSet/{shape.name}",
            created_s=created_s,
            lifetime_s=lifetime_s,
        )

    def _pods(self, count: int, rng: np.random.Generator) -> Iterator[Pod]:
        drawn = self.draw(count, rng)
        rows = zip(drawn.kinds.tolist(), drawn.created_s.tolist(), drawn.lifetimes_s.tolist(), strict=True)
        for number, (kind, created_s, lifetime_s) in enumerate(rows):
            yield self.pod(number, kind, created_s, None if self.lifetime == "endless" else lifetime_s)


# ---- random deployments ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeploymentSpec(Settings):
    """The workload of seed A: random deployments (see `aaml.workload.deployments`) until a load is reached.

    They follow each other `interval_s` apart. Loads are fractions of what the nodes offer, without the control plane,
    and the first one that is reached ends the workload.
    """

    cpu_load: Share = 0.2
    memory_load: Share = 0.2
    pod_load: Share = 0.2
    interval_s: NotNegative = 10.0

    def generate(self, nodes: Sequence[Node], rng: np.random.Generator) -> Workload:
        """Draw deployments for these nodes and return their pods."""
        capacity = [node for node in nodes if not node.is_control_plane]
        offered = [sum(node.allocatable.get(name, 0) for node in capacity) for name in (CPU, MEMORY, PODS)]
        targets = np.array(offered) * (self.cpu_load, self.memory_load, self.pod_load)
        stream, used, pods = RandomDeployments(rng), np.zeros(3), list[Pod]()
        at_s = 0.0
        while (used < targets).all():
            deployment = stream.draw()
            used += np.array([deployment.cpu_milli, deployment.memory_bytes, 1.0]) * deployment.pod_count
            pods += [replace(pod, created_s=at_s) for pod in deployment.pods("default-scheduler")]
            at_s += self.interval_s
        return Workload(tuple(pods), "deployments")
