"""The memory of a batch: episodes in slots, environments in rows, what policies see, and working memory; padded arrays.

Sizes have letters: W slots, B rows; of the largest episode N nodes, R resources, G devices, C kinds of toleration, T
pods, S shapes, O owners; f features of a node, P of the pod, M demands of the fragment tables. What lies beyond an
episode's own sizes is zero where policies see it, and anything elsewhere.

Amounts of one kind share an array, because compiled calls cost by the array. Only this module knows which column holds
what: kernels work on an `Env`, whose views have names.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import Columns, columns, inlined_source
from aaml.cluster.metrics import AVERAGED
from aaml.nodes.rows import SHAPE_REQUEST, Record
from aaml.scheduling.observation import FILL_SCRATCH, PAIR_FEATURES
from aaml.scheduling.remaining import HORIZONS_S, LOADS

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
SmallArray = npt.NDArray[np.int32]
FeatureArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
RecordArray = npt.NDArray[np.void]
A = TypeVar("A", bound=tuple[Any, ...])
Layout = Mapping[str, Mapping[str, tuple[Any, str]]]
"""Of each kind of memory the arrays: their dtypes, and their sizes by letters and digits."""
Zeros = Callable[[tuple[int, ...], Any], npt.NDArray[Any]]
"""Makes a zeroed array of a shape and a dtype."""

EPISODE = np.dtype(
    [
        *((name, np.int64) for name in ("nodes", "pods", "has_gpus", "elastic")),
        *((name, np.float64) for name in ("until_s", "mean_cpu", "mean_memory")),
    ]
)
"""An episode's sizes, when it is cut off, and the CPU and memory of its mean node.

`elastic`: nodes come and go; it begins without any.
"""
PROGRESS = np.dtype(
    [
        (name, np.int64)
        for name in (
            "slot", "alive", "running", "arrived", "ready", "cursor", "unschedulable", "deferred", "bound", "departed",
            "rejected", "declined", "steps", "gpu_waiting", "over", "cut", "infeasible", "nodes", "shown", "late",
            "freed", "recreated", "evicted", "lost", "short", "backing",
        )
    ]
    + [
        (name, np.float64)
        for name in ("now_s", "seconds", "reward", "last_s", "last_queue", "last_row", "last_paid", "busy_s")
    ]
)  # fmt: skip
"""How far an environment is.

`slot`: its episode's. The `ready` pods are tried from `cursor` on. `gpu_waiting`: GPU thousandths that waiting pods ask
for. `over`: nothing can happen any more; `cut`: after the most steps; `infeasible`: the last action was. `last_*`: what
rewards remember of the decision before. `nodes`: how many there are now; `shown`: how many there were when
policies saw them last. `late`: pods that back off and yet are tried at
this moment. `freed`: how often there was more room than before. `recreated`: pods that waited again after an eviction.
`short`: it waits for larger arrays. `busy_s`: until then no pod is tried, for the last try took time; `backing`: how
many of the `ready` back off, which are the last of them.
"""
NODE_FACTS = columns(("gpu_count", "gpu_model"))
NODE_FLAGS = columns(("cordoned", "capacity", "allowed"))  # from `allowed` on, a row for each kind of toleration
POD_TIMES = columns(("arrival_s", "lifetime_s", "since_s", "expected", "sure", "limit_s", "remaining_s"))
POD_FACTS = columns(("owner", "shape", "kind"))
POD_STATES = columns(("node", "failures", "devices", "leaving", "ready", "waiting", "left"))
POD_STATE_TIMES = columns(("leave_s", "added_s", "waited_s", "bound_s", "since_s", "lifetime_s"))
WORTH = columns(("fragments", "stale", "chosen"))
WAITS, COMES_AGAIN, LOST = -1, -2, -3  # of `Pods.node`


class EpisodePool(NamedTuple):
    """Episodes, one a slot: environments that see the same arrivals point to the same slot.

    See `aaml.episodes.plan`.
    """

    episodes: RecordArray
    allocatable: IntArray
    node_facts: IntArray
    node_flags: BoolArray
    pod_times: FloatArray
    pod_facts: IntArray
    shapes: IntArray


class Rows(NamedTuple):
    """Environments, one a row."""

    progress: RecordArray
    totals: FloatArray
    allocatable: IntArray
    node_facts: IntArray
    node_flags: BoolArray
    requested: IntArray
    gpu_free: IntArray
    owners: SmallArray
    pods: SmallArray
    times: FloatArray
    blocked: IntArray
    worth: FloatArray


class View(NamedTuple):
    """What policies see, and what the last step added to the time averages' sums."""

    nodes: FeatureArray
    pairs: FeatureArray
    pod: FeatureArray
    mask: BoolArray
    held: FloatArray


