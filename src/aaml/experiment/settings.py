"""Settings of a training and of its agent as a person writes them: NAME=VALUE, each value read by the type it has."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from aaml.errors import bad_value
from aaml.experiment.train import TrainConfig
from aaml.learning.config import AgentConfig


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Read NAME=VALUE for settings of a training (`TrainConfig`) or its agent (`AgentConfig`, where a name is both)."""
    known = setting_types(tuple(field.name for field in dataclasses.fields(TrainConfig) if field.name != "overrides"))
    return {name: read_value(name, text, known[name]) for name, text in read_pairs("set", texts, known, "VALUE")}


def with_settings(base: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Return a training with some settings of its own or of its agent changed."""
    agent = {field.name for field in dataclasses.fields(AgentConfig)}
    overrides = {name: value for name, value in values.items() if name in agent}
    others = {name: value for name, value in values.items() if name not in agent}
    return dataclasses.replace(base, **others, overrides={**base.overrides, **overrides})


def read_value(name: str, text: str, kind: Any) -> Any:
    """Read a setting's value by the type it has. Raises `UserError` when the text is no such value."""
    kind = _plain(kind)
    if get_origin(kind) is tuple:
        return tuple(read_value(name, part, get_args(kind)[0]) for part in text.split(",") if part.strip())
    text = text.strip()
    if kind is bool:
        if text.lower() not in {"true", "false"}:
            raise bad_value(name, text, "true or false")
        return text.lower() == "true"
    if kind not in {int, float}:
        return text
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise bad_value(name, text, "a whole number" if kind is int else "a number")
    return number


def _plain(kind: Any) -> Any:
    """Return the type without None."""
    if get_origin(kind) in {Union, UnionType}:
        kind = next(part for part in get_args(kind) if part is not NoneType)
    return kind


def setting_types(training: Sequence[str]) -> dict[str, Any]:
    """Return the types of the agent's settings, and of these of the training."""
    hints = get_type_hints(TrainConfig)
    return {name: hints[name] for name in training} | get_type_hints(AgentConfig)


def read_pairs(field: str, texts: Sequence[str], known: Mapping[str, Any], form: str) -> list[tuple[str, str]]:
    """Split NAME=VALUE. Raises `UserError` for a name that is not known or comes twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise bad_value(field, text, f"NAME={form}")
        if name not in known:
            raise bad_value(field, name, f"one of {', '.join(sorted(known))}")
        if name in pairs:
            raise bad_value(field, text, f"each setting once, and {name} is there already")
        pairs[name] = value
    return list(pairs.items())
