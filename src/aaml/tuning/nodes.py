"""Tuning a policy of nodes for a bill by an evolution strategy, with limits on waits and evictions.

A generation's policies play the same episodes, drawn anew for each generation. A limit that is passed counts as
dollars do. Validation episodes compare the start and the means of several generations; what is told comes from others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aaml.episodes.flow import Flow
from aaml.errors import StoppedError, UserError, bad_value
from aaml.evaluation.evaluate import evaluate
from aaml.evaluation.identity import inputs
from aaml.evaluation.results import Results
from aaml.nodes.file import read_autoscaler
from aaml.nodes.node_policy import NodePolicy, write_node_policy
from aaml.outputs import output_file, refuse_overwriting
from aaml.parallel.pool import Pool, open_pool
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.heuristics.linear import FEATURE, FEATURES, TERM, TERMS
from aaml.policies.kube_scores import KubeScheduler
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.settings import plain
from aaml.sim.cluster import SimCluster
from aaml.sim.recorded_bill import bill_of, under
from aaml.sim.task import Task
from aaml.study.held_out import PACKING, STOCK, TUNED, HeldOut, on_held_out
from aaml.study.page import write_page
from aaml.study.problem import Problem
from aaml.study.samplers import CmaEs
from aaml.study.study import Study, exists, folder_beside, from_now
from aaml.study.trial import Trial
from aaml.tuning.bill import BillSearch, Limits
from aaml.tuning.episodes import check_seeds, metrics_of, seeds_of

FloatArray = npt.NDArray[np.float64]
_FIRST = 1.0  # seconds at which a logarithm of seconds begins
RANGES = {
    "idle_s": (_FIRST, 40.0), "patience_s": (_FIRST, 120.0), "patience_growth": (-1.0, 1.0),
    "spare_value": (0.0, 1.0), "spare_growth": (0.0, 1.0), "spare_swing": (0.0, 5.0),
    "size_power": (-0.4, 0.2), "largest_share": (0.05, 1.0), "empty_s": (0.0, 30.0), "horizon_s": (20.0, 3000.0),
    "job_times": (0.0, 6.0), "margin": (0.0, 0.6), "most_at_once": (0.05, 0.8),
}  # fmt: skip
"""What is searched, and between which values. `look_s` and `eviction_dollars` stay: others say the same."""
_LOGARITHMIC = ("idle_s", "patience_s", "horizon_s")
_DEVIATION = 0.12  # of a range, at the beginning
_PENALTY = 1.5  # what passing a limit by so much counts, in logarithms of dollars
_OUTSIDE = 0.05  # what a vector counts for each range that it is beyond
_POOL = 512  # training episodes that generations draw from
FIRST_COME = "first-come-packing"
_PACKING_WEIGHTS = np.zeros((len(TERMS), len(FEATURES)))  # that rule as a linear scorer
_PACKING_WEIGHTS[TERM.one, [FEATURE.cpu, FEATURE.memory]] = 1.0
_COMPARED = 4  # means that validation compares with the start


@dataclass(frozen=True)
class NodePolicyTuning(BillSearch):
    """What to tune: `task` is a bill, `policy` places the pods, `start` is a file to begin with."""

    task: Task
    out: Path
    policy: str = FIRST_COME
    start: Path | None = None
    metric: str = "bill_per_core_hour"
    limits: Limits = field(default_factory=Limits)
    generations: int = 30
    population: int = 12
    episodes: int = 12
    seeds: tuple[int, ...] | None = None
    seed: int = 0
    workers: int | str = 1

    @property
    def folder(self) -> Path:
        """Where the study is kept."""
        return folder_beside(self.out)

    def inputs(self) -> dict[str, str]:
        """Return the task, who places the pods and the start, by contents."""
        files = {"start": () if self.start is None else (self.start,)}
        return inputs([self.task], {"policy": self.policy}, files, besides=[STOCK])


@dataclass(frozen=True)
class TunedNodePolicy:
    """The policy that was chosen on validation episodes and written, with all runs on episodes held out."""

    policy: NodePolicy
    results: Results
    held_out: HeldOut
    generations: int


def to_vector(policy: NodePolicy) -> FloatArray:
    """Return [D], the numbers that are searched as shares of their ranges."""
    return np.array([_share(name, getattr(policy, name)) for name in RANGES])


def of_vector(vector: FloatArray, start: NodePolicy) -> NodePolicy:
    """Return the policy of a vector, cut to the ranges; all else is that of `start`."""
    shares = np.clip(vector, 0.0, 1.0).tolist()
    return replace(start, **{name: _value(name, share) for name, share in zip(RANGES, shares, strict=True)})


def _share(name: str, value: float) -> float:
    low, high = RANGES[name]
    value = min(max(value, low), high)
    return log(value / low) / log(high / low) if name in _LOGARITHMIC else (value - low) / (high - low)


def _value(name: str, share: float) -> float:
    low, high = RANGES[name]
    return round(low * exp(share * log(high / low)) if name in _LOGARITHMIC else low + share * (high - low), 4)


def evaluate_nodes(
    task: Task, seed: int, nodes: int | None, configs: Sequence[tuple[str, NodePolicy | None]], metrics: Sequence[str]
) -> FloatArray:
    """Return [configurations, metrics] of an episode under each policy and node policy; None: the task's own."""
    played = []
    for name, nodes_by in configs:
        found = _played((task if nodes_by is None else under(task, nodes_by)).build(seed, nodes), name, seed)
        played.append([found[metric] for metric in metrics])
    return np.array(played, dtype=np.float64)


