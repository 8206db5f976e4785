"""Tournament trees over nodes: the best node of each pod shape at the root, one path replayed when a node changes.

Leaf i of a tree is the node of tie rank i, so that the left one of two equals wins. Trees are rows of one float64
array [S, 2 L] (L leaves, a power of two; entry 1 is the root, entry 0 unused); -inf stands for a node that cannot take
the pod. `ties` int32 [S, 2 L] counts the leaves that share the best score below each entry, for random choice.
"""

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import compiled

FloatArray = npt.NDArray[np.float64]
CountArray = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.int64]

NOWHERE = -np.inf


def leaves_for(nodes: int) -> int:
    """Return L, the smallest power of two that is at least `nodes`."""
    return 1 << max(nodes - 1, 0).bit_length()


@compiled
def build(tree: FloatArray) -> None:
    """Play all matches of a tree [2 L] whose leaves are set."""
    for entry in range(tree.shape[0] // 2 - 1, 0, -1):
        tree[entry] = max(tree[2 * entry], tree[2 * entry + 1])


@compiled
def build_ties(tree: FloatArray, ties: CountArray) -> None:
    """Count, in a built tree, the leaves with the best score below each entry."""
    half = tree.shape[0] // 2
    for leaf in range(half, 2 * half):
        ties[leaf] = 1 if tree[leaf] > NOWHERE else 0
    for entry in range(half - 1, 0, -1):
        ties[entry] = _ties_below(tree, ties, entry)


@compiled
def _ties_below(tree: FloatArray, ties: CountArray, entry: int) -> int:
    left, right = tree[2 * entry], tree[2 * entry + 1]
    if left > right:
        return ties[2 * entry]
    if right > left:
        return ties[2 * entry + 1]
    return ties[2 * entry] + ties[2 * entry + 1]


@compiled
def update(tree: FloatArray, leaf: int, score: float) -> None:
    """Set the score of leaf (0 ... L-1) and replay its path while anything changes."""
    entry = tree.shape[0] // 2 + leaf
    if tree[entry] == score:
        return
    tree[entry] = score
    entry >>= 1
    while entry:
        best = max(tree[2 * entry], tree[2 * entry + 1])
        if tree[entry] == best:
            return
        tree[entry] = best
        entry >>= 1


@compiled
def update_ties(tree: FloatArray, ties: CountArray, leaf: int, score: float) -> None:
    """`update` that keeps the counts too."""
    entry = tree.shape[0] // 2 + leaf
    if tree[entry] == score:
        return
    tree[entry] = score
    ties[entry] = 1 if score > NOWHERE else 0
    entry >>= 1
    while entry:
        tree[entry] = max(tree[2 * entry], tree[2 * entry + 1])
        ties[entry] = _ties_below(tree, ties, entry)
        entry >>= 1


@compiled
def first_best(tree: FloatArray) -> int:
    """Return the leftmost leaf with the best score, -1 where no leaf has one."""
    best = tree[1]
    if best == NOWHERE:
        return -1
    half, entry = tree.shape[0] // 2, 1
    while entry < half:
        entry = 2 * entry if tree[2 * entry] == best else 2 * entry + 1
    return entry - half


@compiled
def nth_best(tree: FloatArray, ties: CountArray, n: int) -> int:
    """Return the n-th (from 0) leaf from the left among those with the best score; n below the root's count."""
    best = tree[1]
    half, entry = tree.shape[0] // 2, 1
    while entry < half:
        entry *= 2
        if tree[entry] != best:
            entry += 1
        elif n >= ties[entry]:
            n -= ties[entry]
            entry += 1
    return entry - half


@compiled
def first_best_where(tree: FloatArray, amount: IntArray, row_of_leaf: IntArray, need: int) -> tuple[int, int]:
    """Return the leftmost best leaf whose row has at least `need` of `amount` (-1: none), and the entries looked at.

    Branch and bound from the better child down: close to `first_best` where few leaves are excluded.
    """
    half = tree.shape[0] // 2
    best, chosen, visits = NOWHERE, -1, 0
    stack = np.empty(128, dtype=np.int64)
    stack[0], depth = 1, 1
    while depth:
        depth -= 1
        entry = stack[depth]
        visits += 1
        score = tree[entry]
        if score == NOWHERE or score < best:
            continue
        if entry >= half:
            leaf = entry - half
            if (score > best or leaf < chosen) and amount[row_of_leaf[leaf]] >= need:
                best, chosen = score, leaf
            continue
        left, right = 2 * entry, 2 * entry + 1
        if tree[left] >= tree[right]:
            left, right = right, left
        stack[depth], stack[depth + 1] = left, right  # the better child is popped first
        depth += 2
    return chosen, visits
