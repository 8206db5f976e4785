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
from aaml.evaluation.results import Results
from aaml.nodes.file import read_autoscaler
from aaml.nodes.node_policy import NodePolicy, write_node_policy
from aaml.outputs import output_file, refuse_finished
from aaml.parallel.pool import Pool, open_pool
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.heuristics.linear import FEATURE, FEATURES, TERM, TERMS
from aaml.policies.kube_scores import KubeScheduler
from aaml.policies.registry import make_policy
from aaml.progress import progress_bar
from aaml.scheduling.play import play
from aaml.search.evolution import Generation, separable_cma
from aaml.sim.cluster import SimCluster
from aaml.sim.recorded_bill import bill_of, under
from aaml.sim.task import Task
from aaml.tuning.bill import Limits
from aaml.tuning.episodes import check_seeds, metrics_of, seeds_of
from aaml.tuning.judgment import PACKING, STOCK, TUNED, Judgment, judged
from aaml.tuning.search import Episodes, from_now

FloatArray = npt.NDArray[np.float64]
_FIRST = 1.0  # seconds at which a logarithm of seconds begins
RANGES = {
    "idle_s": (_FIRST, 40.0), "patience_s": (_FIRST, 120.0), "patience_growth": (-1.0, 1.0),
    "spare_value": (0.0, 0.6), "spare_growth": (0.0, 1.0), "size_power": (-0.4, 0.2), "largest_share": (0.05, 1.0),
    "empty_s": (0.0, 30.0), "horizon_s": (20.0, 3000.0), "job_times": (0.0, 6.0), "margin": (0.0, 0.6),
    "most_at_once": (0.05, 0.8),
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
class NodePolicyTuning:
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


@dataclass(frozen=True)
class TunedNodePolicy:
    """The policy that was chosen on validation episodes and written, with all runs on episodes held out."""

    policy: NodePolicy
    results: Results
    judgment: Judgment
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


def judge_nodes(
    task: Task, seed: int, nodes: int | None, configs: Sequence[tuple[str, NodePolicy | None]], metrics: Sequence[str]
) -> FloatArray:
    """Return [configurations, metrics] of an episode under each pair of a policy and who buys; None: the task's own."""
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


def tune(asked: NodePolicyTuning, *, stopped: Callable[[], bool] = lambda: False) -> TunedNodePolicy:
    """Search, choose, write and judge; once `stopped` says so, what there is.

    The file holds the latest mean after every generation, so that a search that was killed can be begun from it. Raises
    `UserError` for settings that nothing can be done with, and `StoppedError` where it was stopped after the search.
    """
    bill_of(asked.task).check_metric(asked.metric)
    check_seeds(asked.task, asked.seeds, _POOL, 2 * asked.episodes)
    with output_file(asked.out):
        refuse_finished(asked.out, asked.start)
        return _tune(asked, stopped)


def _tune(asked: NodePolicyTuning, stopped: Callable[[], bool]) -> TunedNodePolicy:
    start = NodePolicy()
    if asked.start is not None:
        read = read_autoscaler(asked.start)
        if not isinstance(read, NodePolicy):
            raise bad_value("start", str(asked.start), "a policy of nodes, as `aaml search nodes` writes it")
        start = read
    means = [to_vector(start)]
    with open_pool(asked.workers) as pool:
        _search(asked, start, means, pool, stopped)
        stopped = from_now(stopped)
        policy = _chosen(asked, start, means, pool, stopped)
    write_node_policy(asked.out, policy)
    results = evaluate(
        {STOCK: STOCK, PACKING: PACKING, TUNED: f"{asked.policy}+{asked.out}"}, asked.task, asked.seeds,
        workers=asked.workers, stopped=stopped,
    )  # fmt: skip
    judgment = judged(results, asked.metric, asked.limits.list())
    head = f"tuned for {asked.task.name} with the policy {asked.policy} (aaml search nodes); on episodes held out:"
    write_node_policy(asked.out, policy, (head, *judgment.first, *judgment.lines))
    return TunedNodePolicy(policy, results, judgment, len(means) - 1)


def _episodes(asked: NodePolicyTuning, seeds: Sequence[int]) -> Episodes[tuple[str, NodePolicy | None]]:
    sizes = asked.task.sizes or (None,)
    limits = asked.limits.list()
    return Episodes(asked.task, seeds, sizes, judge_nodes, (asked.metric,), relative=True, limits=limits)


def _search(
    asked: NodePolicyTuning, start: NodePolicy, means: list[FloatArray], pool: Pool, stopped: Callable[[], bool]
) -> None:
    """Add the mean of each generation to `means`."""
    rng, seeds = np.random.default_rng(asked.seed), seeds_of(asked.task, "training", _POOL)

    def values(vectors: Sequence[FloatArray], _number: int) -> list[float]:
        drawn = rng.choice(seeds, size=min(asked.episodes, len(seeds)), replace=False).tolist()
        episodes = _episodes(asked, drawn)
        configs = [(STOCK, None), *((asked.policy, of_vector(vector, start)) for vector in vectors)]
        stock, *mine = episodes.play(pool, configs, range(len(episodes.all)), stopped)
        found = np.array(mine)
        losses = episodes.losses(found, episodes.scale(stock))[:, 0] + _PENALTY * episodes.excess(found, stock)
        # outside a range a vector is its nearest inside: the farther out, the worse, so that the mean comes back
        outside = [float(np.abs(vector - np.clip(vector, 0.0, 1.0)).sum()) for vector in vectors]
        return [float(-loss - _OUTSIDE * far) for loss, far in zip(losses, outside, strict=True)]

    with progress_bar("tune nodes", asked.generations, "generation") as bar:

        def after(generation: Generation) -> bool:
            means.append(np.clip(generation.mean, 0.0, 1.0))
            write_node_policy(asked.out, of_vector(generation.mean, start))
            bar.update()
            bar.set_postfix(gain=f"{100.0 * (1.0 - exp(-generation.mean_value)):.1f}%")
            return stopped()

        try:
            separable_cma(
                values, means[0], generations=asked.generations, population=asked.population, deviation=_DEVIATION,
                rng=rng, on_generation=after,
            )  # fmt: skip
        except StoppedError:
            return


def _chosen(
    asked: NodePolicyTuning, start: NodePolicy, means: Sequence[FloatArray], pool: Pool, stopped: Callable[[], bool]
) -> NodePolicy:
    """Return the start or one of the means, whichever is best on validation episodes."""
    episodes = _episodes(asked, seeds_of(asked.task, "validation", 2 * asked.episodes))
    picked = sorted({0, *np.linspace(len(means) // 2, len(means) - 1, _COMPARED).round().astype(int).tolist()})
    policies = [of_vector(means[place], start) if place else start for place in picked]
    configs = [(STOCK, None), *((asked.policy, policy) for policy in policies)]
    stock, *mine = episodes.play(pool, configs, range(len(episodes.all)), stopped)
    return policies[int(episodes.order(np.array(mine), stock, np.arange(len(episodes.all)))[0])]
