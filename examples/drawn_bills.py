"""Bills that nothing here was tuned on: `aaml evaluate --task examples/drawn_bills.py:drawn_3 --policies ...`.

Each is drawn from its number: how long an episode lasts, how many waves it has and how deep they are, kinds of pods,
their sizes and lifetimes, how many are jobs, how many come in bursts. Four of six have types of AWS, where
`AWS_TYPES` names Karpenter's file of them (`kwok/examples/aws_instance_types.json` in its module); else all have the
types that ship.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import cos, exp, log, pi
from pathlib import Path

import numpy as np

from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.catalogue_file import read_catalogue
from aaml.sim.bill import BILL_TASKS, BillTask
from aaml.workload.model import Workload

GIB = 1 << 30
CORES, GIB_PER_CORE, MOST_GIB = (0.05, 8.0), (1.0, 8.0), 32.0
FAMILIES = ((), ("m5", "c5", "r5"), ("m6i", "c6i", "r6i"), (), ("m5", "c5", "r5", "m6i", "c6i"), ("m6a", "c6a", "r6a"))


@dataclass(frozen=True)
class Drawn:
    """Draws the pods of episodes: `service_s` and `job_s` are lifetimes, `jobs` and `burst` shares of the pods."""

    span_s: float
    waves: int
    depth: float
    jobs: float
    service_s: float
    job_s: float
    spread: float  # of the logarithm of a service's lifetime
    cores: float  # of a pod, on average
    cores_spread: float
    burst: float
    burst_size: float
    kinds: int
    kept: float  # share of the kinds of jobs that may not be evicted
    cores_per_node: float = 4.0

    @classmethod
    def of(cls, number: int) -> "Drawn":
        """Draw a workload."""
        rng = np.random.default_rng([number, 77])

        def between(low: float, high: float) -> float:
            return float(np.exp(rng.uniform(log(low), log(high))))

        span_s, waves, depth = between(1500, 7200), rng.integers(1, 6), rng.uniform(0.2, 0.9)
        jobs = rng.uniform(0.1, 0.8)
        service_s, job_s, spread = between(150, 1800), between(30, 300), rng.uniform(0.4, 1.3)
        cores, cores_spread, burst = between(0.5, 2.5), rng.uniform(0.4, 1.1), rng.uniform(0.0, 0.5)
        burst_size, kinds, kept = rng.uniform(3, 20), rng.integers(4, 14), rng.uniform(0.2, 0.9)
        return cls(
            span_s, int(waves), depth, jobs, service_s, job_s, spread, cores, cores_spread, burst, burst_size,
            int(kinds), kept,
        )  # fmt: skip

    def __call__(self, nodes: int, rng: np.random.Generator) -> tuple[Workload, float]:
        """Draw the pods of an episode of about so many nodes, and how long it lasts in seconds."""
        is_job = np.arange(self.kinds) < max(1, round(self.jobs * self.kinds))
        weights = 0.2 + rng.exponential(1.0, self.kinds)
        for part, share in ((~is_job, 1.0 - self.jobs), (is_job, self.jobs)):
            if part.any():
                weights[part] *= share / weights[part].sum()
        weights /= weights.sum()
        cores = np.exp(rng.normal(0.0, self.cores_spread, self.kinds))
        cores = np.clip(cores * self.cores / (weights * cores).sum(), *CORES)
        gib = np.minimum(cores * np.exp(rng.uniform(log(GIB_PER_CORE[0]), log(GIB_PER_CORE[1]), self.kinds)), MOST_GIB)
        usual_s = np.where(is_job, self.job_s, self.service_s) * np.exp(rng.normal(0.0, 0.4, self.kinds))
        kept = is_job & (rng.random(self.kinds) < self.kept)
        mean_s = np.where(is_job, 5.0 + usual_s, usual_s * exp(0.5 * self.spread**2))
        rate_per_s = self.cores_per_node * nodes / float((weights * cores * mean_s).sum())
        mark, pods = f"{int(rng.integers(1 << 32)):08x}", list[Pod]()
        for at_s in self._arrivals(rate_per_s, rng):
            kind = int(rng.choice(self.kinds, p=weights))
            lifetime_s = (
                5.0 + rng.exponential(usual_s[kind]) if is_job[kind] else rng.lognormal(log(usual_s[kind]), self.spread)
            )
            pods.append(Pod(
                f"pod-{len(pods)}", uid=f"drawn-{len(pods)}",
                requests={CPU: int(1000 * cores[kind]), MEMORY: int(gib[kind] * GIB)},
                owner=f"{'Job/job' if is_job[kind] else 'ReplicaSet/service'}-{kind}-{mark}",
                do_not_disrupt=bool(kept[kind]), created_s=at_s, lifetime_s=float(lifetime_s),
            ))  # fmt: skip
        return Workload(tuple(pods), "drawn"), self.span_s

    def _arrivals(self, rate_per_s: float, rng: np.random.Generator) -> Iterator[float]:
        """Yield when pods come: a Poisson process whose rate follows the waves, of single pods and of bursts."""
        alone = 1.0 - self.burst + self.burst / self.burst_size  # arrivals for a pod
        peak, at_s = rate_per_s * alone * (1.0 + self.depth), 0.0
        while (at_s := at_s + float(rng.exponential(1.0 / peak))) < self.span_s:
            now = 1.0 - self.depth * cos(2.0 * pi * self.waves * at_s / self.span_s)
            if rng.random() * (1.0 + self.depth) > now:
                continue
            bursts = rng.random() < self.burst / self.burst_size / alone
            yield from [at_s] * (1 + int(rng.poisson(self.burst_size - 1.0)) if bursts else 1)


@cache
def aws(path: str) -> Catalogue:
    """Read Karpenter's file."""
    return read_catalogue(Path(path))


@cache
def types_of(path: str, families: tuple[str, ...]) -> Catalogue:
    """Return the types of some families of AWS."""
    kinds = (kind for kind in aws(path).types if "metal" not in kind.name)
    return Catalogue(tuple(kind for kind in kinds if kind.name.partition(".")[0] in families))


def drawn_bill(number: int) -> BillTask:
    """Return the bill of a number."""
    path, families = os.environ.get("AWS_TYPES"), FAMILIES[number % len(FAMILIES)]
    types = types_of(path, families) if path and families else None
    return replace(BILL_TASKS["bill"], name=f"drawn_{number}", rhythm=Drawn.of(number), catalogue=types)


drawn_0, drawn_1, drawn_2, drawn_3, drawn_4, drawn_5 = map(drawn_bill, range(6))
