"""One run of the published GPU-sharing benchmark: a trace, a seed, a policy in; the paper's three curves out.

Weng et al., "Beware of Fragmentation", USENIX ATC 2023. Everything that does not depend on the policy is prepared once
per (trace, seed, tune) and kept, so that a search over weights pays for the simulation only.
"""

import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.state import ClusterState
from aaml.episodes.engine import Episode, simulate, simulate_choices, warm_up
from aaml.errors import bad_value
from aaml.policies.fragmentation import FragmentTables, TypicalPods, fragment_tables, typical_pods
from aaml.policies.gpu.arrays import SHAPE_COUNT, SHAPE_MILLI, NodeArrays, devices_by_model, empty_nodes, pod_shape
from aaml.policies.gpu.fit import DEVICE_RULES
from aaml.policies.gpu.learned import Scorer, linear_scorer
from aaml.policies.gpu.policies import FGD, LEARNED, RANDOM, policy_number
from aaml.policies.ties import TieBreak
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Policy
from aaml.workload.traces import NODE_LIST, load_nodes, load_pods, traces_folder
from aaml.workload.tuning import tune as tuned

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
DeviceRule = Literal["best", "worst", "random", "score"]

COLUMNS = 131  # arrived demand in percent of the GPU capacity, 0 ... 130
PUBLISHED_SEEDS = range(42, 52)
SEARCH_SEEDS = range(100_000, 1 << 62)
"""Seeds that searches for scorers and formulas play; results are told by those below."""
TRAINING_TRACES = (
    "default", "cpu100", "gpushare40", "multigpu50", "gpuspec33", "multigpu20", "gpushare80", "cpu250",
)  # fmt: skip
"""The traces that searches see, when not told otherwise."""
SEARCH_COLUMNS = (50, 60, 70, 80, 85, 88, 90, 92, 94, 95, 96, 97, 98, 99, 100, 105, 110, 120, 130)
"""The columns that searches judge by."""
AT_100_AND_130 = [SEARCH_COLUMNS.index(100), SEARCH_COLUMNS.index(130)]
_ENOUGH, _SLACK = 0.8, 0.02  # points of allocation
DEFAULT_TUNE = 1.3


