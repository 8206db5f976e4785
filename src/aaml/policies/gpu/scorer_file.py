"""Scorers of the GPU-sharing benchmark as files: weights by name in one .npz, whose reading executes nothing."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aaml.errors import UserError
from aaml.files import write_whole
from aaml.policies.formulas.expression import Expression
from aaml.policies.formulas.program import assemble
from aaml.policies.fragmentation import FragmentTables
from aaml.policies.gpu.learned import Scorer, formula_scorer, linear_scorer, network_scorer
from aaml.policies.gpu_names import FEATURES, POD_INPUTS

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScorerModel:
    """A learned scorer apart from any cluster.

    It has `linear` weights, [groups, F] or [F], or the `layers` of a network, or a `formula`.
    """

    linear: FloatArray | None = None
    layers: tuple[tuple[FloatArray, FloatArray], ...] = ()
    formula: Expression | None = None

    @property
    def policy(self) -> str:
        """The compiled policy that evaluates it."""
        if self.formula is not None:
            return "formula"
        return "network" if self.layers else "linear"

    def scorer(self, tables: FragmentTables, devices: npt.ArrayLike) -> Scorer:
        """Return what the kernels take, for a cluster with so many `devices` [models] of each GPU model."""
        if self.formula is not None:
            return formula_scorer(assemble(self.formula), tables, devices)
        if self.layers:
            return network_scorer(self.layers, tables, devices)
        return linear_scorer(np.zeros(len(FEATURES)) if self.linear is None else self.linear, tables, devices)


def save_scorer(model: ScorerModel, path: Path) -> None:
    """Write a scorer (.npz), whole or not at all."""
    arrays: dict[str, npt.NDArray[np.float64] | npt.NDArray[np.str_]] = {"inputs": np.array(_inputs(model))}
    if model.linear is not None:
        arrays["linear"] = model.linear
    for number, (weights, biases) in enumerate(model.layers):
        arrays[f"weights_{number}"], arrays[f"biases_{number}"] = weights, biases
    write_whole(path, lambda file: np.savez(file, **arrays), field="model")  # type: ignore[arg-type]


def load_scorer(path: Path) -> ScorerModel:
    """Read a scorer; features that are newer than the file count for nothing.

    Raises `UserError` for a file that is none, or one that was made for features that are not there any more.
    """
    if not path.is_file():
        raise UserError(f"model: {path} does not exist")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise UserError(f"model: {path} is not a scorer (.npz): {error}") from error
    layers: list[tuple[FloatArray, FloatArray]] = []
    while f"weights_{len(layers)}" in arrays:
        layers.append((arrays[f"weights_{len(layers)}"], arrays.get(f"biases_{len(layers)}", np.zeros(0))))
    model = ScorerModel(arrays.get("linear"), tuple(layers))
    if model.linear is None and not layers:
        raise UserError(f"model: {path} holds {', '.join(arrays) or 'nothing'}; expected linear or weights_0, biases_0")
    given, known = arrays.get("inputs", np.zeros(0)).tolist(), _inputs(model)
    if given == known:
        return model
    if not given or not set(given) <= set(known):
        raise UserError(f"model: {path} was made for other features; train it again with this version")
    places = [known.index(name) for name in given]
    if model.linear is not None:
        return ScorerModel(_widened(model.linear, places, len(known)))
    (weights, biases), *rest = layers
    return ScorerModel(None, ((_widened(weights, places, len(known)), biases), *rest))


def _widened(weights: FloatArray, places: Sequence[int], width: int) -> FloatArray:
    """Return weights [..., width] of those of a file from before some features were there, which count for nothing."""
    if weights.shape[-1] != len(places):
        return weights  # refused by its shape where it is used
    result = np.zeros((*weights.shape[:-1], width))
    result[..., places] = weights
    return result


def _inputs(model: ScorerModel) -> Sequence[str]:
    return [*FEATURES, *POD_INPUTS] if model.layers else list(FEATURES)
