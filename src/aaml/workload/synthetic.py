"""Synthetic workloads: mixed pods that arrive at random and run for a random time, and seed A's random deployments.

A mix of shapes can be written as TOML or JSON:

    rate_per_s = 0.5                # pods a second in the long run
    burst = 1.0                     # mean number of pods that come at once
    lifetime_s = 600.0              # mean; "lifetime" is exponential, lognormal, fixed or endless
    [[shapes]]
    name = "web"
    weight = 3.0
    requests = { cpu = "500m", memory = "1Gi" }
    [[shapes]]
    name = "training"
    requests = { cpu = "8", memory = "32Gi" }
    gpu_count = 1
    gpu_milli = 500
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from aaml.cluster.objects import NO_GPU, GpuRequest, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS, amount
from aaml.errors import UserError, bad_value
from aaml.workload.deployments import RandomDeployments
from aaml.workload.model import Workload

Lifetime = Literal["exponential", "lognormal", "fixed", "endless"]
LOGNORMAL_SIGMA = 1.2  # a heavy tail: the longest tenth of the pods take 45% of the time


@dataclass(frozen=True)
class PodShape:
    """A kind of pod: what it requests, how often it comes (`weight`) and for how long (None: as the mix says)."""

    name: str
    requests: Mapping[str, int] = field(default_factory=dict)
    weight: float = 1.0
    lifetime_s: float | None = None
    gpu_count: int = 0
    gpu_milli: int = 0
    gpu_models: tuple[str, ...] = ()
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise bad_value(f"shape {self.name}: weight", self.weight, "a positive number")
        if self.lifetime_s is not None and self.lifetime_s <= 0:
            raise bad_value(f"shape {self.name}: lifetime_s", self.lifetime_s, "a positive number of seconds")
        if self.gpu_count > 1 and self.gpu_milli != 1000:
            raise bad_value(f"shape {self.name}: gpu_milli", self.gpu_milli, "1000 when gpu_count is more than 1")
        if not 0 <= self.gpu_milli <= 1000:
            raise bad_value(f"shape {self.name}: gpu_milli", self.gpu_milli, "0 to 1000 thousandths of a device")

    @property
    def gpu(self) -> GpuRequest:
        """What it asks of GPUs."""
        return GpuRequest(self.gpu_count, self.gpu_milli, frozenset(self.gpu_models)) if self.gpu_count else NO_GPU


@dataclass(frozen=True)
class WorkloadSpec:
    """A mix of pods: how they arrive and how long they run.

    Bursts arrive as a Poisson process; a burst holds a geometric number of pods with mean `burst` (1: plain Poisson),
    all of one shape when `uniform_bursts`. `rate_per_s` counts pods.
    """

    shapes: tuple[PodShape, ...]
    rate_per_s: float = 1.0
    burst: float = 1.0
    uniform_bursts: bool = False
    lifetime: Lifetime = "exponential"
    lifetime_s: float = 600.0
    name: str = "synthetic"

    def __post_init__(self) -> None:
        if not self.shapes:
            raise bad_value("shapes", [], "at least one shape of pod")
        if self.rate_per_s <= 0:
            raise bad_value("rate_per_s", self.rate_per_s, "a positive number of pods a second")
        if self.burst < 1:
            raise bad_value("burst", self.burst, "a mean burst size of at least 1")
        if self.lifetime not in get_args(Lifetime):
            raise bad_value("lifetime", self.lifetime, f"one of {', '.join(get_args(Lifetime))}")
        if self.lifetime_s <= 0:
            raise bad_value("lifetime_s", self.lifetime_s, "a positive number of seconds")

    def mean_request(self, resource: str) -> float:
        """Return the mean amount of a resource that is held over time per arriving pod, times its lifetime (s)."""
        total = sum(shape.weight for shape in self.shapes)
        return sum(
            shape.weight * shape.requests.get(resource, 0) * (shape.lifetime_s or self.lifetime_s)
            for shape in self.shapes
        ) / total  # fmt: skip

    def at_load(self, load: float, nodes: Sequence[Node]) -> "WorkloadSpec":
        """Return the mix at the rate that keeps the scarcest of CPU and memory used to the fraction `load`."""
        held = max(
            self.mean_request(resource) / max(sum(node.allocatable.get(resource, 0) for node in nodes), 1)
            for resource in (CPU, MEMORY)
        )
        if not held:
            raise bad_value("shapes", [shape.name for shape in self.shapes], "a shape that requests CPU or memory")
        return replace(self, rate_per_s=load / held)

    def generate(self, pods: int, rng: np.random.Generator) -> Workload:
        """Draw a workload of so many pods."""
        return Workload(tuple(self._draw(pods, rng)), self.name)

    def _draw(self, count: int, rng: np.random.Generator) -> Iterator[Pod]:
        weights = np.array([shape.weight for shape in self.shapes])
        kinds = rng.choice(len(self.shapes), size=count, p=weights / weights.sum())
        times = np.empty(count)
        at_s, made = 0.0, 0
        while made < count:
            at_s += rng.exponential(self.burst / self.rate_per_s)
            size = min(int(rng.geometric(1.0 / self.burst)), count - made)
            times[made : made + size] = at_s
            if self.uniform_bursts:
                kinds[made : made + size] = kinds[made]
            made += size
        if self.lifetime == "exponential":
            factors = rng.exponential(1.0, count)
        elif self.lifetime == "lognormal":
            factors = rng.lognormal(-0.5 * LOGNORMAL_SIGMA**2, LOGNORMAL_SIGMA, count)  # mean 1
        else:
            factors = np.ones(count)
        for number, (kind, at, factor) in enumerate(zip(kinds.tolist(), times.tolist(), factors.tolist(), strict=True)):
            shape = self.shapes[kind]
            yield Pod(
                f"{shape.name}-{number}",
                uid=f"{self.name}-{number}",
                requests=shape.requests,
                gpu=shape.gpu,
                labels=shape.labels,
                priority=shape.priority,
                owner=f"ReplicaSet/{shape.name}",
                created_s=at,
                lifetime_s=None if self.lifetime == "endless" else factor * (shape.lifetime_s or self.lifetime_s),
            )


def load_spec(path: Path) -> WorkloadSpec:
    """Read a mix from a TOML or JSON file; `UserError` names the file, the field, the value and what is accepted."""
    if not path.is_file():
        raise bad_value("workload", str(path), "a TOML or JSON file that exists")
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path.name}: not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    try:
        return _spec(data, path.stem)
    except UserError as error:
        raise UserError(f"{path.name}: {error}") from error


def _spec(data: Any, name: str) -> WorkloadSpec:
    values = _known(data, WorkloadSpec, "workload")
    shapes = values.pop("shapes", [])
    if not isinstance(shapes, list):
        raise bad_value("shapes", shapes, "a list of tables")
    return WorkloadSpec(tuple(_shape(shape, index) for index, shape in enumerate(shapes)), **{"name": name, **values})


def _shape(data: Any, index: int) -> PodShape:
    values = _known(data, PodShape, f"shapes[{index}]")
    name = values.setdefault("name", f"pod{index}")
    requests = values.get("requests", {})
    if not isinstance(requests, Mapping):
        raise bad_value(f"shape {name}: requests", requests, 'a table such as { cpu = "500m", memory = "1Gi" }')
    values["requests"] = {
        resource: amount(resource, quantity, f"shape {name}: requests.{resource}")
        for resource, quantity in requests.items()
    }
    values["gpu_models"] = tuple(values.get("gpu_models", ()))
    if values.get("gpu_count", 0) > 1 or ("gpu_count" in values and "gpu_milli" not in values):
        values.setdefault("gpu_milli", 1000)
    return PodShape(**values)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "rate_per_s": (int, float), "burst": (int, float), "lifetime_s": (int, float), "weight": (int, float),
    "uniform_bursts": (bool,), "lifetime": (str,), "name": (str,), "gpu_count": (int,), "gpu_milli": (int,),
    "gpu_models": (list,), "priority": (int,), "labels": (dict,),
}  # fmt: skip


def _known(data: Any, kind: type, where: str) -> dict[str, Any]:
    names = [each.name for each in fields(kind)]
    if not isinstance(data, Mapping):
        raise bad_value(where, data, f"a table with {', '.join(names)}")
    for key, value in data.items():
        if key not in names:
            raise bad_value(where, key, f"one of {', '.join(names)}")
        types = _TYPES.get(key)
        if types is not None and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
            raise bad_value(f"{where}.{key}", value, " or ".join(each.__name__ for each in types))
    return dict(data)


# ---- random deployments ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """Random deployments (see `aaml.workload.deployments`) until a load is reached: the workload of seed A.

    Deployments follow `interval_s` apart. Loads are fractions of the capacity nodes' allocatable; the first one reached
    ends the workload.
    """

    cpu_load: float = 0.2
    memory_load: float = 0.2
    pod_load: float = 0.2
    interval_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("cpu_load", "memory_load", "pod_load"):
            if not 0 < getattr(self, name) <= 1:
                raise bad_value(name, getattr(self, name), "a fraction above 0 and at most 1")

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