@dataclass(frozen=True, slots=True)
class OpenbResult:
    """The curves of a run: float64 [131], column X averages the arrivals where X percent of the capacity had arrived.

    `allocation` and `frag_amount` are percent of all GPU capacity, `frag_ratio` is percent of the free one; `failed`
    pods fitted nowhere. `nodes` int32 [T] has the index of the chosen node per arrival, -1 for failed ones. `seconds`
    is the simulation alone.
    """

    trace: str
    policy: str
    tune: float
    seed: int
    allocation: FloatArray
    frag_amount: FloatArray
    frag_ratio: FloatArray
    failed: int
    decisions: int
    seconds: float
    nodes: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run needs besides its policy; `arrays` are copied for each run.

    `pods` int64 [T] are the arrivals as rows of the trace, `arrivals` int64 [T] as rows of `shapes`, `column` int64 [T]
    is each arrival's X.
    """

    arrays: NodeArrays
    gpu_models: tuple[str, ...]
    pods: IntArray
    shapes: IntArray
    arrivals: IntArray
    node_rank: IntArray
    name_rank: IntArray
    typical: TypicalPods
    tables: FragmentTables
    column: IntArray
    capacity_milli: int

    @property
    def devices(self) -> IntArray:
        """How many devices of each GPU model there are, int64 [models]."""
        return devices_by_model(self.arrays, len(self.gpu_models))


def prepare(trace: str, seed: int, tune: float = DEFAULT_TUNE) -> Prepared:
    """Read a trace, make the seeded workload of it and lay out the arrays."""
    return _prepared(traces_folder(), trace, seed, tune)


@lru_cache(maxsize=64)
def _prepared(folder: Path, trace: str, seed: int, tune: float) -> Prepared:
    nodes, pods = load_nodes(folder / NODE_LIST), load_pods(trace, folder)
    arrays, models = empty_nodes(nodes)
    workload = tuned(pods, nodes, seed, tune)
    shapes, inverse = np.unique(np.array([pod_shape(pod, models) for pod in pods]), axis=0, return_inverse=True)
    arrivals = inverse.reshape(-1)[workload.pods].astype(np.int64)
    typical = typical_pods(pods)
    capacity = 1000 * int(arrays.gpu_count.sum())
    arrived = np.cumsum(shapes[arrivals, SHAPE_COUNT] * shapes[arrivals, SHAPE_MILLI])
    name_rank = np.empty(len(nodes), dtype=np.int64)
    name_rank[sorted(range(len(nodes)), key=lambda node_index: nodes[node_index].name)] = np.arange(len(nodes))
    return Prepared(
        arrays, models, workload.pods, shapes, arrivals, workload.node_rank, name_rank, typical,
        fragment_tables(typical, models, arrays.gpu.shape[1]),
        np.round(arrived * 100 / capacity).astype(np.int64), capacity,
    )  # fmt: skip


def run_openb(
    trace: str,
    seed: int,
    policy: str,
    weights: npt.ArrayLike | Scorer | None = None,
    *,
    tune: float = DEFAULT_TUNE,
    tie_break: TieBreak = "fixed",
    truncate: bool | None = None,
    device_rule: DeviceRule | None = None,
    typical: TypicalPods | None = None,
    name: str = "",
) -> OpenbResult:
    """Run a compiled policy over a trace, deterministic in `seed`.

    `policy` is one of `aaml.policies.gpu.policies.COMPILED`, or "linear" or "network". The latter two take `weights`:
    numbers [F] or [groups, F] for a linear scorer, or a `Scorer`. Defaults are the published setting: equal scores go
    to the seed's fixed order of nodes, scores of the published policies are truncated to integers (learned ones are
    not), FGD and learned scorers choose a share's device by score, random takes a random one, others the best fit.
    `typical` replaces the typical pods that FGD and features reckon with; the metrics keep the trace's own.
    """
    prepared = prepare(trace, seed, tune)
    number = policy_number(policy)
    tables = prepared.tables
    if typical is not None:
        tables = fragment_tables(typical, prepared.gpu_models, prepared.arrays.gpu.shape[1])
    nodes = prepared.arrays.copy()
    learned = number == LEARNED
    scorer = weights if isinstance(weights, Scorer) else None
    if learned and scorer is None:
        if policy == "network" or weights is None:
            raise bad_value("weights", weights, "a `Scorer` (network_scorer), or numbers for a linear scorer")
        scorer = linear_scorer(weights, tables, prepared.devices)
    by_policy = "score" if number in {FGD, LEARNED} else "random" if number == RANDOM else "best"
    warm_up()
    started = time.perf_counter()
    episode = simulate(
        nodes, prepared.shapes, prepared.arrivals, tables, number,
        node_rank=prepared.name_rank if tie_break == "name" else prepared.node_rank,
        measured=prepared.tables, scorer=scorer, truncate=not learned if truncate is None else truncate,
        random_ties=tie_break == "random" or number == RANDOM, seed=seed,
        device_rule=DEVICE_RULES[device_rule or by_policy],
    )  # fmt: skip
    return _result(prepared, episode, time.perf_counter() - started, trace, name or policy, tune, seed)


@lru_cache(maxsize=1024)
def _fgd_at(folder: Path, trace: str, seed: int) -> FloatArray:  # noqa: ARG001  (folders differ in their traces)
    return run_openb(trace, seed, "fgd").allocation[list(SEARCH_COLUMNS)]


def gains_over_fgd(trace: str, seed: int, scorer: npt.ArrayLike | Scorer) -> FloatArray:
    """Return how much more of the GPU capacity a scorer allocates than FGD, in points, at each of `SEARCH_COLUMNS`."""
    there = run_openb(trace, seed, "linear", scorer).allocation[list(SEARCH_COLUMNS)]
    points: FloatArray = there - _fgd_at(traces_folder(), trace, seed)
    return points


def loss_against_fgd(points: FloatArray) -> float:
    """Return the loss of a run in which so much more is allocated than by FGD, float64 [`SEARCH_COLUMNS`].

    It is minus the points of GPU capacity at 100% and 130% of arrived demand: 0.7 of the mean, and 0.3 of the same
    counted to 0.8 points at most. Being behind FGD counts against it, beyond 0.02 points: twice the mean over the
    columns from 50% on, and half of the most. Judged at 100% and 130% alone, a search finds scorers that leave out the
    largest pods while there is room.
    """
    won, behind = points[AT_100_AND_130], np.maximum(-points - _SLACK, 0.0)
    value = 0.7 * won.mean() + 0.3 * np.minimum(won, _ENOUGH).mean() - 2.0 * behind.mean() - 0.5 * behind.max()
    return -float(value)


def run_openb_policy(
    trace: str, seed: int, policy: Policy, *, tune: float = DEFAULT_TUNE, arrivals: int | None = None, name: str = ""
) -> OpenbResult:
    """Run any `Policy` over a trace: hundreds of times slower than the compiled ones, same arrivals and metrics.

    It sees the nodes in the seed's fixed order, so that "the first of equals" is the published tie-break. `arrivals`
    stops the run after so many pods (later columns are then NaN).
    """
    prepared = prepare(trace, seed, tune)
    nodes, pods = load_nodes(), load_pods(trace)
    order = np.argsort(prepared.node_rank)
    arrays = NodeArrays(*(np.ascontiguousarray(array[order]) for array in prepared.arrays))
    state, spec = ClusterState(nodes[node_index] for node_index in order), spec_of(policy)

    def choose(step: int, mask: npt.NDArray[np.bool_]) -> tuple[int, int]:
        pod = replace(pods[prepared.pods[step]], uid=str(step))
        decision = policy.act(Context(state, pod, mask, spec))
        if decision.node_index is None:
            return -1, -1
        share = pod.gpu.count == 1 and 0 < pod.gpu.milli < DEVICE_MILLI
        placement = state.assume(pod, state.names[decision.node_index], decision.gpus if share else None)
        return decision.node_index, placement.gpus[0] if share else -1

    started = time.perf_counter()
    episode = simulate_choices(choose, arrays, prepared.shapes, prepared.arrivals[:arrivals], prepared.tables)
    seconds = time.perf_counter() - started
    chosen = np.where(episode.node >= 0, order[episode.node], -1).astype(np.int32)
    return _result(prepared, episode._replace(node=chosen), seconds, trace, name or policy.name, tune, seed)


def _result(
    prepared: Prepared, episode: Episode, seconds: float, trace: str, policy: str, tune: float, seed: int
) -> OpenbResult:
    capacity, column = prepared.capacity_milli, prepared.column[: len(episode.node)]
    free = capacity - episode.used_milli
    fragments = free - episode.usable / prepared.tables.total
    ratio = np.round(100 * fragments / np.maximum(free, 1), 2)  # the published logs have two decimals
    return OpenbResult(
        trace, policy, tune, seed,
        np.round(_columns(column, np.round(100 * episode.used_milli / capacity, 2)), 2),
        np.round(100 * _columns(column, np.round(fragments, 2)) / 1000 / (capacity // 1000), 2),
        _columns(column, ratio),
        int((episode.node < 0).sum()), len(episode.node), seconds, episode.node,
    )  # fmt: skip


def _columns(column: IntArray, values: FloatArray) -> FloatArray:
    """Average values [T] over the arrivals of each column; one without arrivals takes its two neighbours'.

    `column` never falls, so a column is a slice; each is averaged by itself because the published tables round the
    mean, and the order of the additions decides halves.
    """
    edges = np.searchsorted(column, np.arange(COLUMNS + 2))
    result = np.full(COLUMNS, np.nan)
    for x in range(COLUMNS):
        low, high = edges[x], edges[x + 1]
        if low == high:
            low, high = edges[max(x - 1, 0)], edges[x + 2]
        if low < high:
            result[x] = values[low:high].mean()
    return result
