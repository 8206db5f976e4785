"""Objects from the benchmark's templates: YAML with the few actions of Go's text/template that they use."""

import copy
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from aaml.errors import UserError

Manifest = dict[str, Any]
_ACTION = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_VERSION = re.compile(r"""\bapiVersion["']?:\s*["']?([^\s,"'}]+)""")
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "AddInt": lambda a, b: a + b,
    "SubtractInt": lambda a, b: a - b,
    "MultiplyInt": lambda a, b: a * b,
    "DivideInt": lambda a, b: int(a / b),
    "Mod": lambda a, b: a % b,
}


def read_object(path: Path, index: int = 0, count: int = 1) -> Manifest:
    """Return object `index` of `count` as a template says it. Raises `UserError` for a template that cannot be read."""
    text = _text(path)
    if "{{" not in text:
        return copy.deepcopy(_parsed(path))
    return _as_go_reads(_yaml(path, render(text, index, count)))


def api_version(path: Path) -> str:
    """Return the version of the API that a template's object is of, "" where it says none."""
    found = _VERSION.search(_text(path))
    return found[1] if found else ""


def render(text: str, index: int, count: int) -> str:
    """Return a template's text for object `index` of `count`. Raises `UserError` for an action that is not known."""
    return _ACTION.sub(lambda action: str(_value(action[1], index, count)), text)


def _value(action: str, index: int, count: int) -> int:
    variables = {".Index": index, ".Count": count}
    match action.split():
        case [name] if name in variables:
            return variables[name]
        case [name, *arguments] if name in _FUNCTIONS and len(arguments) == 2:
            first, second = (variables[each] if each in variables else int(each) for each in arguments)
            return _FUNCTIONS[name](first, second)
    raise UserError(
        f"template: {{{{{action}}}}} is not known; expected .Index, .Count or one of {', '.join(_FUNCTIONS)}"
    )


@lru_cache(maxsize=256)
def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"template {path}: cannot be read: {error.strerror}") from error


@lru_cache(maxsize=256)
def _parsed(path: Path) -> Manifest:
    return _as_go_reads(_yaml(path, _text(path)))


def _yaml(path: Path, text: str) -> Manifest:
    try:
        content = yaml.load(text, yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise UserError(f"template {path}: is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"template {path}: expected an object")
    return content


def _as_go_reads(manifest: Manifest) -> Manifest:
    """Go takes the name of a field in any case, the API server only as it is: one template has `NodeTaintsPolicy`."""
    spreads = (manifest.get("spec") or {}).get("topologySpreadConstraints") or []
    for spread in spreads:
        for name in list(spread):
            spread[name[0].lower() + name[1:]] = spread.pop(name)
    return manifest