def _played(cluster: SimCluster, name: str, seed: int) -> Mapping[str, float]:
    """Return the metrics of an episode under a policy: compiled where the policy and the episode can be."""
    policy = make_policy(name, PolicyOptions(seed=seed))
    if isinstance(policy, KubeScheduler):
        return metrics_of(cluster, policy.config, seed)
    if name == FIRST_COME:
        try:
            return Flow.of(cluster).play(_PACKING_WEIGHTS)
        except UserError:
            pass  # it has what compiled episodes do not know
    play(cluster, policy)
    return cluster.metrics()


def tune(
    settings: NodePolicyTuning, *, resume: bool = False, stopped: Callable[[], bool] = lambda: False
) -> TunedNodePolicy:
    """Search, choose, write and evaluate; once `stopped` says so, what there is.

    The same settings give the same file, for any number of workers. The file holds the latest mean after every
    generation. With `resume` a search that was cut off goes on. Raises `UserError` for settings that nothing can be
    done with, and `StoppedError` where it was stopped before anything was known, or after the search.
    """
    bill_of(settings.task).check_metric(settings.metric)
    check_seeds(settings.task, settings.seeds, _POOL, 2 * settings.episodes)
    with output_file(settings.out):
        refuse_overwriting([settings.out], [settings.start] if settings.start else [], going_on=exists(settings.folder))
        return _tune(settings, resume, stopped)


