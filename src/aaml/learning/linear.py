"""Linear scorers on disk."""

from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from aaml.errors import UserError
from aaml.files import write_json
from aaml.policies.heuristics.linear import COST, FEATURES, LIFE, TERMS, LinearPolicy
from aaml.policies.spec_file import read_spec, spec_to_dict
from aaml.scheduling.observation import PLAIN
from aaml.scheduling.queue_sort import QueueSort
from aaml.schema import convert, of_json, read_bytes

FloatArray = npt.NDArray[np.float64]
_OLD = {name: 0.0 for name in FEATURES if name not in (*LIFE, *COST)}  # weights of a file without those


def save_linear(policy: LinearPolicy, path: Path) -> None:
    """Write the weights by the names of their terms and features as JSON, whole or not at all."""
    weights = dict(zip(TERMS, (dict(zip(FEATURES, row, strict=True)) for row in policy.weights.tolist()), strict=True))
    content: dict[str, Any] = {"format": "aaml-linear", "weights": weights}
    if policy.queue_sort is not None:
        content["queue_sort"] = policy.queue_sort.numbers()
    if policy.observation_spec != PLAIN:
        content["observation"] = spec_to_dict(policy.observation_spec)
    write_json(path, content, indent=1, field="model")


def load_linear(path: Path) -> LinearPolicy:
    """Read a linear scorer. Raises `UserError` for a file that is missing, none, or made for other features."""
    where = f"model {path}"
    content = read_bytes(path, "model")
    try:
        found = convert(of_json(content, where), _File, where)
        queue_sort = None if found.queue_sort is None else QueueSort.of(found.queue_sort)
        spec = PLAIN if found.observation is None else read_spec(found.observation, f"{where}: observation")
    except (ValueError, TypeError, UserError) as error:
        raise UserError(f"{where}: is not a linear scorer ({error})") from error
    rows = [found.weights.get(term, _OLD if term == TERMS[-1] else {}) for term in TERMS]
    if found.weights.keys() - set(TERMS) or any(not set(_OLD) <= set(row) <= set(FEATURES) for row in rows):
        raise UserError(f"{where}: is not a linear scorer of this version's features")
    weights = np.array([[row.get(name, 0.0) for name in FEATURES] for row in rows])
    return LinearPolicy(weights, path.stem, queue_sort, spec)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["aaml-linear"]
    weights: dict[str, dict[str, float]]
    queue_sort: dict[str, float] | None = None
    observation: dict[str, Any] | None = None
