"""Deployments: drawn at random from pod shapes, read from and written to the CSV files of the workload player."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from aaml.cluster.objects import NO_GPU, GpuRequest, Pod
from aaml.cluster.quantity import CPU, MEMORY, format_bytes, format_cpu
from aaml.errors import UserError, bad_value
from aaml.workload.table import Parser, choice, number, quantity, read_table, whole_number

Action = Literal["create", "delete"]
COLUMNS = ("name", "pod_count", "cpu_request", "cpu_limit", "mem_request", "mem_limit", "action", "lifetime_s")
_MIB = 1024**2
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123 label, as Kubernetes wants it
_MAX_NAME = 52  # leaves room for what Kubernetes adds: "-" + 10 of a ReplicaSet + a pod's suffix, 63 in all
_MAX_REPLICAS = 10_000


@dataclass(frozen=True, slots=True)
class Deployment:
    """Equal pods, `pod_count` of them, with amounts in milli-cores and bytes; a limit of 0 is no limit.

    `lifetime_s` is how many seconds after the moment when all its pods are placed the deployment is deleted. None lets
    it stay.
    """

    name: str
    pod_count: int
    cpu_milli: int
    memory_bytes: int
    cpu_limit_milli: int = 0
    memory_limit_bytes: int = 0
    lifetime_s: float | None = None
    gpu: GpuRequest = NO_GPU

    def pods(self, scheduler_name: str, namespace: str = "default", uid_prefix: str = "") -> tuple[Pod, ...]:
        """Return its pods as the in-process cluster takes them, numbered, with a ReplicaSet as their owner."""
        return tuple(
            Pod(
                f"{self.name}-{index}",
                namespace,
                uid=f"{uid_prefix}{namespace}/{self.name}-{index}",
                requests={CPU: self.cpu_milli, MEMORY: self.memory_bytes},
                gpu=self.gpu,
                labels={"app": self.name},
                scheduler_name=scheduler_name,
                owner=f"ReplicaSet/{self.name}",
            )
            for index in range(self.pod_count)
        )

    def row(self, action: Action) -> dict[str, object]:
        """Return its row in a CSV file with `COLUMNS`."""
        return {
            "name": self.name,
            "pod_count": self.pod_count,
            "cpu_request": format_cpu(self.cpu_milli),
            "cpu_limit": format_cpu(self.cpu_limit_milli) if self.cpu_limit_milli else "",
            "mem_request": format_bytes(self.memory_bytes),
            "mem_limit": format_bytes(self.memory_limit_bytes) if self.memory_limit_bytes else "",
            "action": action,
            "lifetime_s": "" if self.lifetime_s is None else f"{self.lifetime_s:g}",
        }


@dataclass(frozen=True, slots=True)
class DeploymentShape:
    """A kind of deployment: ranges to draw from, each value with the same probability; memory is in whole MiB.

    `weight` is how often the kind is drawn, beside the others. Limits are `limit_factor` times the requests, and 0 sets
    none.
    """

    replicas: tuple[int, int] = (5, 15)
    cpu_milli: tuple[int, int] = (50, 1000)
    memory_bytes: tuple[int, int] = (64 * _MIB, 2048 * _MIB)
    lifetime_s: tuple[float, float] | None = None
    gpu: GpuRequest = NO_GPU
    weight: float = 1.0
    limit_factor: float = 1.5
    name: str = "web"

    def draw(self, name: str, rng: np.random.Generator) -> Deployment:
        """Draw one deployment."""
        cpu = int(rng.integers(self.cpu_milli[0], self.cpu_milli[1] + 1))
        memory = _MIB * int(rng.integers(self.memory_bytes[0] // _MIB, self.memory_bytes[1] // _MIB + 1))
        return Deployment(
            name=name,
            pod_count=int(rng.integers(self.replicas[0], self.replicas[1] + 1)),
            cpu_milli=cpu,
            memory_bytes=memory,
            cpu_limit_milli=int(cpu * self.limit_factor),
            memory_limit_bytes=_MIB * int(memory // _MIB * self.limit_factor),
            lifetime_s=None if self.lifetime_s is None else round(float(rng.uniform(*self.lifetime_s)), 1),
            gpu=self.gpu,
        )


class RandomDeployments:
    """An endless stream of deployments, drawn from a mixture of shapes; the same seed gives the same stream.

    `tag` goes into every name, so that several players of one cluster do not give the same name twice. Without it the
    tag is drawn too.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        shapes: Sequence[DeploymentShape] = (DeploymentShape(),),
        *,
        lifetime_s: float | None = None,
        tag: str | None = None,
    ) -> None:
        if not shapes:
            raise ValueError("a mixture of no shapes")
        self._rng = rng
        self._shapes = shapes
        self._lifetime_s = lifetime_s
        weights = np.array([shape.weight for shape in shapes])
        self._chances = weights / weights.sum()
        self._number = 0
        self._tag = draw_tag(rng) if tag is None else tag

    def draw(self) -> Deployment:
        """Draw the next deployment.

        One whose shape names no lifetime gets that of the stream.
        """
        shape = self._shapes[int(self._rng.choice(len(self._shapes), p=self._chances))]
        self._number += 1
        deployment = shape.draw(f"{shape.name}-{self._tag}-{self._number}", self._rng)
        if deployment.lifetime_s is None and self._lifetime_s is not None:
            return replace(deployment, lifetime_s=self._lifetime_s)
        return deployment


