"""What is not always there: libraries that an extra of the package brings, and modules that take long to load.

A module imports what it needs at its top. Where that costs a second that only some callers need (torch, a report's
figures), or an extra that only some have, it names the module with `lazily` instead:

    if TYPE_CHECKING:
        from aaml.learning import agents
    else:
        agents = lazily("aaml.learning.agents")
"""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from aaml.errors import UserError

EXTRAS: Mapping[str, str] = {
    "bokeh": "lab",
    "ipywidgets": "notebooks",
    "jupyterlab": "notebooks",
    "kubernetes": "live",
    "ortools": "solver",
    "prometheus_client": "live",
    "ray": "ray",
    "sb3_contrib": "sb3",
    "stable_baselines3": "sb3",
    "starlette": "live",
    "supervisor": "container",
    "textual": "live",
    "uvicorn": "live",
}
"""Top-level module -> the extra to install for it."""


class MissingExtraError(UserError):
    """A library is not installed that an extra brings; the message is the line that says how to install it."""


def load(module: str) -> ModuleType:
    """Import a module. Raises `MissingExtraError` where that needs an extra which is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (needed := missing_extra(error)) is None:
            raise
        raise MissingExtraError(needed) from error


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return one line that says how to install what is missing; None where no extra of ours brings it."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    return None if extra is None else f"{module} is not installed; run: pip install 'aaml[{extra}]'"


class _Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(load(self.__name__), name)


def lazily(module: str) -> Any:
    """Return a module that is imported when something of it is first used; see `load` for what that raises."""
    return _Lazy(module)
