"""The program that plays episodes and decides, named by what it plays: a digest of short episodes that stay the same.

So a changed comment leaves the name, and what changes a decision, a workload or a metric changes it. The episodes are
each task in small, each built-in policy at least once, the descheduler, and a formula for the features. All metrics
count but those that are measured.
"""

import hashlib
from collections.abc import Iterator
from functools import cache

from aaml.evaluation.entries import PolicyEntry
from aaml.evaluation.episode import run_episode
from aaml.evaluation.policies import split_nodes
from aaml.policies.formulas.policy import Formula, FormulaPolicy
from aaml.policies.formulas.text import parse
from aaml.sim.metrics import METRICS
from aaml.sim.tasks import find_task

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
_MEASURED = ("latency_p50_ms", "latency_p99_ms")  # times of this machine
NAMED_BY = tuple(name for name in METRICS if name not in _MEASURED)
"""The metrics that a program is named by: all but those that are measured."""


@cache
def program_sha256() -> str:
    """Return the name of the running program; about a second at the first call."""
    return hashlib.sha256("\n".join(_lines()).encode()).hexdigest()[:_SHOWN]


def _lines() -> Iterator[str]:
    """Yield a line for each episode: who played what, and what came of it."""
    formula = FormulaPolicy(Formula(parse(_FEATURES)))
    for name, nodes, pods, specs in _PLAYED:
        task = find_task(name)
        for spec in specs:
            policy, bought_by = split_nodes(spec)
            entry = PolicyEntry(formula if policy == formula.name else policy, nodes=bought_by)
            row = run_episode(entry, task, _SEED, nodes, pods)
            told = (f"{round(row[metric], 12) + 0.0:.{_DIGITS}g}" for metric in NAMED_BY if metric in row)
            yield f"{name} {nodes} {pods} {spec} {' '.join(told)}"
