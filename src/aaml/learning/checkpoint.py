"""Model files: written whole or not at all, read without unpickling code, refused with one line when they don't fit.

A file holds a format tag, a version, a header of plain values (kind of agent, network with the names of its features,
what the agent looks at, settings, counters) and tensors (weights, and the optimiser's state so that training goes on).
"""

import io
import pickle
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aaml.errors import UserError
from aaml.files import write_bytes
from aaml.learning.networks import NetworkSpec
from aaml.policies.spec_file import spec_from_dict, spec_to_dict
from aaml.scheduling.costs import COST_FEATURES
from aaml.scheduling.observation import ObservationSpec

FORMAT = "aaml-model"
VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds: the kind of agent, its network's description, what it looks at, plain `fields`, and states."""

    kind: str
    spec: NetworkSpec
    observation_spec: ObservationSpec
    fields: Mapping[str, Any]
    states: Mapping[str, Any]


def write_atomically(path: Path, content: Any) -> None:
    """Write `content` with torch.save next to `path`, then rename it; raises UserError when that's not possible.

    It is made in memory: on a disk that is full torch raises errors of its own, as it ends the archive.
    """
    write_bytes(path, archived(content), field="model")


def archived(content: Any) -> bytes:
    """Return what torch.save writes of `content`."""
    archive = io.BytesIO()
    torch.save(content, archive)
    return archive.getvalue()


def opened(archive: bytes) -> dict[str, Any]:
    """Return what `archived` was given."""
    return dict(torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True))


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a model file."""
    write_atomically(
        path,
        {
            "format": FORMAT,
            "version": VERSION,
            "kind": checkpoint.kind,
            "network": checkpoint.spec.to_dict(),
            "observation": spec_to_dict(checkpoint.observation_spec),
            "fields": dict(checkpoint.fields),
            "states": dict(checkpoint.states),
        },
    )


def read_tensors(path: Path) -> Any:
    """Read what `write_atomically` wrote; raises UserError for a file that is missing or is no such file."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"model {path}: there is no such file") from None
    except OSError as error:
        raise UserError(f"model {path}: cannot be read: {error.strerror or error}") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise UserError(f"model {path}: is not a model file of this program (corrupt, or made by another)") from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a model file; raises UserError when it is missing, corrupt, foreign, or made for other features."""
    content = read_tensors(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"model {path}: is not a model file of this program (no {FORMAT!r} tag)")
    if content.get("version") != VERSION:
        raise UserError(f"model {path}: version {content.get('version')!r} is not supported; expected {VERSION}")
    try:
        spec = NetworkSpec.from_dict(content["network"])
        seen = content.get("observation")  # a file without it knows a lookahead alone
        observation_spec = ObservationSpec(lookahead=spec.lookahead) if seen is None else spec_from_dict(seen)
        checkpoint = Checkpoint(content["kind"], spec, observation_spec, content["fields"], content["states"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"model {path}: its header is damaged ({error})") from error
    current = NetworkSpec()
    for name in ("node_features", "pair_features", "pod_features", "upcoming_features"):
        theirs, ours = getattr(spec, name), getattr(current, name)
        if name == "node_features":
            ours = (*ours, *COST_FEATURES)
        if name in ("node_features", "pair_features"):
            ours = ours[: len(theirs)]  # a model that knows fewer features sees those
        if theirs != ours:
            changed = sorted(set(theirs) ^ set(ours)) or ["their order"]
            raise UserError(f"model {path}: {name} differ from this version's: {', '.join(changed)}; train it again")
    return checkpoint


def check_fits(path: Path, checkpoint: Checkpoint, kind: str, spec: NetworkSpec) -> None:
    """Raise `UserError` unless the file holds an agent of this kind and a network of this description."""
    if (checkpoint.kind, checkpoint.spec) != (kind, spec):
        theirs = f"{checkpoint.kind} with {_words(checkpoint.spec)}"
        raise UserError(f"model {path}: is a {theirs}; expected a {kind} with {_words(spec)}")


def _words(spec: NetworkSpec) -> str:
    return f"{spec.encoder} encoder, {spec.head} head, width {spec.width}, lookahead {spec.lookahead}"


def part_of(path: Path, name: str, names: Collection[str]) -> Path:
    """Return the file `name` of a model, given any of its files. Raises UserError for a file whose name says none."""
    prefix = next((each for each in names if path.name.startswith(f"{each}_")), None)
    if len(names) == 1:
        return path
    if prefix is None:
        raise UserError(f"model {path}: the file's name must begin with {' or '.join(f'{each}_' for each in names)}")
    return path.with_name(f"{name}_{path.name.removeprefix(f'{prefix}_')}")


def restore(path: Path, target: Any, state: Any) -> None:
    """Load a state into a module or an optimiser; raises UserError when the shapes do not fit."""
    try:
        target.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"model {path}: its weights do not fit its header ({reason})") from error
