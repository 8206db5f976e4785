"""Learned scorers inside the compiled loop: linear in the features phi, or a small network of phi and the pod."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import compiled
from aaml.errors import UserError
from aaml.policies.fragmentation import FragmentTables
from aaml.policies.gpu.arrays import SHAPE_MILLI, SHAPE_MODELS, NodeArrays
from aaml.policies.gpu.features import (
    FEATURES,
    GROUPS,
    POD_INPUTS,
    Scratch,
    features_on_device,
    measure_node,
    pod_group,
    pod_inputs,
)
from aaml.policies.gpu.fit import NO_DEVICE, is_repeated, is_share
from aaml.policies.gpu.prices import Scarcity, scarcity

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class Scorer(NamedTuple):
    """Weights of a learned scorer, for one cluster's GPU models.

    ========  =====================  ======================================================================
    linear    float64 [groups, F]    rows as `GROUPS`, columns as `FEATURES`; all 0 where a network scores
    flat      float64 [P]            a network's layers: biases [out], then weights [in, out] row by row
    sizes     int64 [L + 1]          units per layer, inputs first, 1 last
    scarce    `Scarcity`             what the typical pods make scarce on the cluster
    ========  =====================  ======================================================================
    """

    linear: FloatArray
    flat: FloatArray
    sizes: IntArray
    scarce: Scarcity


NETWORK_INPUTS = len(FEATURES) + len(POD_INPUTS)


def linear_scorer(weights: npt.ArrayLike, tables: FragmentTables, devices: npt.ArrayLike) -> Scorer:
    """Build a scorer w . phi for a cluster with so many `devices` [models] of each GPU model.

    The weights are [groups, F], or the same flat, or [F] for all groups alike.
    """
    array = np.asarray(weights, dtype=np.float64)
    rows, columns = len(GROUPS), len(FEATURES)
    if array.size == columns:
        matrix = np.zeros((rows, columns))
        matrix[:-1] = array.reshape(columns)
    elif array.size == rows * columns:
        matrix = np.ascontiguousarray(array.reshape(rows, columns))
    else:
        raise UserError(f"weights: {array.size} numbers; a linear scorer has {columns} or {rows} x {columns}")
    return _scorer(tables, devices)._replace(linear=matrix)


def network_scorer(
    layers: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]], tables: FragmentTables, devices: npt.ArrayLike
) -> Scorer:
    """Build a scorer from layers of (weights [out, in], biases [out]).

    There is a ReLU between two layers, and one output. It is for a cluster with so many `devices` [models] of each GPU
    model.
    """
    flat, sizes = [], [NETWORK_INPUTS]
    for weights, biases in layers:
        matrix, bias = np.asarray(weights, dtype=np.float64), np.asarray(biases, dtype=np.float64)
        if matrix.shape != (len(bias), sizes[-1]):
            raise UserError(f"layer {len(sizes)}: weights {matrix.shape}; expected ({len(bias)}, {sizes[-1]})")
        flat += [bias, matrix.T.ravel()]
        sizes.append(len(bias))
    if len(sizes) == 1 or sizes[-1] != 1:
        raise UserError(f"layers: {sizes[1:]} units; expected at least one layer and one output unit")
    return _scorer(tables, devices)._replace(flat=np.concatenate(flat), sizes=np.array(sizes, np.int64))


def _scorer(tables: FragmentTables, devices: npt.ArrayLike) -> Scorer:
    weights = np.zeros((len(GROUPS), len(FEATURES)))
    return Scorer(weights, np.zeros(1), np.zeros(1, dtype=np.int64), scarcity(tables, devices))


@compiled
def _network(scorer: Scorer, scratch: Scratch) -> float:
    offset, current = 0, scratch.phi
    layers = scorer.sizes.shape[0] - 1
    for layer in range(layers):
        inputs, outputs = scorer.sizes[layer], scorer.sizes[layer + 1]
        target = scratch.hidden[layer & 1]
        for unit in range(outputs):
            target[unit] = scorer.flat[offset + unit]
        offset += outputs
        for i in range(inputs):
            value = current[i]
            if value != 0.0 and (layer == 0 or value > 0.0):  # ReLU of the layer before
                weights = scorer.flat[offset : offset + outputs]
                for unit in range(outputs):
                    target[unit] += value * weights[unit]
            offset += outputs
        current = target
    return float(current[0])


@compiled
def _value(shape: IntArray, scorer: Scorer, scratch: Scratch) -> float:
    if scorer.sizes.shape[0] > 1:
        return _network(scorer, scratch)
    group = pod_group(shape)
    named = shape[SHAPE_MODELS] >= 0 and shape[SHAPE_MILLI] > 0
    value = 0.0
    for i in range(scorer.linear.shape[1]):
        weight = scorer.linear[group, i]
        if named:
            weight += scorer.linear[4, i]
        value += weight * scratch.phi[i]
    return value


@compiled
def learned_score(
    nodes: NodeArrays, row: int, shape: IntArray, tables: FragmentTables, scorer: Scorer, scratch: Scratch
) -> tuple[float, int]:
    """Return a node's score and, for a share, the device with the highest one, of equal ones the first."""
    measure_node(nodes, row, tables, scratch)
    if scorer.sizes.shape[0] > 1:
        pod_inputs(shape, scratch.phi)
    if not is_share(shape):
        features_on_device(nodes, row, shape, NO_DEVICE, tables, scorer.scarce, scratch)
        return _value(shape, scorer, scratch), NO_DEVICE
    best, chosen = -np.inf, NO_DEVICE
    milli = shape[SHAPE_MILLI]
    for device in range(nodes.gpu_count[row]):
        free = nodes.gpu[row, device]
        if free < milli or is_repeated(nodes, row, device):
            continue
        features_on_device(nodes, row, shape, device, tables, scorer.scarce, scratch)
        score = _value(shape, scorer, scratch)
        if score > best or chosen < 0:
            best, chosen = score, device
    return best, chosen
