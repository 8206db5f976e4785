"""The compiled benchmark engine: a whole run of arrivals in one call, with the metrics after every arrival.

Scores are cached per pod shape in a tournament tree over the nodes. A log of touched nodes tells each shape, when its
next pod arrives, which nodes to score again, so a decision costs a few scores and log N matches. Memory rarely decides,
so shapes that differ in nothing else share a tree; one for which nodes are passed over too often gets its own tree.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.gpu import DEVICE_MILLI
from aaml.cluster.kernels import compiled
from aaml.episodes.random_bits import draw
from aaml.episodes.tournament import (
    NOWHERE,
    build,
    build_ties,
    first_best,
    first_best_where,
    leaves_for,
    nth_best,
    update,
    update_ties,
)
from aaml.policies.fragmentation import FragmentTables, TypicalPods, cpu_class, fragment_tables, measure, usable
from aaml.policies.gpu.arrays import SHAPE_COUNT, SHAPE_MEMORY, SHAPE_MILLI, NodeArrays
from aaml.policies.gpu.features import Scratch, make_scratch
from aaml.policies.gpu.fit import RULE_RANDOM, RULE_SCORE, fits_all, fits_but_memory, place
from aaml.policies.gpu.learned import Scorer, scratch_for
from aaml.policies.gpu.policies import device_for, score_node

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_MOST_DRAWS = 128  # random draws among equals before a shape gets its own tree
_PATIENCE = 16  # tree entries per node that a shape's searches may look at before it does,
_PATIENCE_PER_ARRIVAL = 2048  # and how many more with each arrival


class Episode(NamedTuple):
    """What a run left behind, after each of T arrivals.

    ===========  ==========  ==================================================================
    node         int32 [T]   row chosen, -1 where the pod fitted nowhere
    used_milli   int64 [T]   GPU thousandths in use
    usable       int64 [T]   C times the free GPU capacity that typical pods can use
    ===========  ==========  ==================================================================
    """

    node: npt.NDArray[np.int32]
    used_milli: IntArray
    usable: IntArray


@compiled
def _usable_now(nodes: NodeArrays, row: int, tables: FragmentTables, scratch: Scratch) -> int:
    measure(nodes.gpu[row, : nodes.gpu_count[row]], tables, scratch.sums, scratch.counts)
    return usable(nodes.gpu_model[row], cpu_class(nodes.cpu[row], tables), tables, scratch.sums, scratch.counts)


@compiled
def _simulate(  # noqa: C901, PLR0912, PLR0915
    nodes: NodeArrays,
    shapes: IntArray,
    slot_of: IntArray,
    groups: int,
    arrivals: IntArray,
    row_of_leaf: IntArray,
    policy: int,
    tables: FragmentTables,
    measured: FragmentTables,
    scorer: Scorer | None,
    truncate: bool,
    random_ties: bool,
    device_rule: int,
    seed: int,
    trees: FloatArray,
    ties: npt.NDArray[np.int32],
    chosen: npt.NDArray[np.int32],
    used_milli: IntArray,
    usable_after: IntArray,
) -> None:
    count = nodes.cpu.shape[0]
    half = trees.shape[1] // 2
    scratch = make_scratch(tables, 0, 0) if scorer is None else scratch_for(scorer, tables)
    gauge = make_scratch(measured, 0, 0)
    random_state = np.array([seed], dtype=np.uint64)
    leaf_of_row = np.empty(count, dtype=np.int64)
    used, usable_sum = 0, 0
    usable_of = np.empty(count, dtype=np.int64)
    for leaf in range(count):
        row = row_of_leaf[leaf]
        leaf_of_row[row] = leaf
        usable_of[row] = _usable_now(nodes, row, measured, gauge)
        usable_sum += usable_of[row]
        used += DEVICE_MILLI * nodes.gpu_count[row] - nodes.gpu[row].sum()
    log = np.empty(arrivals.shape[0], dtype=np.int64)
    last_entry = np.full(count, -1, dtype=np.int64)
    read = np.full(trees.shape[0], -1, dtype=np.int64)
    patience = np.full(shapes.shape[0], _PATIENCE * count, dtype=np.int64)
    written = 0
    for step in range(arrivals.shape[0]):
        number = arrivals[step]
        shape = shapes[number]
        need = shape[SHAPE_MEMORY]
        row = -1
        for _ in range(2):  # a second time only where random draws found no node with enough memory
            slot = slot_of[number]
            with_memory = slot >= groups
            tree = trees[slot]
            if read[slot] < 0:
                tree[:] = NOWHERE
                for leaf in range(count):
                    other = row_of_leaf[leaf]
                    if (need <= nodes.memory[other] or not with_memory) and fits_but_memory(nodes, other, shape):
                        tree[half + leaf] = score_node(policy, nodes, other, shape, tables, truncate, scorer, scratch)[
                            0
                        ]
                build(tree)
                if random_ties:
                    build_ties(tree, ties[slot])
            else:
                for entry in range(read[slot], written):
                    touched = log[entry]
                    if last_entry[touched] != entry:
                        continue  # touched again later
                    score = NOWHERE
                    if (need <= nodes.memory[touched] or not with_memory) and fits_but_memory(nodes, touched, shape):
                        score = score_node(policy, nodes, touched, shape, tables, truncate, scorer, scratch)[0]
                    if random_ties:
                        update_ties(tree, ties[slot], leaf_of_row[touched], score)
                    else:
                        update(tree, leaf_of_row[touched], score)
            read[slot] = written
            if tree[1] == NOWHERE:
                break
            leaf = -1
            if random_ties:
                for _ in range(_MOST_DRAWS):
                    leaf = nth_best(tree, ties[slot], draw(random_state) % ties[slot, 1])
                    if nodes.memory[row_of_leaf[leaf]] >= need:
                        break
                patience[number] = patience[number] if nodes.memory[row_of_leaf[leaf]] >= need else -1
            else:
                leaf = first_best(tree)
                if nodes.memory[row_of_leaf[leaf]] < need:
                    leaf, visits = first_best_where(tree, nodes.memory, row_of_leaf, need)
                    patience[number] += _PATIENCE_PER_ARRIVAL - visits
            if patience[number] < 0 and not with_memory:
                slot_of[number] = groups + number
            if leaf < 0 or nodes.memory[row_of_leaf[leaf]] >= need:
                row = row_of_leaf[leaf] if leaf >= 0 else -1
                break
        if row >= 0:
            scored = -1
            if device_rule == RULE_SCORE:
                scored = score_node(policy, nodes, row, shape, tables, truncate, scorer, scratch)[1]
            drawn = draw(random_state) if device_rule == RULE_RANDOM else 0
            place(nodes, row, shape, device_for(nodes, row, shape, device_rule, scored, drawn))
            used += shape[SHAPE_COUNT] * shape[SHAPE_MILLI]
            now = _usable_now(nodes, row, measured, gauge)
            usable_sum += now - usable_of[row]
            usable_of[row] = now
            log[written] = row
            last_entry[row] = written
            written += 1
        chosen[step] = row
        used_milli[step] = used
        usable_after[step] = usable_sum


def simulate(
    nodes: NodeArrays,
    shapes: IntArray,
    arrivals: IntArray,
    tables: FragmentTables,
    policy: int,
    *,
    node_rank: IntArray,
    measured: FragmentTables | None = None,
    scorer: Scorer | None = None,
    truncate: bool = True,
    random_ties: bool = False,
    device_rule: int = 0,
    seed: int = 0,
) -> Episode:
    """Place `arrivals` (int64 [T], rows of `shapes` int64 [S, 6]) one after another on `nodes`, which are changed.

    Equal scores go to the smallest `node_rank` [N] (a permutation), or to a random one of them. `measured`: the typical
    pods that `usable` is about, where they are not those that the policy reckons with.
    """
    size = 2 * leaves_for(len(nodes.cpu))
    cached, slot = np.unique(np.delete(shapes, SHAPE_MEMORY, axis=1), axis=0, return_inverse=True)
    slots = len(cached) + len(shapes)  # trees that are never used are never touched, so they take no memory
    trees = np.empty((slots, size))
    ties = np.empty((slots, size) if random_ties else (1, 1), dtype=np.int32)
    steps = len(arrivals)
    episode = Episode(np.empty(steps, np.int32), np.empty(steps, np.int64), np.empty(steps, np.int64))
    row_of_leaf = np.argsort(node_rank, kind="stable")
    measured = measured or tables
    _simulate(
        nodes, shapes, slot.reshape(-1).astype(np.int64), len(cached), arrivals, row_of_leaf, policy, tables, measured,
        scorer, truncate, random_ties, device_rule, seed, trees, ties, *episode,
    )  # fmt: skip
    return episode


@cache
def warm_up() -> None:
    """Compile, or load from the cache, what `simulate` needs, so that a timing does not count it."""
    one = np.ones(1, dtype=np.int64)
    nodes = NodeArrays(one.copy(), one, one.copy(), one.copy(), one[:, None].copy(), one, 0 * one, 0 * one)
    tables = fragment_tables(TypicalPods((), 0), ("",), 1)
    shape = np.array([[1, 1, 0, 0, -1, 0]], dtype=np.int64)
    simulate(nodes, shape, 0 * one, tables, 0, node_rank=0 * one)


def simulate_choices(
    choose: Callable[[int, npt.NDArray[np.bool_]], tuple[int, int]],
    nodes: NodeArrays,
    shapes: IntArray,
    arrivals: IntArray,
    tables: FragmentTables,
) -> Episode:
    """Run a scheduler written in Python over the same arrivals, rules and metrics, one call a feasible pod.

    `choose(step, mask)` gets the feasible rows, bool [N], and returns (row, or -1 to leave the pod out; a share's
    device, or -1 for the best-fitting one). ValueError when it names a row or a device where the pod does not fit.
    """
    steps = len(arrivals)
    episode = Episode(np.full(steps, -1, np.int32), np.empty(steps, np.int64), np.empty(steps, np.int64))
    gauge = make_scratch(tables, 0, 0)
    usable_of = np.array([_usable_now(nodes, row, tables, gauge) for row in range(len(nodes.cpu))], dtype=np.int64)
    usable_sum, used = int(usable_of.sum()), DEVICE_MILLI * int(nodes.gpu_count.sum()) - int(nodes.gpu.sum())
    for step, arrival in enumerate(arrivals):
        shape = shapes[arrival]
        mask = fits_all(nodes, shape)
        row, device = choose(step, mask) if mask.any() else (-1, -1)
        if row >= 0:
            if not mask[row]:
                raise ValueError(f"arrival {step}: the pod does not fit on row {row}")
            device = device_for(nodes, row, shape, RULE_SCORE, device, 0)
            if device >= 0 and nodes.gpu[row, device] < shape[SHAPE_MILLI]:
                raise ValueError(f"arrival {step}: the pod does not fit on device {device} of row {row}")
            place(nodes, row, shape, device)
            used += int(shape[SHAPE_COUNT] * shape[SHAPE_MILLI])
            now = _usable_now(nodes, row, tables, gauge)
            usable_sum += int(now - usable_of[row])
            usable_of[row] = now
            episode.node[step] = row
        episode.used_milli[step], episode.usable[step] = used, usable_sum
    return episode
