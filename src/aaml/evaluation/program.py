"""The program that plays episodes and decides, named by what it plays: a digest of short episodes that stay the same.

So a changed comment leaves the name, and what changes a decision, a workload or a metric changes it. The episodes are
each task in small, each built-in policy at least once, the descheduler, and a formula for the features. All metrics
count but those that are measured.

The name is kept in the user's cache under a hash of the files that the program is made of.
"""

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np

from aaml.cluster.objects import HOSTNAME_LABEL, ZONE_LABEL, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.errors import UserError
from aaml.evaluation.entries import PolicyEntry
from aaml.evaluation.episode import run_episode
from aaml.evaluation.policies import split_nodes
from aaml.files import write_text
from aaml.folders import cache_dir, private_dir
from aaml.policies.formulas.policy import Formula, FormulaPolicy
from aaml.policies.formulas.text import parse
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.sim.cluster import SimCluster
from aaml.sim.metrics import METRICS
from aaml.sim.tasks import find_task
from aaml.sim.training_jobs import job_metrics
from aaml.workload.gangs import JobShape, Racks

_SHOWN = 12  # characters of the digest: enough to tell programs apart
_DIGITS = 9  # of a metric, and none after the twelfth decimal: the last bits of a sum are the machine's own
_SEED = 7
_FEATURES = (
    "node.cpu_used + 0.9 * node.memory_used - 0.8 * node.empty + 0.7 * node.gpu_free + 0.6 * node.pods_used"
    " + 0.5 * pair.cpu_gap_scaled - 0.4 * pair.memory_growth_scaled * pod.cpu + 0.3 * pair.variance_rank"
    " - 0.2 * pair.free_after_rank * pod.memory + 0.1 * pair.imbalance_after + 0.05 * pair.cpu_full_after"
)
"""A formula of features of all kinds, by name: a feature that is added leaves its scores."""
_PLAYED = (
    ("balance", 4, 60, ("random", "round-robin", "first-fit", "least-variance", "least-allocated", "kube-scheduler")),
    ("varied", 4, 60, ("least-variance", "balanced-allocation", "alphaevolve", "formula")),
    ("compress@0.7", 5, 120, ("most-allocated", "best-fit", "kube-scheduler-packing", "nilas", "lava", "clairvoyant")),
    ("waiting", 2, 150, ("kube-scheduler", "first-come", "smallest-first", "least-work-first")),
    ("waiting", 2, 150, ("clairvoyant-least-work-first",)),
    ("services-and-jobs@0.8", 5, 200, ("best-fit", "nilas", "lava", "clairvoyant")),
    ("churn@1.0", 4, 60, ("random", "fgd", "best-fit", "dot-product", "gpu-packing", "gpu-clustering", "formula")),
    ("churn@0.8", 6, 90, ("nilas", "shortest-first", "clairvoyant-shortest-first")),
    ("fragmentation", 4, 40, ("fgd",)),
    ("seedc", 3, 40, ("least-variance",)),
    ("seed-a", 3, 40, ("kube-scheduler",)),
    ("balance-batch", 3, 20, ("random",)),
    ("compress-batch", 3, 20, ("most-allocated",)),
    ("seedc-compress", 3, 40, ("most-allocated",)),
    ("bill", 5, 30, ("kube-scheduler", "nilas", "first-come-packing", "kube-scheduler-packing+learned")),
    ("bill-when-empty", 5, 30, ("kube-scheduler-packing",)),
    ("bill-when-empty", 5, 90, ("kube-scheduler-packing+high-node-utilization",)),
    ("bill-cluster-autoscaler", 5, 30, ("kube-scheduler-packing",)),
    ("bill-openb", 4, 40, ("fgd",)),
)  # task, nodes, pods, policies; its pods may be fewer where a task says how many there are
WITH_GANGS = ("first-fit", "kube-scheduler", "rack-packing")
"""Policies that gangs are played with."""
_MEASURED = ("latency_p50_ms", "latency_p99_ms")  # times of this machine
NAMED_BY = tuple(name for name in METRICS if name not in _MEASURED)
"""The metrics that a program is named by: all but those that are measured."""


_PACKAGE = Path(__file__).parents[1]
_MADE_OF = {".csv", ".json", ".py", ".yaml"}
_VERSIONS = 50  # of the program, whose names are kept


