"""The memory of node rules: a cluster at one moment as arrays, which compiled rules read and write.

A compiled episode holds these arrays for as long as it runs (`aaml.episodes.supply_rows`); `LearnedNodes` makes them
of an `Observed`. A node is its *number*, a type its place in the catalogue, a pod its place among the pods. K types, R
resources, L node numbers, T pods, G devices of a node.

What a rule takes as `own` has these fields:

===========  ==================  =======================================================================================
at           record              how far the autoscaler is: `LEARNED_NUMBERS` and `LEARNED_TIMES`
terms        record              the numbers of a `NodePolicy`, how many types (`kinds`) and `corners` there are
moment       record              `now_s`
nodes        int32 [NODE, L]     columns of `NODE`
node_times   float64 [.., L]     columns of `NODE_TIME`
pods         int32 [POD, T]      columns of `POD`
pod_times    float64 [.., T]     columns of `POD_TIME`
traits       int32 [TRAIT, T]    columns of `TRAIT`
kept_s       float64 [T]         for how long on a node a pod may not be evicted, inf: for good
shapes       int64 [S, ..]       what pods ask for: `SHAPE_COLUMNS`, and from `SHAPE_REQUEST` on each resource
shape_of     int [T]             a pod's row in `shapes`
allocatable  int64 [rows, R]     what nodes offer that are in a row
requested    int64 [rows, R]     what their pods ask for
room         int64 [K, R]        what pods can have of each type, cheapest first
offers       float64 [OFFER, K]  columns of `OFFER`
corners      float64 [C, 2]      of the fluid bound; a third column are GPUs
names        int64 [L]           by what nodes' names are ordered
devices      int64 [K, G]        thousandths of each GPU of a type
gpu_left     int64 [rows, G]     thousandths that are left of each GPU
paid         float64 [L]         dollars an hour of each node, where types do not say it
may          bool [T, K + L]     which types and nodes a pod's node selector and GPU models allow
on_sale      bool [K]            which types can be had
blocked      bool [T]            whether a disruption budget keeps a pod from being evicted
stays        bool [L]            which nodes stay, whatever runs there
===========  ==================  =======================================================================================

The last seven are None where there is nothing to tell: no GPUs, nodes that cost what their types do, no selectors, all
on sale, no budgets, none that stays. Rules test that on an argument, so that compiled code leaves out what is never
looked at.
"""

from collections.abc import Sequence

import numpy as np

from aaml.cluster.kernels import columns, part, section
from aaml.policies.gpu.arrays import SHAPE_COLUMNS

SHAPE_TOLERANCE, SHAPE_PICKY = len(SHAPE_COLUMNS), len(SHAPE_COLUMNS) + 1  # of `shapes`, after `SHAPE_COLUMNS`
SHAPE_REQUEST = SHAPE_PICKY + 1  # from here on what the shape asks of each resource

