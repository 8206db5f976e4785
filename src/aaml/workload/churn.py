"""Pods of the openb trace that come and go: what they ask for, their class and how long they run, drawn together.

Each pod is one of the 8,152 of the default trace (cluster-trace-gpu-v2023), with its own requests, quality-of-service
class and lifetime, from its creation to its deletion: half of them run for less than 540 s, one in a hundred for more
than a day, and these hold nine tenths of the GPU time.
"""

import csv
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import NO_GPU, GpuRequest, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.errors import bad_value
from aaml.settings import Positive, take
from aaml.workload.load import Load, draw_load, take_load
from aaml.workload.model import Workload

_MIB = 1024 * 1024
_SHORTEST_S = 1.0
_BEFORE_S = 60.0  # in which nodes are provisioned for what was there before an episode
Half = Literal[0, 1]


@dataclass(frozen=True)
class Churn:
    """Draws a cluster in its steady state, in which pods ask for the fraction `load` of the GPUs on average.

    At time 0 pods run that came before, at negative times: as many as ask for `load` of the GPUs (in a short episode
    at most half of its pods), each with a probability in proportion to how long it runs, and at an age that is uniform
    over its life. From then on pods arrive as a Poisson process. `half`: only every second pod of the trace is drawn,
    so that what somebody learned from the one half says nothing of single pods of the other.
    """

    load: Load
    half: Half = 0

    def __post_init__(self) -> None:
        take_load(self.load)

    def __call__(self, nodes: tuple[Node, ...], pods: int, rng: np.random.Generator) -> Workload:
        """Draw a workload of so many pods."""
        runs = _runs(self.half)
        goal = draw_load(self.load, rng) * DEVICE_MILLI * sum(node.gpu_count for node in nodes)
        if not goal:
            raise bad_value("nodes", len(nodes), "nodes with GPUs")
        before = rng.choice(len(runs.lifetimes_s), size=pods, p=runs.lifetimes_s / runs.lifetimes_s.sum())
        requested = np.cumsum(runs.gpu_milli[before])
        before = before[: min(int(np.searchsorted(requested, goal)) + 1, pods // 2)]
        ages_s = rng.random(len(before)) * runs.lifetimes_s[before]
        after = rng.integers(len(runs.lifetimes_s), size=pods - len(before))
        rate_per_s = goal / float((runs.gpu_milli * runs.lifetimes_s).mean())
        arrivals_s = np.cumsum(rng.exponential(1.0 / rate_per_s, size=len(after)))
        order = np.argsort(-ages_s)
        drawn = np.concatenate([before[order], after])
        created_s = np.concatenate([-ages_s[order], arrivals_s])
        return Workload(
            tuple(
                runs.kinds[int(runs.kind[pick])].pod(number, at_s, float(runs.lifetimes_s[pick]))
                for number, (pick, at_s) in enumerate(zip(drawn.tolist(), created_s.tolist(), strict=True))
            ),
            "churn",
        )


@dataclass(frozen=True)
class OpenbArrivals:
    """Draws pods of the openb trace that ask for `gpus_per_node` GPUs on average, times the number of nodes.

    At time 0 there are pods that came before, drawn as `Churn` draws them; they arrive a minute earlier, with what is
    left of their lives. Then pods arrive as a Poisson process for `span_s`. An owner is a kind of pod. Those of
    best effort (a third) are jobs and may not be evicted; the others are services.
    """

    gpus_per_node: float = 3.5
    span_s: float = 86_400.0
    half: Half = 0

    def __post_init__(self) -> None:
        take("gpus_per_node", self.gpus_per_node, Positive)
        take("span_s", self.span_s, Positive)

    def __call__(self, nodes: int, rng: np.random.Generator) -> tuple[Workload, float]:
        """Draw the pods of an episode, and how long it lasts in seconds."""
        runs = _runs(self.half)
        goal = self.gpus_per_node * DEVICE_MILLI * nodes
        rate_per_s = goal / float((runs.gpu_milli * runs.lifetimes_s).mean())
        alive = rng.poisson(rate_per_s * float(runs.lifetimes_s.mean()))  # Little's law
        before = rng.choice(len(runs.lifetimes_s), size=alive, p=runs.lifetimes_s / runs.lifetimes_s.sum())
        left_s = rng.random(alive) * runs.lifetimes_s[before]
        arrivals_s = np.sort(rng.random(rng.poisson(rate_per_s * self.span_s))) * self.span_s
        after = rng.integers(len(runs.lifetimes_s), size=len(arrivals_s))
        drawn = np.concatenate([before, after]).tolist()
        created_s = np.concatenate([np.full(alive, -_BEFORE_S), arrivals_s]).tolist()
        lifetimes_s = np.concatenate([left_s + _BEFORE_S, runs.lifetimes_s[after]]).tolist()
        mark = f"{int(rng.integers(1 << 32)):08x}"  # nobody knows an owner from another episode
        pods = (
            self._pod(int(runs.kind[pick]), runs.kinds[int(runs.kind[pick])].pod(number, at_s, lasts_s), mark)
            for number, (pick, at_s, lasts_s) in enumerate(zip(drawn, created_s, lifetimes_s, strict=True))
        )
        return Workload(tuple(pods), "openb"), self.span_s

    @staticmethod
    def _pod(kind: int, pod: Pod, mark: str) -> Pod:
        is_job = pod.qos == "BE"
        owner = f"{'Job/job' if is_job else 'ReplicaSet/service'}-{kind}-{mark}"
        return replace(pod, name=f"openb-{pod.name.removeprefix('churn-')}", uid="", owner=owner, do_not_disrupt=is_job)


@dataclass(frozen=True)
class _Kind:
    requests: dict[str, int]
    gpu: GpuRequest
    qos: str

    def pod(self, number: int, created_s: float, lifetime_s: float) -> Pod:
        return Pod(
            f"churn-{number}", requests=self.requests, gpu=self.gpu, qos=self.qos, created_s=created_s,
            lifetime_s=lifetime_s,
        )  # fmt: skip


class _Runs(NamedTuple):
    """The pods of one half: their kind int64 [M], lifetimes float64 [M], and the GPU that they ask for float64 [M]."""

    kinds: list[_Kind]
    kind: npt.NDArray[np.int64]
    lifetimes_s: npt.NDArray[np.float64]
    gpu_milli: npt.NDArray[np.float64]


@cache
def _runs(half: Half) -> _Runs:
    text = files("aaml.workload").joinpath("data", "openb_pod_runs.csv").read_text(encoding="utf-8")
    kinds: list[_Kind] = []
    pods: list[tuple[int, float]] = []
    for row in csv.DictReader(text.splitlines()):
        count, milli = int(row["gpu_count"]), int(row["gpu_milli"])
        requests = {CPU: int(row["cpu_milli"]), MEMORY: int(row["memory_mib"]) * _MIB}
        pods += [(len(kinds), max(float(each), _SHORTEST_S)) for each in row["lifetimes_s"].split()]
        kinds.append(_Kind(requests, GpuRequest(count, milli) if count else NO_GPU, row["qos"]))
    kind, lifetimes_s = np.array([each[0] for each in pods[half::2]]), np.array([each[1] for each in pods[half::2]])
    gpu_milli = np.array([each.gpu.total_milli for each in kinds], dtype=np.float64)[kind]
    return _Runs(kinds, kind, lifetimes_s, gpu_milli)
