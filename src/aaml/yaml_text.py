"""YAML as Kubernetes reads it back: text that it would take for a number or for true or false is quoted.

Kubernetes' reader takes more for such than PyYAML does: `y` and `n`, and numbers like 12e4 and 0o17.
"""

import re
from collections.abc import Iterable
from typing import Any

import yaml


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes plain values."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN"))
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?$|^[-+]?\.(inf|nan)$", re.IGNORECASE),
    list("-+.0123456789"),
)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?0[oObBxX][0-9a-fA-F_]+$"), list("-+0"))


def yaml_text(*documents: Any) -> str:
    """Return documents as YAML, their keys in the order given; several are a stream."""
    return _dumped(documents, stream=len(documents) > 1)


def yaml_stream(documents: Iterable[Any]) -> str:
    """Return documents as a stream of YAML, in which each begins with `---`."""
    return _dumped(documents, stream=True)


def _dumped(documents: Iterable[Any], *, stream: bool) -> str:
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, explicit_start=stream)
    return text
