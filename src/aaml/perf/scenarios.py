"""The scenarios of the pinned Kubernetes module's scheduler benchmark, read from where the module lies."""

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from aaml.errors import UserError, bad_value
from aaml.kube.provision.binaries import minimum_go, recipe_dir, versions
from aaml.kube.provision.toolchain import find_go
from aaml.perf.operations import (
    AllocResourceClaims,
    AnyOperation,
    CreateAny,
    CreateNodes,
    CreatePodGroups,
    CreatePods,
    CreateResourceDriver,
    UpdateAny,
    unrolled,
)
from aaml.perf.templates import api_version

SMALL = "integration-test"
"""The label of workloads of 1 to 10 nodes, by which Kubernetes tests that its scheduler works at all."""
_MODULE = "k8s.io/kubernetes"
_FOLDER = Path("test") / "integration" / "scheduler_perf"
_FILE = "performance-config.yaml"
_DEVICES = "resource.k8s.io/"


class _Workload(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    params: dict[str, Any] = {}
    labels: list[str] = []
    feature_gates: dict[str, bool] = {}


class _Scenario(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    workload_template: list[AnyOperation]
    workloads: list[_Workload]
    feature_gates: dict[str, bool] = {}
    default_pod_template_path: str | None = None


@dataclass(frozen=True, eq=False)
class Play:
    """One workload of one scenario: the operations with their numbers, and the feature gates they are played with.

    `folder` is where paths of templates start. `refused` says in words what of it a scheduler of AAML's own does not
    honour, "" when it honours all; a plugin in kube-scheduler honours it. `unplayed` says what of it the player lacks.
    """

    scenario: str
    workload: str
    labels: frozenset[str]
    gates: Mapping[str, bool]
    steps: tuple[AnyOperation, ...]
    folder: Path
    refused: str
    unplayed: str

    @property
    def name(self) -> str:
        """SCENARIO/WORKLOAD."""
        return f"{self.scenario}/{self.workload}"

    @property
    def nodes(self) -> int:
        """How many nodes it creates."""
        return sum(step.count for step in self.steps if isinstance(step, CreateNodes))


def benchmark_dir() -> Path:
    """Return the folder of the benchmark in Go's module cache.

    Raises `UserError` that says how to get it where the module is not in the cache.
    """
    recipe, go = recipe_dir() / "kubernetes", find_go(minimum_go())
    command = [str(go.command), "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", _MODULE]
    offline = go.environment(os.environ) | {"GOPROXY": "off"}
    found = subprocess.run(  # noqa: S603  (our own command line, no shell)
        command, cwd=recipe, env=offline, capture_output=True, text=True, check=False
    )
    folder = Path(found.stdout.strip() or "-") / _FOLDER
    if not folder.is_dir():
        raise UserError(
            f"the source of Kubernetes {versions().kubernetes} is not in Go's module cache, and its benchmark is read "
            f"from there; get it with `{go.command} -C {recipe} mod download {_MODULE}` (about 300 MB, once)"
        )
    return folder


@lru_cache(maxsize=4)
def read(folder: Path) -> tuple[Play, ...]:
    """Return every workload of every scenario in the benchmark's folder, in the order of the files.

    Raises `UserError` that names the file for what is not understood.
    """
    return tuple(play for file in sorted(folder.rglob(_FILE)) for play in _read_file(file))


def select(plays: Iterable[Play], scenarios: Sequence[str], workloads: Sequence[str]) -> tuple[Play, ...]:
    """Return the plays that are meant: patterns (`Scheduling*`) of scenarios, and of workloads.

    Without a pattern all scenarios are meant, or the small workloads. Raises `UserError` for patterns that mean none.
    """
    plays = tuple(plays)
    known = tuple(dict.fromkeys(play.scenario for play in plays))
    for pattern in scenarios:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise bad_value("scenario", pattern, f"one of {', '.join(known)}")
    chosen = [play for play in plays if not scenarios or any(fnmatchcase(play.scenario, each) for each in scenarios)]
    meant = tuple(
        play
        for play in chosen
        if (any(fnmatchcase(play.workload, each) for each in workloads) if workloads else SMALL in play.labels)
    )
    if not meant:
        there = ", ".join(dict.fromkeys(play.workload for play in chosen))
        raise bad_value("workload", " ".join(workloads) or f"(label {SMALL})", f"one of {there}")
    return meant


def _read_file(file: Path) -> list[Play]:
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)
        scenarios = msgspec.convert(content, list[_Scenario])
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise UserError(f"{file}: {' '.join(str(error).split())}") from error
    return [_play(scenario, workload, file.parent) for scenario in scenarios for workload in scenario.workloads]


def _play(scenario: _Scenario, workload: _Workload, folder: Path) -> Play:
    steps = tuple(
        _with_default(step, scenario.default_pod_template_path)
        for step in unrolled(scenario.workload_template, workload.params)
    )
    return Play(
        scenario.name, workload.name, frozenset(workload.labels), {**scenario.feature_gates, **workload.feature_gates},
        steps, folder, _refused(steps, folder), _unplayed(steps),
    )  # fmt: skip


def _with_default(step: AnyOperation, template: str | None) -> AnyOperation:
    if isinstance(step, CreatePods) and step.pod_template_path is None:
        return msgspec.structs.replace(step, pod_template_path=template)
    return step


def _refused(steps: Iterable[AnyOperation], folder: Path) -> str:
    for step in steps:
        if isinstance(step, CreateResourceDriver | AllocResourceClaims) or (
            isinstance(step, CreateAny | UpdateAny) and api_version(folder / step.template_path).startswith(_DEVICES)
        ):
            return "dynamic resources (DRA)"
    return ""


def _unplayed(steps: Iterable[AnyOperation]) -> str:
    for step in steps:
        if isinstance(step, AllocResourceClaims):
            return "claims that get devices without a pod"
        if isinstance(step, CreatePodGroups) or (isinstance(step, CreatePods) and step.count_multiplier != 1):
            return "groups of pods"
        if getattr(step, "template_params", None):
            return "templates with parameters of their own"
    return ""
