"""Rhythm: services that last and jobs that do not, over two waves, drawn anew for each episode.

What an autoscaler's bill depends on differs from episode to episode: shapes (none is a power of two), how long pods run
(minutes to hours), how deep the valleys are, and the share of jobs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import cos, log, pi

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.settings import Positive, take
from aaml.workload.model import Workload

_WAVES = 2
_SPAN_S = 720.0  # of an episode whose pods run for minutes
_SLOWEST = 10.0  # times as long
_SERVICE_S, _JOB_S, _SHORTEST_S = 150.0, 60.0, 5.0  # median of services, mean of jobs, beside what each kind draws
_SPREAD = 0.8  # of the logarithm of a service's lifetime
_CORES = (0.1, 8.0)  # of a pod
_MEAN_CORES = (0.8, 2.0)  # of all pods of an episode
_KEPT = 0.8  # share of the kinds of jobs that may not be evicted
_GIB = 1 << 30
_MOST_GIB = 32.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of pod: its requests, its share of the arrivals, its lifetime, and whether it may be evicted."""

    owner: str
    cpu_milli: int
    memory_bytes: int
    weight: float
    lifetime_s: float  # the median of a service's, the mean of a job's
    is_job: bool
    do_not_disrupt: bool

    def draw_lifetime_s(self, rng: np.random.Generator) -> float:
        """Draw how long one runs."""
        if self.is_job:
            return _SHORTEST_S + float(rng.exponential(self.lifetime_s))
        return float(rng.lognormal(log(self.lifetime_s), _SPREAD))

    @property
    def mean_s(self) -> float:
        """How long one runs on average."""
        return _SHORTEST_S + self.lifetime_s if self.is_job else self.lifetime_s * float(np.exp(0.5 * _SPREAD**2))


@dataclass(frozen=True)
class Rhythm:
    """Draws pods that ask for `cores_per_node` cores on average, times the number of nodes that an episode is about."""

    cores_per_node: float = 4.0

    def __post_init__(self) -> None:
        take("cores_per_node", self.cores_per_node, Positive)

    def __call__(self, nodes: int, rng: np.random.Generator) -> tuple[Workload, float]:
        """Draw the pods of an episode, and how long it lasts in seconds."""
        slow = float(np.exp(rng.uniform(0.0, log(_SLOWEST))))
        span_s, depth = _SPAN_S * slow, float(rng.uniform(0.4, 0.9))
        kinds = self._kinds(slow, rng)
        shares = np.array([kind.weight for kind in kinds])
        work = sum(kind.weight * kind.cpu_milli * kind.mean_s for kind in kinds)  # milli-core seconds of a pod
        rate_per_s = 1000.0 * self.cores_per_node * nodes / work
        pods = self._pods(kinds, shares, rate_per_s, span_s, depth, rng)
        return Workload(tuple(pods), "rhythm"), span_s

    @staticmethod
    def _kinds(slow: float, rng: np.random.Generator) -> list[Kind]:
        """Draw the kinds; owners are named anew, so that nobody knows their lifetimes from another episode."""
        mark, jobs = f"{int(rng.integers(1 << 32)):08x}", float(rng.uniform(0.25, 0.55))
        counts = int(rng.integers(3, 7)), int(rng.integers(2, 6))
        is_job = np.repeat([False, True], counts)
        weights = 0.2 + rng.exponential(1.0, len(is_job))
        for part, share in ((~is_job, 1.0 - jobs), (is_job, jobs)):
            weights[part] *= share / weights[part].sum()
        cores = np.exp(rng.normal(0.0, 0.8, len(is_job)))
        cores *= float(np.exp(rng.uniform(log(_MEAN_CORES[0]), log(_MEAN_CORES[1])))) / (weights * cores).sum()
        cores = np.clip(cores, *_CORES)
        gib = np.minimum(cores * np.exp(rng.uniform(0.0, log(8.0), len(is_job))), _MOST_GIB)
        usual_s, spread = np.where(is_job, _JOB_S, _SERVICE_S), np.where(is_job, 0.5, 0.4)
        lifetimes_s = slow * usual_s * np.exp(rng.normal(0.0, spread))
        kept = is_job & (rng.random(len(is_job)) < _KEPT)
        return [
            Kind(
                f"{'Job/job' if is_job[k] else 'ReplicaSet/service'}-{k}-{mark}", int(1000 * cores[k]),
                int(gib[k] * _GIB), float(weights[k]), float(lifetimes_s[k]), bool(is_job[k]), bool(kept[k]),
            )
            for k in range(len(is_job))
        ]  # fmt: skip

    @staticmethod
    def _pods(
        kinds: list[Kind],
        shares: npt.NDArray[np.float64],
        rate_per_s: float,
        span_s: float,
        depth: float,
        rng: np.random.Generator,
    ) -> Iterator[Pod]:
        """Yield pods of a Poisson process whose rate follows the waves (thinning)."""
        peak, at_s, number = rate_per_s * (1.0 + depth), 0.0, 0
        requests = [{CPU: kind.cpu_milli, MEMORY: kind.memory_bytes} for kind in kinds]
        while True:
            at_s += float(rng.exponential(1.0 / peak))
            if at_s >= span_s:
                return
            now = 1.0 - depth * cos(2.0 * pi * _WAVES * at_s / span_s)
            if rng.random() * peak > now * rate_per_s:
                continue
            chosen = int(rng.choice(len(kinds), p=shares))
            kind = kinds[chosen]
            yield Pod(
                f"pod-{number}", uid=f"rhythm-{number}", requests=requests[chosen], owner=kind.owner,
                do_not_disrupt=kind.do_not_disrupt, created_s=at_s, lifetime_s=kind.draw_lifetime_s(rng),
            )  # fmt: skip
            number += 1
