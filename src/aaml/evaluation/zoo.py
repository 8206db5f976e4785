"""The model zoo: weights that ship with the package, by name. `models/zoo.toml` lists them."""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

from aaml.errors import UserError

SUFFIXES = (".pth", ".json", ".npz", ".formula")
"""Of a model's file."""


@dataclass(frozen=True)
class ShippedModel:
    """A model that ships: its name, where its weights are, what it was trained on and is for, and what made it."""

    name: str
    path: Path
    agent: str
    task: str
    use: str
    command: str
    trained: str

    @property
    def sha256(self) -> str:
        """The SHA-256 of the weights, in hexadecimal."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


def models_folder() -> Path:
    """Return the folder of the weights that ship: in a package that of the package, in a checkout `models`."""
    package = Path(__file__).parents[1]
    for folder in (package / "models", package.parents[1] / "models"):
        if (folder / "zoo.toml").is_file():
            return folder
    raise UserError("models: the weights that ship are missing; install aaml again, or take them from the repository")


@cache
def zoo() -> Mapping[str, ShippedModel]:
    """Return the models that ship, by name."""
    folder = models_folder()
    listed = tomllib.loads((folder / "zoo.toml").read_text(encoding="utf-8"))
    return {name: ShippedModel(name, folder / entry.pop("file"), **entry) for name, entry in listed.items()}


def model_file(path: Path) -> Path:
    """Return the model file that a person means by a path.

    That is the file itself; the model of the training in this folder (the actor's of two); or, where there is no such
    path, the shipped weights of this name.
    """
    if not path.exists():
        shipped = zoo().get(str(path))
        return path if shipped is None else shipped.path
    models = path / "model"
    return next(chain(*(sorted(models.glob(f"*{suffix}")) for suffix in SUFFIXES)), path)


def with_critic(path: Path) -> list[Path]:
    """Return a model's file, and of an actor its critic's beside it (or the other way round)."""
    kind, _, rest = path.name.partition("_")
    other = path.with_name(f"{({'Actor': 'Critic', 'Critic': 'Actor'}).get(kind, kind)}_{rest}")
    return sorted(each for each in {path, other} if each.is_file())