def _tune(settings: NodePolicyTuning, resume: bool, stopped: Callable[[], bool]) -> TunedNodePolicy:
    start = NodePolicy()
    if settings.start is not None:
        accepted = "a policy of nodes, as `aaml search nodes` writes it"
        read = read_autoscaler(settings.start, "start", accepted)
        if not isinstance(read, NodePolicy):
            raise bad_value("start", str(settings.start), accepted)
        start = read
    sampler = CmaEs(to_vector(start), population=settings.population, deviation=_DEVIATION, seed=settings.seed)
    with (
        Study(
            settings.folder, settings.to_dict(), settings.inputs(), resume=resume, length=settings.generations
        ) as study,
        open_pool(settings.workers) as pool,
    ):
        generations = _search(settings, start, sampler, study, pool, stopped)
        stopped = from_now(stopped)
        policy = _chosen(settings, start, sampler.means[: generations + 1], pool, stopped)
        write_node_policy(settings.out, policy)
        look = study.look([plain(policy)], settings.seeds)
        results = evaluate(
            {STOCK: STOCK, PACKING: PACKING, TUNED: f"{settings.policy}+{settings.out}"}, settings.task, settings.seeds,
            workers=settings.workers, stopped=stopped,
        )  # fmt: skip
        held_out = on_held_out(results, settings.metric, settings.limits.list(), look)
        lines = (*held_out.first, *held_out.lines)
        by = f"with the policy {settings.policy} (aaml search nodes)"
        head = f"tuned for {settings.task.name} {by}; on held-out episodes:"
        write_node_policy(settings.out, policy, (head, *lines))
        shown = {"task": settings.task.name, "policy": settings.policy, **settings.to_dict()}
        write_page(study, f"Nodes for {settings.task.name}", lines, shown, (settings.metric,), [settings.out])
    return TunedNodePolicy(policy, results, held_out, generations)


def _problem(settings: NodePolicyTuning, seeds: Sequence[int]) -> Problem[tuple[str, NodePolicy | None]]:
    sizes = settings.task.sizes or (None,)
    limits = settings.limits.list()
    return Problem(settings.task, seeds, sizes, evaluate_nodes, (settings.metric,), relative=True, limits=limits)


def _search(
    settings: NodePolicyTuning, start: NodePolicy, sampler: CmaEs, study: Study, pool: Pool, stopped: Callable[[], bool]
) -> int:
    """Search, and return how many generations there were."""
    seeds = seeds_of(settings.task, "training", _POOL)
    best = 0.0

    def evaluate(vectors: Sequence[FloatArray], number: int, _known: object) -> list[Trial[FloatArray]]:
        nonlocal best
        rng = np.random.default_rng([settings.seed, number])
        drawn = rng.choice(seeds, size=min(settings.episodes, len(seeds)), replace=False).tolist()
        problem = _problem(settings, drawn)
        configs = [(STOCK, None), *((settings.policy, of_vector(vector, start)) for vector in vectors)]
        stock, *mine = problem.play(pool, configs, range(len(problem.all)), stopped)
        found = np.array(mine)
        broken = problem.excess(found, stock)
        losses = problem.losses(found, problem.scale(stock))[:, 0] + _PENALTY * broken
        # outside a range a vector is its nearest inside: the farther out, the worse, so that the mean comes back
        outside = [_OUTSIDE * float(np.abs(vector - np.clip(vector, 0.0, 1.0)).sum()) for vector in vectors]
        best = float(losses[-1])
        return [
            Trial(vector, (float(loss) + far,), float(over))
            for vector, loss, far, over in zip(vectors, losses, outside, broken, strict=True)
        ]

    def after(_number: int) -> str:
        write_node_policy(settings.out, of_vector(sampler.means[-1], start))
        return f"gain={100.0 * (1.0 - exp(best)):.1f}%"

    return study.optimize(sampler, evaluate, settings.generations, name="tune nodes", stopped=stopped, after=after)


def _chosen(
    settings: NodePolicyTuning, start: NodePolicy, means: Sequence[FloatArray], pool: Pool, stopped: Callable[[], bool]
) -> NodePolicy:
    """Return the start or one of the means, whichever is best on validation episodes. Raises `StoppedError`."""
    if len(means) == 1:
        raise StoppedError
    problem = _problem(settings, seeds_of(settings.task, "validation", 2 * settings.episodes))
    picked = sorted({0, *np.linspace(len(means) // 2, len(means) - 1, _COMPARED).round().astype(int).tolist()})
    policies = [of_vector(means[place], start) if place else start for place in picked]
    configs = [(STOCK, None), *((settings.policy, policy) for policy in policies)]
    stock, *mine = problem.play(pool, configs, range(len(problem.all)), stopped)
    return policies[int(problem.order(np.array(mine), stock, np.arange(len(problem.all)))[0])]
