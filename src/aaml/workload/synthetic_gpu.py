"""GPU-sharing clusters and workloads with the openb trace's statistics, of any size, without a download.

The kinds of nodes and the 72 most frequent kinds of pods of the default trace (cluster-trace-gpu-v2023) are shipped
with their counts. Lifetimes are log-normal with the trace's moments for each group of pods.
"""

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.objects import NO_GPU, GpuRequest, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.settings import Count, Fraction, Natural, Positive, take
from aaml.workload.traces import PODS_PER_NODE

_MIB = 1024 * 1024
# Mean and deviation of log(lifetime / 1 s): without GPU, a share, one GPU, several GPUs.
_LIFETIME = ((6.50, 1.72), (6.22, 1.97), (6.59, 1.80), (7.20, 2.63))


def synthetic_nodes(count: int) -> tuple[Node, ...]:
    """Return `count` nodes whose kinds stand in the trace's proportions.

    The kinds are evenly mixed, so that any number of nodes from the first one on has them too.
    """
    take("nodes", count, Count)
    kinds = _table("openb_node_kinds.csv")
    shares = np.array([int(kind["nodes"]) for kind in kinds], dtype=float)
    nodes = []
    for number, index in enumerate(_spread(shares / shares.sum(), count)):
        kind = kinds[index]
        allocatable = {
            CPU: int(kind["cpu_milli"]), MEMORY: int(kind["memory_mib"]) * _MIB, PODS: PODS_PER_NODE,
        }  # fmt: skip
        name = f"gpu-node-{number:0{len(str(count - 1))}d}"
        nodes.append(Node(name, allocatable, gpu_count=int(kind["gpu_count"]), gpu_model=kind["gpu_model"]))
    return tuple(nodes)


def synthetic_pods(
    count: int, rng: np.random.Generator, *, rate_per_s: float = 0.01, named_models: float = 0.0
) -> tuple[Pod, ...]:
    """Draw `count` pods in the order of their arrival, which is a Poisson process.

    `named_models` is the share of GPU pods that accept one model only, drawn in proportion to the trace's GPUs.
    """
    take("pods", count, Natural)
    take("rate_per_s", rate_per_s, Positive)
    take("named_models", named_models, Fraction)
    kinds = _table("openb_pod_kinds.csv")
    shares = np.array([int(kind["pods"]) for kind in kinds], dtype=float)
    drawn = rng.choice(len(kinds), size=count, p=shares / shares.sum())
    created = np.cumsum(rng.exponential(1.0 / rate_per_s, size=count))
    normal, named = rng.standard_normal(count), rng.random(count) < named_models
    models, model_shares = _models()
    chosen = rng.choice(len(models), size=count, p=model_shares)
    width = len(str(max(count - 1, 0)))
    pods = []
    for number in range(count):
        kind = kinds[int(drawn[number])]
        gpus, milli = int(kind["gpu_count"]), int(kind["gpu_milli"])
        only = frozenset({models[int(chosen[number])]}) if named[number] else frozenset[str]()
        mean, deviation = _LIFETIME[_group(gpus, milli)]
        pods.append(
            Pod(
                f"gpu-pod-{number:0{width}d}",
                requests={CPU: int(kind["cpu_milli"]), MEMORY: int(kind["memory_mib"]) * _MIB},
                gpu=GpuRequest(gpus, milli, only) if gpus else NO_GPU,
                created_s=float(created[number]),
                lifetime_s=float(np.exp(mean + deviation * normal[number])),
            )
        )
    return tuple(pods)


def pods_for_load(nodes: tuple[Node, ...], load: float) -> int:
    """Return how many synthetic pods request on average `load` times the nodes' GPU capacity."""
    kinds = _table("openb_pod_kinds.csv")
    pods = sum(int(kind["pods"]) for kind in kinds)
    requested = sum(int(kind["pods"]) * int(kind["gpu_count"]) * int(kind["gpu_milli"]) for kind in kinds)
    return round(load * DEVICE_MILLI * sum(node.gpu_count for node in nodes) * pods / requested)


def _group(gpus: int, milli: int) -> int:
    if gpus == 0:
        return 0
    if gpus == 1:
        return 1 if milli < DEVICE_MILLI else 2
    return 3


def _spread(shares: npt.NDArray[np.float64], count: int) -> Iterator[int]:
    """Yield `count` indices, at each point as near to the shares as whole numbers allow."""
    given = np.zeros(len(shares))
    for number in range(1, count + 1):
        index = int(np.argmax(shares * number - given))
        given[index] += 1
        yield index


def _models() -> tuple[list[str], npt.NDArray[np.float64]]:
    gpus: dict[str, int] = {}
    for kind in _table("openb_node_kinds.csv"):
        gpus[kind["gpu_model"]] = gpus.get(kind["gpu_model"], 0) + int(kind["gpu_count"]) * int(kind["nodes"])
    counts = np.array(list(gpus.values()), dtype=float)
    return list(gpus), counts / counts.sum()


@cache
def _table(name: str) -> tuple[Mapping[str, str], ...]:
    text = files("aaml.workload").joinpath("data", name).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))
