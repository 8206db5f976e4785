"""What a policy looks at as plain values, for the files of models."""

from collections.abc import Mapping
from typing import Any

from aaml.errors import UserError
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.fragmentation import TypicalPod, TypicalPods
from aaml.scheduling.lifetimes import EDGES_S, LifetimeModel, model_from_dict
from aaml.scheduling.observation import ObservationSpec

_FIELDS = {"lookahead", "lifetimes", "racks", "typical_pods", "expects", "costs"}


def spec_to_dict(spec: ObservationSpec) -> dict[str, Any]:
    """Return JSON-able values. Raises TypeError for a way to measure fragments that files cannot hold."""
    meter = spec.fragmentation
    if meter is not None and not isinstance(meter, FragmentMeter):
        raise TypeError(f"fragmentation: {type(meter).__name__} cannot be written to a file; expected a FragmentMeter")
    expected = {} if spec.lifetime_model is None else {"expects": spec.lifetime_model.to_dict()}
    return {
        "lookahead": spec.lookahead,
        "lifetimes": spec.lifetimes,
        "racks": spec.racks,
        "typical_pods": None if meter is None else _pods_to_dict(meter.typical),
        **expected,
        **({"costs": True} if spec.costs else {}),
    }


def read_spec(fields: Mapping[str, Any], where: str) -> ObservationSpec:
    """Read what `spec_to_dict` wrote. Raises `UserError` for anything else."""
    try:
        return spec_from_dict(fields)
    except KeyError as error:
        raise UserError(f"{where}: lacks {error}") from error
    except (ValueError, TypeError, AttributeError, OverflowError, IndexError) as error:
        raise UserError(f"{where}: says of no observation what it is ({error})") from error


def spec_from_dict(fields: Mapping[str, Any]) -> ObservationSpec:
    """Read what `spec_to_dict` wrote. Raises KeyError, TypeError, ValueError or IndexError for anything else."""
    if unknown := sorted(fields.keys() - _FIELDS):
        raise ValueError(f"unknown field {unknown[0]}")
    pods, expected = fields["typical_pods"], fields.get("expects")
    return ObservationSpec(
        lookahead=int(fields["lookahead"]),
        lifetimes=bool(fields["lifetimes"]),
        racks=bool(fields["racks"]),
        fragmentation=None if pods is None else FragmentMeter(_pods_from_dict(pods)),
        lifetime_model=None if expected is None else _model_from_dict(expected),
        costs=bool(fields.get("costs", False)),
    )


def _model_from_dict(fields: Mapping[str, Any]) -> LifetimeModel:
    """Return the model of how long pods run. Raises ValueError for a band of age that is none."""
    bands = len(EDGES_S) - 1
    for each in fields.get("classes", ()):
        for band, _, _ in each["bands"]:
            if int(band) != band or not 0 <= band < bands:
                raise ValueError(f"band {band} of {bands}")
    return model_from_dict(fields)


def _pods_to_dict(pods: TypicalPods) -> dict[str, Any]:
    kinds = [
        [kind.cpu_milli, kind.gpu_milli, kind.gpu_count, sorted(kind.models), kind.frequency] for kind in pods.kinds
    ]
    return {"population": pods.population, "kinds": kinds}


def _pods_from_dict(fields: Mapping[str, Any]) -> TypicalPods:
    kinds = tuple(
        TypicalPod(int(cpu), int(milli), int(count), frozenset(map(str, models)), int(frequency))
        for cpu, milli, count, models, frequency in fields["kinds"]
    )
    return TypicalPods(kinds, int(fields["population"]))