def draw_tag(rng: np.random.Generator) -> str:
    """Return five letters and digits that make no word and can stand in a name of Kubernetes."""
    return "".join(str(letter) for letter in rng.choice(list("bcdfghjklmnpqrstvwxz2456789"), 5))


def read_deployments(path: Path) -> list[tuple[Deployment, Action]]:
    """Read a file with `COLUMNS` to play back, in which limits and lifetime_s may be empty or absent.

    Raises `UserError` naming file, line, column and value.
    """
    required: dict[str, Parser] = {
        "name": _name,
        "pod_count": _replicas,
        "cpu_request": quantity(CPU),
        "mem_request": quantity(MEMORY),
        "action": choice("create", "delete"),
    }
    optional: dict[str, Parser] = {
        "cpu_limit": quantity(CPU),
        "mem_limit": quantity(MEMORY),
        "lifetime_s": number(0.0),
    }
    steps: list[tuple[Deployment, Action]] = []
    alive: set[str] = set()
    for row in read_table(path, required, optional):
        deployment = Deployment(
            row["name"], row["pod_count"], row["cpu_request"], row["mem_request"], row.get("cpu_limit", 0),
            row.get("mem_limit", 0), row.get("lifetime_s"),
        )  # fmt: skip
        _check_limits(path, deployment)
        if row["action"] == "create" and deployment.name in alive:
            raise UserError(f"{path}: deployment {deployment.name!r} is created twice without a delete between")
        if row["action"] == "delete" and deployment.name not in alive:
            raise UserError(f"{path}: deployment {deployment.name!r} is deleted before it is created")
        (alive.add if row["action"] == "create" else alive.discard)(deployment.name)
        steps.append((deployment, row["action"]))
    if not steps:
        raise UserError(f"{path}: has no deployments, only a header")
    return steps


def _check_limits(path: Path, deployment: Deployment) -> None:
    for name, request, limit in (
        ("cpu_limit", deployment.cpu_milli, deployment.cpu_limit_milli),
        ("mem_limit", deployment.memory_bytes, deployment.memory_limit_bytes),
    ):
        if limit and limit < request:
            raise UserError(
                f"{path}: deployment {deployment.name!r}: {name} is below the request; Kubernetes refuses it"
            )


def read_shapes(path: Path) -> list[DeploymentShape]:
    """Read a mixture of kinds of deployments, with a kind on each line.

    The columns are name, weight, replicas, cpu_request, mem_request, lifetime_s, gpu_count and gpu_milli, of which only
    `name` must be there. An amount is one quantity or a range such as "100m..1". Raises `UserError` naming file, line,
    column and value.
    """
    shapes = []
    optional: dict[str, Parser] = {
        "weight": number(0.0),
        "replicas": _range(_replicas),
        "cpu_request": _range(quantity(CPU)),
        "mem_request": _range(quantity(MEMORY)),
        "lifetime_s": _range(number(0.0)),
        "gpu_count": whole_number(0),
        "gpu_milli": whole_number(0),
    }
    for row in read_table(path, {"name": _name}, optional):
        plain = DeploymentShape(name=row["name"])
        count, milli = row.get("gpu_count", 0), row.get("gpu_milli", 1000)
        shapes.append(
            replace(
                plain,
                weight=row.get("weight", 1.0),
                replicas=row.get("replicas", plain.replicas),
                cpu_milli=row.get("cpu_request", plain.cpu_milli),
                memory_bytes=row.get("mem_request", plain.memory_bytes),
                lifetime_s=row.get("lifetime_s"),
                gpu=GpuRequest(count, milli) if count else NO_GPU,
            )
        )
    if not any(shape.weight > 0 for shape in shapes):
        raise UserError(f"{path}: has no shape with a weight above 0")
    return shapes


def split_steps(steps: Sequence[tuple[Deployment, Action]], size: int) -> Iterator[list[tuple[Deployment, Action]]]:
    """Yield the steps in order, up to `size` creates together and each delete alone."""
    wave: list[tuple[Deployment, Action]] = []
    for step in steps:
        if wave and (step[1] == "delete" or wave[-1][1] == "delete" or len(wave) == size):
            yield wave
            wave = []
        wave.append(step)
    if wave:
        yield wave


def _name(field: str, text: str) -> str:
    if len(text) > _MAX_NAME or not _NAME.fullmatch(text):
        raise bad_value(
            field,
            text,
            f"a name of Kubernetes: at most {_MAX_NAME} of a-z, 0-9 and '-', beginning and ending with a-z or 0-9",
        )
    return text


def _replicas(field: str, text: str) -> int:
    value = int(whole_number(1)(field, text))
    if value > _MAX_REPLICAS:
        raise bad_value(field, text, f"a whole number of at most {_MAX_REPLICAS}")
    return value


def _range(parse: Parser) -> Parser:
    def parse_range(field: str, text: str) -> tuple[object, object]:
        low, dots, high = text.partition("..")
        least = parse(field, low.strip())
        most = parse(field, high.strip()) if dots else least
        if most < least:
            raise bad_value(field, text, "a range from the smaller to the larger")
        return least, most

    return parse_range
