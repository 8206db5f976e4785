"""The Gymnasium environment `aaml/Cluster-v0`, registered from `import aaml` on.

Gymnasium finds environments in its registry alone. It takes two seconds to import, which `import aaml` does not: the
environment is registered once somebody imports Gymnasium, and at once where somebody has.
"""

import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

ENVIRONMENT_ID = "aaml/Cluster-v0"
_GYMNASIUM = "gymnasium"


def register() -> None:
    """Register the environment, now or as soon as Gymnasium is imported."""
    if (gymnasium := sys.modules.get(_GYMNASIUM)) is not None:
        _register_in(gymnasium)
    elif not any(isinstance(finder, _RegistersLater) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RegistersLater())


def _register_in(gymnasium: ModuleType) -> None:
    if ENVIRONMENT_ID not in gymnasium.registry:
        gymnasium.register(
            ENVIRONMENT_ID,
            entry_point="aaml.sim.env:ClusterEnv",
            vector_entry_point="aaml.sim.vector_env:ClusterVectorEnv",
        )


class _RegistersLater:
    """Finds Gymnasium as it is found without this, once, and registers the environment in it."""

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> "ModuleSpec | None":
        """Return where Gymnasium is; None for all else."""
        if fullname != _GYMNASIUM:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or (loader := spec.loader) is None:
            return spec
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            _register_in(module)

        loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