class BatchSettings(NamedTuple):
    """What all rows have in common.

    `reward`: a number of `aaml.episodes.rewards.REWARDS`; `max_steps` 0: none; `next_owned`: its address.
    """

    reward: int
    sorted: bool
    lookahead: int
    growth: bool
    costs: bool
    lifetimes: bool
    max_steps: int
    initial_backoff_s: float
    max_backoff_s: float
    next_owned: int = 0


class Work(NamedTuple):
    """Working memory of one thread.

    `queued` is what a queue of each length is shown as, `nothing` no pod's request, `load` and `empty_s` what running
    pods are expected to leave, `supply` what autoscalers need, None where nodes stay.
    """

    scratch: FloatArray
    growth: FloatArray
    siblings: FloatArray
    free_cpu: IntArray
    free_memory: IntArray
    free_pods: IntArray
    kinds: IntArray
    nothing: IntArray
    queued: FloatArray
    keys: FloatArray
    late: SmallArray
    sums: IntArray
    bins: FloatArray
    load: IntArray
    empty_s: FloatArray
    supply: Any = None


class Nodes(NamedTuple):
    """The nodes of an environment, as in `ClusterState`.

    N is its own in `allocatable`, `requested`, `gpu_free` and `capacity`, and the batch's in the others, for cutting an
    array costs. Where nodes come and go it is the batch's in all, and `capacity` is False where there is none now.

    `allowed` [C, N] by kind of toleration; `owners` [O, N] counts pods by owner. `fragments`, `stale` and `chosen` [N]
    are what rewards remember: the fragments as last measured, whether the node has changed since, how often it was
    chosen.
    """

    allocatable: IntArray
    requested: IntArray
    gpu_free: IntArray
    gpu_count: IntArray
    gpu_model: IntArray
    cordoned: BoolArray
    capacity: BoolArray
    allowed: BoolArray
    owners: SmallArray
    fragments: FloatArray
    stale: FloatArray
    chosen: FloatArray


class Pods(NamedTuple):
    """The pods of an environment in order of arrival, [T] each.

    `since_s` orders the queue, `expected` and `sure` are the features of a lifetime, `limit_s` and `remaining_s` what a
    model of lifetimes says; `node` (-1: waits), `devices` (as bits) and `bound_s` where a pod is, `failures` and
    `added_s` how often and when it was given up last.
    """

    arrival_s: FloatArray
    lifetime_s: FloatArray
    since_s: FloatArray
    expected: FloatArray
    sure: FloatArray
    limit_s: FloatArray
    remaining_s: FloatArray
    owner: IntArray
    shape: IntArray
    kind: IntArray
    node: SmallArray
    failures: SmallArray
    devices: SmallArray
    added_s: FloatArray
    bound_s: FloatArray


class Queue(NamedTuple):
    """Lists of pods by number.

    `ready`: to try at this moment; `waiting`: those that fitted nowhere; `left`: those that the policy left; the latter
    two in the order in which they were given up. `leaving`: the running ones, a heap by `leave_s`. `waited_s`: of bound
    pods by order of bind. `blocked` [S]: the number of departures at which a shape was found to fit nowhere; until
    another pod leaves, none of it does.
    """

    ready: SmallArray
    waiting: SmallArray
    left: SmallArray
    leaving: SmallArray
    leave_s: FloatArray
    waited_s: FloatArray
    blocked: IntArray


class Env(NamedTuple):
    """One environment of a batch, as views: how far it is (`at`: a `PROGRESS`), its `EPISODE`, and what it holds."""

    at: Any
    episode: Any
    nodes: Nodes
    pods: Pods
    queue: Queue
    shapes: IntArray
    totals: FloatArray


