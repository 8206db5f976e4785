"""The memory of a batch: workloads in slots, episodes in rows, what policies see, and working memory; padded arrays.

Sizes have letters: W slots, B rows; of the largest episode N nodes, R resources, G devices, C kinds of toleration, T
pods, S shapes, O owners; P features of the pod, M demands of the fragment tables. What lies beyond an episode's own
sizes is zero where policies see it, and anything elsewhere. Amounts of one kind share an array and are told apart by
the constants below: compiled calls cost by the array.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from aaml.cluster.metrics import AVERAGED
from aaml.policies.gpu.arrays import SHAPE_COLUMNS
from aaml.scheduling.observation import FILL_SCRATCH, NODE_FEATURES, PAIR_FEATURES
from aaml.scheduling.rests import HORIZONS_S, LOADS

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
SmallArray = npt.NDArray[np.int32]
FeatureArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
A = TypeVar("A", "Pool", "Rows", "View", "Work")

NODES, PODS, HAS_GPUS = range(3)  # Pool.numbers
UNTIL, MEAN_CPU, MEAN_MEMORY = range(3)  # Pool.spans
GPU_COUNT, GPU_MODEL = range(2)  # Pool.node_facts
CORDONED, CAPACITY, ALLOWED = range(3)  # Pool.node_flags: from ALLOWED on, a row for each kind of toleration
ARRIVAL, LIFETIME, SINCE, EXPECTED, SURE, LIMIT_S, REST_S = range(7)  # Pool.pod_times: SINCE orders the queue,
# EXPECTED and SURE are the features of its lifetime, LIMIT_S and REST_S what a model of lifetimes says
OWNER, SHAPE, KIND = range(3)  # Pool.pod_facts
TOLERANCE, PICKY = len(SHAPE_COLUMNS), len(SHAPE_COLUMNS) + 1  # Pool.shapes, after `SHAPE_COLUMNS`
REQUEST = PICKY + 1  # from here on what the shape asks of each resource
(
    SLOT, ALIVE, RUNNING, ARRIVED, READY, CURSOR, UNSCHEDULABLE, DEFERRED, BOUND, DEPARTED, REJECTED, DECLINED, STEPS,
    ASKED,
) = range(14)  # Rows.state; `ready` pods are tried from CURSOR to READY; ASKED: GPU of those that wait  # fmt: skip
NOW, SECONDS, MEMORY, TOTALS = 0, 1, 2, 4  # Rows.clock: two numbers of the reward's memory; TOTALS are `AVERAGED`
NODE, FAILURES, DEVICES, LEAVING, READY_PODS, WAITING, LEFT = range(7)  # Rows.pods: facts of pods, then lists of pods
LEAVE_S, ADDED_S, WAITED_S, BOUND_S = range(4)  # Rows.times: a heap beside LEAVING; when queued last; how long it
# waited, of pods by order of bind; when bound
FRAGMENTS, STALE, CHOSEN = range(3)  # Rows.worth: what rewards remember of nodes
OVER, LIMIT, INFEASIBLE = range(3)  # View.flags
GROWTH, SIBLINGS = FILL_SCRATCH, FILL_SCRATCH + 1  # Work.floats, after `fill`'s


class Pool(NamedTuple):
    """Workloads, one a slot: rows that see the same arrivals point to the same slot. See `aaml.sim.compiled.plan`."""

    numbers: IntArray
    spans: FloatArray
    allocatable: IntArray
    node_facts: IntArray
    node_flags: BoolArray
    pod_times: FloatArray
    pod_facts: IntArray
    shapes: IntArray


class Rows(NamedTuple):
    """Episodes under way, one a row.

    `pods[READY_PODS]` lists the pods to try at this moment, `pods[WAITING]` those that fitted nowhere, `pods[LEFT]`
    those that the policy left, the latter two in the order in which they were given up. `blocked`: by shape, the
    DEPARTED at which a pod of it was found to fit nowhere: until another pod leaves, none does.
    """

    state: IntArray
    clock: FloatArray
    requested: IntArray
    gpu_free: IntArray
    owners: SmallArray
    pods: SmallArray
    times: FloatArray
    blocked: IntArray
    worth: FloatArray


class View(NamedTuple):
    """What policies see, and what the last step was worth."""

    nodes: FeatureArray
    pairs: FeatureArray
    pod: FeatureArray
    mask: BoolArray
    reward: FloatArray
    flags: BoolArray
    held: FloatArray


class Work(NamedTuple):
    """Working memory of one thread.

    `queued` is what a queue of each length is shown as, `nothing` no pod's request, `load` and `empty_s` what running
    pods are expected to leave.
    """

    floats: FloatArray
    free: IntArray
    nothing: IntArray
    queued: FloatArray
    keys: FloatArray
    late: SmallArray
    sums: IntArray
    bins: FloatArray
    load: IntArray
    empty_s: FloatArray


_F, _I, _S, _B = np.float64, np.int64, np.int32, np.bool_
_LAYOUT: Mapping[str, Mapping[str, tuple[Any, str]]] = {
    "Pool": {
        "numbers": (_I, "W3"), "spans": (_F, "W3"), "allocatable": (_I, "WNR"), "node_facts": (_I, "W2N"),
        "node_flags": (_B, "WcN"), "pod_times": (_F, "W7T"), "pod_facts": (_I, "W3T"), "shapes": (_I, "WSq"),
    },
    "Rows": {
        "state": (_I, "Bs"), "clock": (_F, "Bt"), "requested": (_I, "BNR"), "gpu_free": (_I, "BNG"),
        "owners": (_S, "BON"), "pods": (_S, "B7T"), "times": (_F, "B4T"), "blocked": (_I, "BS"), "worth": (_F, "B3N"),
    },
    "View": {
        "nodes": (np.float32, "BNf"), "pairs": (np.float32, "BNk"), "pod": (np.float32, "BP"), "mask": (_B, "BN"),
        "reward": (_F, "B"), "flags": (_B, "B3"), "held": (_F, "Ba"),
    },
    "Work": {
        "floats": (_F, "wN"), "free": (_I, "4N"), "nothing": (_I, "R"), "queued": (_F, "T"), "keys": (_F, "2T"),
        "late": (_S, "2T"), "sums": (_I, "2M"), "bins": (_F, "7"), "load": (_I, "Nhl"), "empty_s": (_F, "N"),
    },
}  # fmt: skip
_FIXED = {
    "s": ASKED + 1, "t": TOTALS + len(AVERAGED), "a": len(AVERAGED), "f": len(NODE_FEATURES), "k": len(PAIR_FEATURES),
    "w": SIBLINGS + 1, "h": len(HORIZONS_S), "l": LOADS,
}  # fmt: skip


def allocate(kind: type[A], sizes: Mapping[str, int], old: A | None = None) -> A:
    """Return zeroed arrays of these sizes, with what `old` held at its place in them."""
    sizes = {**_FIXED, **sizes, "c": ALLOWED + sizes["C"], "q": REQUEST + sizes["R"]}
    fresh: dict[str, npt.NDArray[Any]] = {}
    for name, (dtype, letters) in _LAYOUT[kind.__name__].items():
        shape = [int(letter) if letter.isdigit() else sizes[letter] for letter in letters]
        array = fresh[name] = np.zeros(shape, dtype=dtype)
        if old is not None:
            put(array, getattr(old, name))
    return kind(**fresh)


def put(target: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """Write an array into the beginning of a larger one."""
    target[tuple(slice(0, size) for size in values.shape)] = values
