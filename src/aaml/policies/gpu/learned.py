"""Learned scorers inside the compiled loop: linear in the features phi, or a network or formula of phi and the pod."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import compiled
from aaml.errors import UserError
from aaml.policies.formulas.expression import FIRST_GPU, Constant
from aaml.policies.formulas.program import Program, assemble, run_program
from aaml.policies.fragmentation import FragmentTables
from aaml.policies.gpu.arrays import SHAPE_MILLI, SHAPE_MODELS, NodeArrays
from aaml.policies.gpu.features import Scratch, features_of, make_scratch, pod_group
from aaml.policies.gpu.fit import NO_DEVICE, fits
from aaml.policies.gpu.prices import Scarcity, scarcity
from aaml.policies.gpu_names import FEATURES, GROUPS, POD_INPUTS

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class Scorer(NamedTuple):
    """Weights of a learned scorer, for one cluster's GPU models.

    ========  =====================  ======================================================================
    linear    float64 [groups, F]    rows as `GROUPS`, columns as `FEATURES`; all 0 where something else scores
    flat      float64 [P]            a network's layers: biases [out], then weights [in, out] row by row
    sizes     int64 [L + 1]          units per layer, inputs first, 1 last; [1] without a network
    program   `Program`              a formula, whose features are numbered as phi; without features where none scores
    scarce    `Scarcity`             what the typical pods make scarce on the cluster
    ========  =====================  ======================================================================
    """

    linear: FloatArray
    flat: FloatArray
    sizes: IntArray
    program: Program
    scarce: Scarcity


NETWORK_INPUTS = len(FEATURES) + len(POD_INPUTS)
_NO_FORMULA = assemble(Constant(0.0))


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


def formula_scorer(program: Program, tables: FragmentTables, devices: npt.ArrayLike) -> Scorer:
    """Build a scorer of a formula over `gpu.NAME` and `gpu_pod.NAME`, by its program.

    It is for a cluster with so many `devices` [models] of each GPU model.
    """
    if (program.features < FIRST_GPU).any():
        raise UserError("formula: reads features of nodes; a scorer of GPU devices has gpu.NAME and gpu_pod.NAME")
    return _scorer(tables, devices)._replace(program=program._replace(features=program.features - FIRST_GPU))


def _scorer(tables: FragmentTables, devices: npt.ArrayLike) -> Scorer:
    weights = np.zeros((len(GROUPS), len(FEATURES)))
    return Scorer(weights, np.zeros(1), np.zeros(1, dtype=np.int64), _NO_FORMULA, scarcity(tables, devices))


@compiled
def scratch_for(scorer: Scorer, tables: FragmentTables) -> Scratch:
    """Allocate working memory for a scorer."""
    program = scorer.program
    registers = len(program.features) + len(program.constants) + len(program.code)
    return make_scratch(tables, scorer.sizes.max(), registers)


@compiled
def _network(phi: FloatArray, scorer: Scorer, scratch: Scratch) -> float:
    offset, current = 0, phi
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
def _formula(phi: FloatArray, program: Program, scratch: Scratch) -> float:
    registers = scratch.registers
    for k in range(len(program.features)):
        registers[k, 0] = phi[program.features[k]]
    run_program(program.constants, program.code, len(program.features), registers, 1)
    return float(registers[registers.shape[0] - 1, 0])


@compiled
def _value(phi: FloatArray, shape: IntArray, scorer: Scorer, scratch: Scratch) -> float:
    if scorer.sizes.shape[0] > 1:
        return _network(phi, scorer, scratch)
    if len(scorer.program.features) > 0:
        return _formula(phi, scorer.program, scratch)
    group = pod_group(shape)
    named = shape[SHAPE_MODELS] >= 0 and shape[SHAPE_MILLI] > 0
    value = 0.0
    for i in range(scorer.linear.shape[1]):
        weight = scorer.linear[group, i]
        if named:
            weight += scorer.linear[4, i]
        value += weight * phi[i]
    return value


@compiled
def learned_score(
    nodes: NodeArrays, row: int, shape: IntArray, tables: FragmentTables, scorer: Scorer, scratch: Scratch
) -> tuple[float, int]:
    """Return a node's score and, for a share, the device with the highest one, of equal ones the first."""
    best, chosen = -np.inf, NO_DEVICE
    for k in range(features_of(nodes, row, shape, tables, scorer.scarce, scratch)):
        score = _value(scratch.phi[k], shape, scorer, scratch)
        if score > best or k == 0:
            best, chosen = score, scratch.devices[k]
    return best, chosen


@compiled
def all_features(
    nodes: NodeArrays, shape: IntArray, tables: FragmentTables, scarce: Scarcity
) -> tuple[FloatArray, IntArray, IntArray]:
    """Return what scorers see of a pod on all nodes where it fits, and on each device that a share may take.

    The features are float64 [P, F + pod inputs], with the node int64 [P] and the device int64 [P] that each row is of:
    `NO_DEVICE` for a pod that is no share. Of devices that are alike on a node it is the first.
    """
    scratch = make_scratch(tables, 0, 0)
    most = nodes.cpu.shape[0] * scratch.phi.shape[0]
    found, rows, devices = np.empty((most, scratch.phi.shape[1])), np.empty(most, np.int64), np.empty(most, np.int64)
    end = 0
    for row in range(nodes.cpu.shape[0]):
        if fits(nodes, row, shape):
            start, end = end, end + features_of(nodes, row, shape, tables, scarce, scratch)
            found[start:end], devices[start:end] = scratch.phi[: end - start], scratch.devices[: end - start]
            rows[start:end] = row
    return found[:end].copy(), rows[:end].copy(), devices[:end].copy()