@inlined_source
def env_of(pool: EpisodePool, rows: Rows, b: int) -> Env:
    """Return the environment in row `b`."""
    at = rows.progress[b]
    w = at.slot
    episode = pool.episodes[w]
    n = rows.allocatable.shape[1] if episode.elastic else episode.nodes
    facts, flags, worth = rows.node_facts[b], rows.node_flags[b], rows.worth[b]
    times, own, states, since = pool.pod_times[w], pool.pod_facts[w], rows.pods[b], rows.times[b]
    nodes = Nodes(
        rows.allocatable[b, :n], rows.requested[b, :n], rows.gpu_free[b, :n], facts[NODE_FACTS.gpu_count],
        facts[NODE_FACTS.gpu_model], flags[NODE_FLAGS.cordoned], flags[NODE_FLAGS.capacity, :n],
        flags[NODE_FLAGS.allowed :], rows.owners[b], worth[WORTH.fragments], worth[WORTH.stale], worth[WORTH.chosen],
    )  # fmt: skip
    pods = Pods(
        times[POD_TIMES.arrival_s], since[POD_STATE_TIMES.lifetime_s], since[POD_STATE_TIMES.since_s],
        times[POD_TIMES.expected], times[POD_TIMES.sure], times[POD_TIMES.limit_s], times[POD_TIMES.remaining_s],
        own[POD_FACTS.owner], own[POD_FACTS.shape], own[POD_FACTS.kind],
        states[POD_STATES.node], states[POD_STATES.failures], states[POD_STATES.devices],
        since[POD_STATE_TIMES.added_s], since[POD_STATE_TIMES.bound_s],
    )  # fmt: skip
    queue = Queue(
        states[POD_STATES.ready], states[POD_STATES.waiting], states[POD_STATES.left], states[POD_STATES.leaving],
        since[POD_STATE_TIMES.leave_s], since[POD_STATE_TIMES.waited_s], rows.blocked[b],
    )  # fmt: skip
    return Env(at, episode, nodes, pods, queue, pool.shapes[w], rows.totals[b])


@inlined_source
def waiting(at: Record) -> int:
    """Return how many pods wait."""
    return at.arrived + at.recreated - at.bound


_F, _I, _S, _B = np.float64, np.int64, np.int32, np.bool_
_LAYOUT: Layout = {
    "EpisodePool": {
        "episodes": (EPISODE, "W"), "allocatable": (_I, "WNR"), "node_facts": (_I, "W2N"), "node_flags": (_B, "WcN"),
        "pod_times": (_F, "W7T"), "pod_facts": (_I, "W3T"), "shapes": (_I, "WSq"),
    },
    "Rows": {
        "progress": (PROGRESS, "B"), "totals": (_F, "Ba"), "allocatable": (_I, "BNR"), "node_facts": (_I, "B2N"),
        "node_flags": (_B, "BcN"),
        "requested": (_I, "BNR"), "gpu_free": (_I, "BNG"), "owners": (_S, "BON"), "pods": (_S, "B7T"),
        "times": (_F, "B6T"), "blocked": (_I, "BS"), "worth": (_F, "B3N"),
    },
    "View": {
        "nodes": (np.float32, "BNf"), "pairs": (np.float32, "BNk"), "pod": (np.float32, "BP"), "mask": (_B, "BN"),
        "held": (_F, "Ba"),
    },
    "Work": {
        "scratch": (_F, "wN"), "growth": (_F, "N"), "siblings": (_F, "N"), "free_cpu": (_I, "N"),
        "free_memory": (_I, "N"), "free_pods": (_I, "N"), "kinds": (_I, "N"), "nothing": (_I, "R"), "queued": (_F, "T"),
        "keys": (_F, "2T"), "late": (_S, "2T"), "sums": (_I, "2M"), "bins": (_F, "7"), "load": (_I, "Nhl"),
        "empty_s": (_F, "N"),
    },
}  # fmt: skip
_FIXED = {
    "a": len(AVERAGED), "k": len(PAIR_FEATURES), "w": FILL_SCRATCH, "h": len(HORIZONS_S),
    "l": LOADS,
}  # fmt: skip


def allocate(
    kind: type[A], sizes: Mapping[str, int], old: A | None = None, zeros: Zeros = np.zeros, layout: Layout = _LAYOUT
) -> A:
    """Return arrays of these sizes as `zeros` makes them, with what `old` held at its place in them."""
    sizes = {**_FIXED, **sizes, "c": NODE_FLAGS.allowed + sizes["C"], "q": SHAPE_REQUEST + sizes["R"]}
    fresh: dict[str, npt.NDArray[Any]] = {}
    for name, (dtype, letters) in layout[kind.__name__].items():
        shape = [int(letter) if letter.isdigit() else sizes[letter] for letter in letters]
        array = fresh[name] = zeros(tuple(shape), dtype)
        if old is not None:
            put(array, getattr(old, name))
    return kind(**fresh)


def put(target: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """Write an array into the beginning of a larger one."""
    target[tuple(slice(0, size) for size in values.shape)] = values


def put_columns(target: npt.NDArray[Any], names: Columns, **values: npt.ArrayLike) -> None:
    """Write each array into the beginning of its column of `target` [columns, ...]."""
    for name, array in values.items():
        put(target[getattr(names, name)], np.asarray(array))
