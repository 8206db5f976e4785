"""The weights file of the plugin: a policy as JSON that the Go code reads, or one line that says why it is none.

=========  ============================================================================================================
format     `FORMAT`
version    `VERSION` of this layout
model      where the policy comes from: `name`, `agent`, and `sha256` of the model file ("" for a policy by name)
sha256     of the text of `policy`, byte by byte, so that a damaged file is told from a good one
policy     `kind` (network, linear, formula, heuristic, devices, kube-scheduler), `features` (version and names of those
           that it reads): of a network `encoder`, `head`, `width` and `layers` by torch's names, weights [out, in] and
           biases [out] in float32; of a linear scorer `terms` and `weights` [terms, features]; of a formula `constants`
           and `code`, instructions whose operands are numbers of registers (features, then constants, then results);
           of a heuristic its `name`; of a profile of kube-scheduler's own score plugins the `configuration` that says
           it; of a scorer of GPU devices its `name`, or weights [groups, features], `device_layers` or a formula, with
           `rests` [1001], what is left of a device is worth; of a policy that expects lifetimes its life table,
           `lifetimes`, which the plugin goes on teaching; of one that weighs fragments of GPUs the `expected_pods`,
           the typical ones with their frequencies
=========  ============================================================================================================
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aaml.errors import UserError
from aaml.evaluation.policies import PLUGIN_WEIGHTS, kind_of_model
from aaml.files import write_bytes
from aaml.learning.policy import NetworkPolicy
from aaml.plugin.profile import score_document
from aaml.policies import gpu_names as devices
from aaml.policies.formulas.expression import FIRST_COST, NUMBERED, Expression, features
from aaml.policies.formulas.operators import OPERATORS
from aaml.policies.formulas.policy import FormulaPolicy
from aaml.policies.formulas.program import assemble
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.fragmentation import TypicalPods, fragment_tables
from aaml.policies.gpu.prices import rest_values
from aaml.policies.heuristics.linear import COST, FEATURES, TERMS, LinearPolicy
from aaml.policies.heuristics.policies import FirstFit, GpuPolicy
from aaml.policies.heuristics.scored import ScorePolicy
from aaml.policies.kube_scores.profile import PREFIX, names_profile, profile_file
from aaml.policies.lifetime_rules import LifetimeRule, lifetime_class
from aaml.scheduling.lifetimes import KnownLifetimes
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.ports import Policy

FORMAT = PLUGIN_WEIGHTS
VERSION = 1
FEATURES_VERSION = 1
HEURISTICS = ("alphaevolve", "balanced-allocation", "least-allocated", "least-variance", "most-allocated")
ORDERED = {
    "first-come": "least-variance",
    "first-come-packing": "most-allocated",
    "least-work-first": "least-variance",
    "smallest-first": "least-variance",
}
"""Heuristics with an order of waiting pods, which stays behind, and what is left of them."""
DEVICES = ("best-fit", "dot-product", "fgd", "gpu-clustering", "gpu-packing")
LASTING = ("lava", "nilas", "shortest-first")
"""Best fit among nodes of one grade of time."""


def is_weights(path: Path) -> bool:
    """Whether a file is one of a plugin's weights."""
    try:
        return kind_of_model(path) == "plugin"
    except UserError:
        return False


def write_weights(policy: Policy, path: Path, *, name: str = "", source: Path | None = None) -> None:
    """Write a policy's weights, whole or not at all.

    `name` is the model's in logs and metrics, the policy's own by default; `source` is the model file. Raises
    `UserError` for a policy that the plugin cannot be.
    """
    write_bytes(path, weights(policy, name=name, source=source), field="weights")


def weights(policy: Policy, *, name: str = "", source: Path | None = None) -> bytes:
    """Return what `write_weights` writes."""
    digest = "" if source is None else hashlib.sha256(source.read_bytes()).hexdigest()
    model = {"name": name or policy.name, "agent": policy.name, "sha256": digest}
    return _file(_policy(policy, name or policy.name), model)


