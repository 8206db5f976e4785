"""Which extra of the package brings a library that a command needs and the core does not."""

from collections.abc import Mapping

EXTRAS: Mapping[str, str] = {
    "bokeh": "lab",
    "ipywidgets": "notebooks",
    "jupyterlab": "notebooks",
    "kubernetes": "live",
    "ortools": "solver",
    "prometheus_client": "live",
    "ray": "ray",
    "starlette": "live",
    "supervisor": "container",
    "textual": "live",
    "uvicorn": "live",
}
"""Top-level module -> the extra to install for it."""


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return one line that says how to install what is missing; None where no extra of ours brings it."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    return None if extra is None else f"{module} is not installed; run: pip install 'aaml[{extra}]'"