@cache
def program_sha256() -> str:
    """Return the name of the running program: at once where it is kept, and seconds after a change of a file."""
    try:
        file = cache_dir() / "programs" / program_made_of()
    except RuntimeError:  # this user has no home
        return played_sha256()
    with suppress(OSError, ValueError):
        if re.fullmatch(f"[0-9a-f]{{{_SHOWN}}}", kept := file.read_text(encoding="ascii")):
            return kept
    name = played_sha256()
    with suppress(UserError, OSError):
        write_text(private_dir(file.parent) / file.name, name, field="cache")
        for old in sorted(file.parent.iterdir(), key=lambda each: each.stat().st_mtime)[:-_VERSIONS]:
            old.unlink(missing_ok=True)
    return name


def played_sha256() -> str:
    """Return the name of the program by playing it."""
    return hashlib.sha256("\n".join(_lines()).encode()).hexdigest()[:_SHOWN]


@cache
def spreading_sha256() -> str:
    """Return the name of how kube-scheduler spreads pods that have siblings, by playing an episode of such pods.

    No task of ours has them, so the program's name does not tell.
    """
    room = {CPU: 2000, MEMORY: 8 << 30, PODS: 20}
    nodes = [
        Node(f"n{number}", {name: amount * (number + 1) for name, amount in room.items()},
             {HOSTNAME_LABEL: f"n{number}", ZONE_LABEL: "ab"[number % 2]})
        for number in range(6)
    ]  # fmt: skip
    pods = [
        Pod(f"p{number}", uid=f"p{number}", requests={CPU: 200 + 10 * number, MEMORY: 1 << 30}, created_s=float(number),
            lifetime_s=12.0, owner=f"ReplicaSet/{number % 3}", labels={"pod-template-hash": str(number % 3)})
        for number in range(30)
    ]  # fmt: skip
    found = []
    for name in ("kube-scheduler", "kube-scheduler-packing"):
        cluster = SimCluster(nodes, pods)
        play(cluster, make_policy(name, PolicyOptions(seed=_SEED)))
        found.append(f"{name} {_values(cluster.metrics())}")
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:_SHOWN]


@cache
def gangs_sha256() -> str:
    """Return the name of how gangs are placed and their jobs judged, by playing an episode of them under each policy.

    The program's name does not tell: its episodes have no gangs, and need no record.
    """
    shape = JobShape(nodes_per_rack=3, cpu_milli_per_gpu=1000)
    pods = [
        pod
        for number in range(24)
        for pod in shape.pods(f"j{number}", f"q{number % 3}", (1, 4, 16, 8, 2, 16)[number % 6], 3.0 * number, 30.0)
    ]
    found = []
    for name in WITH_GANGS:
        cluster = SimCluster(Racks((3,))(9), pods, further_metrics=job_metrics, ties=_SEED)
        play(cluster, make_policy(name, PolicyOptions(seed=_SEED)))
        found.append(f"{name} {_values(cluster.metrics())}")
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:_SHOWN]


def program_made_of() -> str:
    """Return a digest of the files and libraries that the program is made of: a changed comment changes it."""
    digest = hashlib.sha256(f"{sys.version} {np.__version__} {numba.__version__}".encode())
    for file in sorted(each for each in _PACKAGE.rglob("*.*") if each.suffix in _MADE_OF):
        digest.update(f"{file.relative_to(_PACKAGE)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _lines() -> Iterator[str]:
    """Yield a line for each episode: the policy and its metrics."""
    formula = FormulaPolicy(Formula(parse(_FEATURES)))
    for name, nodes, pods, specs in _PLAYED:
        task = find_task(name)
        for spec in specs:
            policy, bought_by = split_nodes(spec)
            entry = PolicyEntry(formula if policy == formula.name else policy, nodes=bought_by)
            row = run_episode(entry, task, _SEED, nodes, pods)
            yield f"{name} {nodes} {pods} {spec} {_values(row)}"


def _values(row: Mapping[str, Any]) -> str:
    return " ".join(f"{round(row[metric], 12) + 0.0:.{_DIGITS}g}" for metric in NAMED_BY if metric in row)


# ---- what no episode of these shows ----------------------------------------------------------------------------------

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def version_with(*packages: str) -> str:
    """Return the name of the program, and of packages whose work none of its episodes shows, by their source."""
    return f"{program_sha256()} {_source_of(packages)}"


@cache
def _source_of(packages: tuple[str, ...]) -> str:
    return source_sha256(_PACKAGE / name for name in packages)


def source_sha256(packages: Iterable[Path]) -> str:
    """Return a digest of the source of packages, without comments and docstrings."""
    found = hashlib.sha256()
    for package in packages:
        for file in sorted(package.rglob("*.py")):
            found.update(f"{file.relative_to(package.parent)}\n{_code(file.read_text(encoding='utf-8'))}\n".encode())
    return found.hexdigest()[:_SHOWN]


def _code(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