def write_profile(spec: str, path: Path) -> None:
    """Write a profile of kube-scheduler's own score plugins, whole or not at all; `spec` names it as a policy.

    Raises `UserError` for a file that kube-scheduler would not start with.
    """
    name, digest = spec, ""
    if names_profile(spec):
        source = profile_file(spec)
        name, digest = f"{PREFIX}{source.name}", hashlib.sha256(source.read_bytes()).hexdigest()
    content = {"kind": "kube-scheduler"} | _plain() | {"configuration": score_document(spec)}
    write_bytes(path, _file(content, {"name": name, "agent": "kube-scheduler", "sha256": digest}), field="weights")


def _file(content: Mapping[str, Any], model: Mapping[str, str]) -> bytes:
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    head = {"format": FORMAT, "version": VERSION, "model": model, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return f'{json.dumps(head)[:-1]}, "policy": {text}}}\n'.encode()


def _policy(policy: Policy, name: str) -> dict[str, Any]:  # noqa: PLR0911
    if isinstance(policy, NetworkPolicy):
        return _network(policy, name)
    if isinstance(policy, LinearPolicy):
        return _linear(policy, name)
    if isinstance(policy, FormulaPolicy):
        return _formula(policy, name)
    if isinstance(policy, GpuPolicy):
        return _devices(policy, name)
    if isinstance(policy, LifetimeRule):
        _check(policy.observation_spec, name)
        rule = "lava" if policy.grade is lifetime_class else "nilas"
        return _lifetime_model(policy.observation_spec) | {"kind": "devices", "name": rule} | _plain()
    if isinstance(policy, ScorePolicy) and policy.name in (*HEURISTICS, *ORDERED):
        return _heuristic(ORDERED.get(policy.name, policy.name))
    if isinstance(policy, FirstFit):
        return _heuristic(policy.name)
    by_name = sorted((*HEURISTICS, *ORDERED, *DEVICES, *LASTING, FirstFit().name))
    accepted = f"a network, a linear scorer, a formula, a scorer of GPUs, or one of {', '.join(by_name)}"
    raise UserError(f"policy {name}: it has no twin in Go; the plugin can be {accepted}")


def _network(policy: NetworkPolicy, name: str) -> dict[str, Any]:
    spec = policy.network.spec
    _check(policy.observation_spec, name)
    tensors = policy.weights()["network"]
    for tensor, values in tensors.items():
        if not np.isfinite(values).all():
            raise UserError(f"policy {name}: {tensor} holds numbers that are not finite; train it again")
    return _lifetime_model(policy.observation_spec) | {
        "kind": "network",
        "features": {
            "version": FEATURES_VERSION,
            "node": list(spec.node_features),
            "pair": list(spec.pair_features),
            "pod": list(spec.pod_features),
        },
        "encoder": spec.encoder,
        "head": spec.head,
        "width": spec.width,
        "layers": {"weights": _by_rank(tensors, 2), "biases": _by_rank(tensors, 1)},
    }


def _by_rank(tensors: Mapping[str, np.ndarray], rank: int) -> dict[str, Any]:
    """Return the tensors with so many dimensions, each number with no more digits than tell a float32."""
    return {name: _shortest(values) for name, values in tensors.items() if values.ndim == rank}


def _shortest(values: np.ndarray) -> Any:
    if values.ndim > 1:
        return [_shortest(row) for row in values]
    return [float(str(value)) for value in values.astype(np.float32)]


def _linear(policy: LinearPolicy, name: str) -> dict[str, Any]:
    _check(policy.observation_spec, name)
    if not np.isfinite(policy.weights).all():
        raise UserError(f"policy {name}: its weights are not all finite; train it again")
    known = len(FEATURES) - len(COST)
    reads = {"version": FEATURES_VERSION, "linear": list(FEATURES[:known])}
    numbers = {"terms": list(TERMS), "weights": policy.weights[:, :known].tolist()}
    return _lifetime_model(policy.observation_spec) | {"kind": "linear", "features": reads} | numbers


def _formula(policy: FormulaPolicy, name: str) -> dict[str, Any]:
    reads = features(policy.formula.expression)
    costs = any(NUMBERED[each] >= FIRST_COST for each in reads)
    _check(replace(policy.observation_spec, costs=costs), name)
    return _lifetime_model(policy.observation_spec) | {"kind": "formula"} | _code(policy.formula.expression)


def _code(expression: Expression) -> dict[str, Any]:
    program, names = assemble(expression), tuple(OPERATORS)
    code = []
    for number, *operands, _ in program.code.tolist():
        operator = names[number]
        code.append({"operator": operator, "operands": operands[: len(OPERATORS[operator].takes)]})
    return {
        "features": {"version": FEATURES_VERSION, "formula": list(features(expression))},
        "constants": program.constants.tolist(),
        "code": code,
    }


def _heuristic(name: str) -> dict[str, Any]:
    return {"kind": "heuristic", "name": name} | _plain()


def _plain() -> dict[str, Any]:
    return {"features": {"version": FEATURES_VERSION}}


def _devices(policy: GpuPolicy, name: str) -> dict[str, Any]:
    if policy.weighs_nothing:
        raise UserError(f"expected-pods: {name} weighs fragments by pods like those to come, and none asks for a GPU")
    content = {"kind": "devices"} | _expected(policy.typical)
    if policy.model is None:
        return content | {"name": policy.kernel} | _plain()
    tables = fragment_tables(policy.typical, ("",), 0)
    scorer = policy.model.scorer(tables, (0,))  # which checks its shape
    is_linear = not policy.model.layers and policy.model.formula is None
    reads = devices.FEATURES if is_linear else (*devices.FEATURES, *devices.POD_INPUTS)
    content |= {
        "features": {"version": FEATURES_VERSION, "devices": list(reads)},
        "rests": rest_values(tables).tolist(),
    }
    if policy.model.formula is not None:
        code = _code(policy.model.formula)
        return content | code | {"features": content["features"] | code["features"]}
    if not all(np.isfinite(values).all() for values in (scorer.linear, scorer.flat)):
        raise UserError(f"policy {name}: its weights are not all finite; tune it again")
    if policy.model.layers:
        layers = [{"weights": weights.tolist(), "biases": biases.tolist()} for weights, biases in policy.model.layers]
        return content | {"device_layers": layers}
    return content | {"weights": scorer.linear.tolist()}


def _lifetime_model(spec: ObservationSpec) -> dict[str, Any]:
    lifetimes = {} if spec.lifetime_model is None else {"lifetimes": spec.lifetime_model.to_dict()}
    return lifetimes | (_expected(spec.fragmentation.typical) if isinstance(spec.fragmentation, FragmentMeter) else {})


def _expected(typical: TypicalPods) -> dict[str, Any]:
    kinds = [
        {
            "cpu_milli": kind.cpu_milli,
            "gpu_milli": kind.gpu_milli,
            "gpu_count": kind.gpu_count,
            "models": sorted(kind.models),
            "frequency": kind.frequency,
        }
        for kind in typical.kinds
    ]
    return {"expected_pods": {"population": typical.population, "kinds": kinds}}


def _check(spec: ObservationSpec, name: str) -> None:
    """Raise `UserError` where a policy reads what kube-scheduler does not know."""
    reasons = {
        "the pods that follow (lookahead), which kube-scheduler shows no plugin": spec.lookahead > 0,
        "true lifetimes, which nobody knows on a cluster": spec.lifetimes
        or isinstance(spec.lifetime_model, KnownLifetimes),
        "racks, which the plugin's graph does not have": spec.racks,
        "what nodes cost, which kube-scheduler does not know": spec.costs,
    }
    reads = next((what for what, is_read in reasons.items() if is_read), None)
    if reads is not None:
        raise UserError(f"policy {name}: it reads {reads}")