OFFER = columns(("price", "worst", "watts_idle", "watts_per_core", "powered"))
"""Of each type: what a launch costs, at most; what a node draws without pods, and more for each core.

`powered`: what the type's value is divided by, the price times its cores to the policy's power.
"""
TRAIT = columns(("rank", "owned", "anew", "next_late"))
"""Of each pod: the place of its uid among all, and whether its owner makes it again, makes it from the start, and
makes it only once it has gone."""
NODE_TIME = columns(("launched_s", "initialized_s", "last_event_s", "nominated_s", "again_s", "draining_s"))
NODE = columns(
    ("kind", "row", "deleting", "asked", "first", "last", "pods", "kept", "awhile", "replaced", "next_replaced",
     "alive", "by_name", "plan", "used", "in_row")
)  # fmt: skip
"""Of each number a node, and lists of numbers.

`kind`: its type. `row`: -1 before it is in the cluster. `asked`: in which batch it asked for one. `first` and `last`:
the ends of the list of its pods, `pods`: how many these are, `kept`: how many of them may not be evicted, now or once,
`awhile`: how many of these may be after a time. `replaced`: the first of the nodes that go once it is ready,
`next_replaced`: the one after it. `alive`: those that are paid, in the order of purchase, `by_name` the same by name.
`plan`: those that may go, `used`: those that their pods had room on. `in_row`: that of each row.
"""
POD_TIME = columns(("created_s", "again_s", "released_s", "noted_s"))
"""Of each pod; `released_s`: when it may be evicted from the node that it is on. `noted_s`: when it was found to fit
nowhere."""
POD = columns(("after", "before", "noted", "waiting", "asked", "first", "stopping", "end"))
"""Of each pod, and a list of pods.

`after` and `before`: its neighbours in its node's list. `waiting`: those that were found to fit nowhere and still wait,
`noted`: a pod's place in that list, -1 for none. `asked`: in which batch it asked for a node. `first`: it was the
how-manieth to get a node for the first time. `end`: the number of its end to come, -1 without a node.
"""
LEARNED_NUMBERS = ("alive", "planned", "replaces", "noted", "ready", "released", "replaced", "replaced_too")
LEARNED_TIMES = (
    "opened_s", "latest_s", "due_s", "again_s", "changed_s", "slower", "loaded_s", "load", "fast_load", "slow_load",
    "cpu_worth", "memory_worth", "gpu_worth", "drained_s", "nothing_s", "replaced_s",
)  # fmt: skip
"""How far learned nodes are. `alive`: nodes that are paid; `noted`: pods that wait; `planned`: nodes of `NODE.plan`.

`opened_s` is since when the pod waits that has waited longest of those that ask, `latest_s` when one has asked last,
`due_s` the next look, `again_s` when a pod asks again, `changed_s` when the cluster last changed. `replaced`,
`replaced_too`: the nodes that go once what was bought at `replaced_s` is ready, -1 for none. `nothing_s`, `released`:
the state in which no node could go. `load`: dollars an hour that pods are worth, by the dual prices `cpu_worth`,
`memory_worth` and `gpu_worth`; `fast_load` and `slow_load` are its averages, `slower` how many times as long as usual
nodes are not bought.
"""


def record(integers: Sequence[str], floats: Sequence[str]) -> np.dtype[np.void]:
    """Return the type of a record of int64 and float64 numbers."""
    return np.dtype([*((name, np.int64) for name in integers), *((name, np.float64) for name in floats)])


@section
def measure_room(own, work):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Measure the nodes that are not on their way out, those that are ready first and then by name.

    Writes `work.numbers`, and what is left of them into `work.free` and `work.gpu_free`. Returns how many there are,
    and how many of them are ready.
    """
    at, count, ready = own.at, 0, 0
    for in_making in range(2):
        for i in range(at.alive):
            number = own.nodes[NODE.by_name, i]
            making = np.isnan(own.node_times[NODE_TIME.initialized_s, number])
            if own.nodes[NODE.deleting, number] or making != (in_making == 1):
                continue
            work.numbers[count] = number
            row = own.nodes[NODE.row, number]
            for r in range(own.room.shape[1]):
                if row >= 0:
                    work.free[count, r] = own.allocatable[row, r] - own.requested[row, r]
                else:
                    work.free[count, r] = own.room[own.nodes[NODE.kind, number], r]
            copy_devices(work.gpu_free, count, own.gpu_left, row)
            count += 1
        if in_making == 0:
            ready = count
    return count, ready


@part
def copy_devices(into, row, devices, of):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Write one row of devices over another."""
    if into is not None:
        for device in range(into.shape[1]):
            into[row, device] = devices[of, device]


@part
def kept_pods(own, number):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return how many pods of a node may not be disrupted now: `Observed.is_kept`."""
    kept = own.nodes[NODE.kept, number]
    if own.nodes[NODE.awhile, number] > 0:
        pod = own.nodes[NODE.first, number]
        while pod >= 0:
            kept -= own.kept_s[pod] > 0.0 and own.pod_times[POD_TIME.released_s, pod] <= own.moment.now_s
            pod = own.pods[POD.after, pod]
    return kept
