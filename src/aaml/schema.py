"""The one way to read files that a person or a run hands over: text, plain values, a type that says what is taken.

A type is a `msgspec.Struct` that forbids unknown fields. What does not fit it is told in one line: the file, the field,
the value, what is accepted. A field that is null counts as not given, as in Kubernetes.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import inspect as types

from aaml.errors import UserError, bad_value, did_you_mean, shown

T = TypeVar("T")
NULL_IS = "null is"
"""Of a type's `Meta.extra`: the value that null stands for in a mapping of such values."""
_LARGEST = 2**63  # whole numbers lie below, as in Kubernetes and in the arrays that they end in
_MOST_DIGITS = 1_000  # of a number, which is beyond any of ours long before
_LONG = re.compile(r"([^'`]{200})[^'`]+")  # what msgspec repeats of a value or a name
_BETWEEN = " \t\r\n"  # values of JSON
_SPACE = re.compile(f"[{_BETWEEN}]*")
_STEP = re.compile(r"\[(?P<place>\d+|\.\.\.)\]|\.?(?P<name>[^.\[]+)")


def read_bytes(path: Path, field: str, accepted: str = "a file that can be read") -> bytes:
    """Return a file's content. Raises `UserError` where it cannot be read; `field` is what the message calls it."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        raise bad_value(field, str(path), f"{accepted} ({getattr(error, 'strerror', None) or error})") from error


def of_json(text: bytes, where: str, *, any_number: bool = False) -> Any:
    """Return the plain values of a JSON text in UTF-8 in which a key stands once.

    Numbers are finite and whole ones have 64 bits, unless `any_number` may stand there. Raises `UserError`.
    """
    try:
        content = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not JSON: {_line(error)}") from error
    if not any_number:
        check_numbers(content, where)
    return content


def json_stream(text: str) -> list[Any]:
    """Return the values of a text of one JSON after the other, in which a key stands once. Raises `ValueError`."""
    decoder, found, text, at = json.JSONDecoder(object_pairs_hook=_once), list[Any](), text.strip(_BETWEEN), 0
    while at < len(text):
        value, end = decoder.raw_decode(text, at)
        found.append(value)
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
    return found


def of_yaml(text: bytes, where: str) -> list[Any]:
    """Return the documents of a YAML text in UTF-8 in which a key stands once in a mapping. Raises `UserError`."""
    try:
        documents = list(yaml.load_all(text.decode("utf-8-sig"), Loader=_OnceLoader))
        check_numbers(documents, where)  # which goes on for ever in an anchor that holds itself
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{where}: is not YAML: {_line(error)}") from error
    return documents


def convert(content: Any, kind: type[T], where: str) -> T:
    """Return plain values as a type. Raises `UserError` that names the field in `where`, its value, what is taken."""
    try:
        return msgspec.convert(_given(content, _info(kind)), kind)
    except msgspec.ValidationError as error:
        said, _, at = str(error).partition(" - at ")
        steps = _steps(at)
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")
        more = _explained(said, content, kind, steps)
        said = _LONG.sub(r"\1...", said.replace("Object contains ", "").replace("Object missing", "missing"))
        raise UserError(f"{where}: {place}{': ' if place else ''}{said}{more}") from error


# ---- plain values ----------------------------------------------------------------------------------------------------


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} stands twice")
    return found


_MERGE = "tag:yaml.org,2002:merge"


class _OnceLoader(yaml.SafeLoader):
    """YAML in which a key may stand once in a mapping, as Kubernetes' strict decoders have it."""


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    merged: dict[Any, Any] | None = None
    for key_node, value_node in node.value:
        if key_node.tag == _MERGE and merged is None:
            merged = _merged(loader, value_node)
            continue
        key = "<<" if key_node.tag == _MERGE else loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, "a key is no text", key_node.start_mark)
        if isinstance(key, bool | int | float):  # names of fields and labels are text, as in JSON
            key = str(key).lower()
        if key in found or key_node.tag == _MERGE:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
        found[key] = loader.construct_object(value_node, deep=True)
    return {**merged, **found} if merged else found


def _merged(loader: yaml.SafeLoader, node: yaml.Node) -> dict[Any, Any]:
    """Return what a merge key (`<<: *anchor`, or a list of anchors) stands for: an earlier mapping counts more."""
    found: dict[Any, Any] = {}
    for each in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        if not isinstance(each, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(
                None, None, "<< stands for a mapping, or for several", each.start_mark
            )
        found = {**loader.construct_object(each, deep=True), **found}
    return found


class FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same for files of many objects, parsed by libyaml where that is there."""


_NUMBER = re.compile(
    r"[-+]?(0[bB]_*[01][01_]*|0[oO]_*[0-7][0-7_]*|0[xX]_*[0-9a-fA-F][0-9a-fA-F_]*"
    r"|(\._*[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?_*[0-9][0-9_]*)?)"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_SWITCHES = {
    **{word: True for each in ("y", "yes", "true", "on") for word in (each, each.title(), each.upper())},
    **{word: False for each in ("n", "no", "false", "off") for word in (each, each.title(), each.upper())},
}


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    """Return a number; the text where it is larger than any. One without a fraction is whole, as in JSON."""
    text = loader.construct_scalar(node)
    plain = text.replace("_", "").lower()
    if len(plain) > _MOST_DIGITS:
        raise yaml.constructor.ConstructorError(None, None, f"a number of {len(plain)} digits", node.start_mark)
    if plain.lstrip("-+").startswith(("0b", "0o", "0x")):
        return int(plain, 0)
    if re.fullmatch(r"[-+]?0[0-7]+", plain):
        return int(plain, 8)
    if re.fullmatch(r"[-+]?[0-9]+", plain):
        return int(plain)
    if plain.endswith((".inf", ".nan")):
        return float(plain.replace(".", ""))
    value = float(plain)
    return text if math.isinf(value) else int(value) if value.is_integer() else value


def _binary(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    """Return the text that base64 stands for, as kubectl has it: what is no UTF-8 has signs in its place."""
    try:
        content = base64.b64decode(re.sub("[\r\n]", "", loader.construct_scalar(node)), validate=True)
    except ValueError:
        raise yaml.constructor.ConstructorError(None, None, "!!binary: no base64", node.start_mark) from None
    return content.decode(errors="replace")


def _switch(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    text = loader.construct_scalar(node)
    return _SWITCHES.get(text, text)


for _loader in (_OnceLoader, FastLoader):
    _loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
    _loader.yaml_implicit_resolvers = {}  # what plain text is, as Kubernetes has it: no dates, and 1:30 is no number
    for _tag, _pattern, _first in (
        ("null", re.compile("~|null|Null|NULL|"), ["~", "n", "N", ""]),
        ("bool", re.compile("|".join(_SWITCHES)), list("yYnNtTfFoO")),
        ("float", _NUMBER, list("-+.0123456789")),
        ("merge", re.compile("<<"), ["<"]),
    ):
        _loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern.pattern})$"), _first)
    _loader.add_constructor("tag:yaml.org,2002:float", _number)
    _loader.add_constructor("tag:yaml.org,2002:bool", _switch)
    _loader.add_constructor("tag:yaml.org,2002:binary", _binary)


def check_numbers(value: Any, where: str, any_size: Collection[str] = ()) -> None:
    """Raise `UserError` for a number that is none of ours; `any_size` are fields within which it may be any."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if key not in any_size:
                check_numbers(each, where, any_size)
    elif isinstance(value, float) and not math.isfinite(value):
        raise bad_value(where, value, "finite numbers")
    elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise UserError(f"{where}: {shown(value)} is not accepted; expected whole numbers of 64 bits")


_info: Callable[[Any], types.Type] = cache(types.type_info)


def _given(value: Any, kind: types.Type) -> Any:
    """Return plain values without the fields of a type that are null; what is no field of it stays, to be told.

    Text that is null in a mapping, such as a label's, is empty; of other values there `NULL_IS` may say what null is.
    """
    match kind:
        case types.StructType() if isinstance(value, dict):
            inner = {field.encode_name: field.type for field in kind.fields}
            return {
                key: _given(each, inner[key]) if key in inner else each
                for key, each in value.items()
                if each is not None or key not in inner
            }
        case types.ListType() | types.VarTupleType() if isinstance(value, list):
            return [_given(each, kind.item_type) for each in value]
        case types.DictType() if isinstance(value, dict) and not isinstance(kind.value_type, types.AnyType):
            null = _null(kind.value_type)
            there = {key: null if each is None else each for key, each in value.items()}
            return {key: _given(each, kind.value_type) for key, each in there.items() if each is not None}
        case types.UnionType():
            return _given(value, rest[0]) if len(rest := _rest(kind)) == 1 else value
        case _:
            return value


def _null(kind: types.Type) -> Any:
    """Return what null stands for among the values of a mapping, None where it is left out."""
    if isinstance(kind, types.Metadata):
        return (kind.extra or {}).get(NULL_IS)
    return "" if isinstance(kind, types.StrType) else None


def _rest(kind: types.UnionType) -> list[types.Type]:
    """Return what a union is besides null."""
    return [each for each in kind.types if not isinstance(each, types.NoneType)]


def without_nulls(value: Any) -> Any:
    """Return plain values without what is null in a mapping: a document that is to be changed and written."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


# ---- what a message says ---------------------------------------------------------------------------------------------


def _line(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())


def _steps(at: str) -> list[int | str]:
    """Return the way to what msgspec names: "`$.a[0].b`"."""
    way = at.rpartition("`$")[2].rstrip("`")
    found = [match["place"] or match["name"] for match in _STEP.finditer(way)]
    return [int(step) if step.isdigit() else step for step in found if step != "..."]


def _explained(said: str, content: Any, kind: Any, steps: Sequence[int | str]) -> str:
    """Return what a message says more: the value, the names that are known, the values that are taken."""
    if unknown := re.match(r"Object contains unknown field `(.*)`", said):
        there = _at(_info(kind), steps)
        names = [field.encode_name for field in there.fields] if isinstance(there, types.StructType) else []
        meant = did_you_mean(unknown[1], names)
        return f"{f'{meant} Expected' if meant else '; expected'} one of {', '.join(names)}" if names else ""
    if said.startswith("Object missing"):
        return ""
    if said.startswith("Invalid enum value"):
        there = _at(_info(kind), steps)
        values = list(map(str, there.values)) if isinstance(there, types.LiteralType) else []
        return f"; expected one of {', '.join(values)}" if values else ""
    value = content
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return ""
    return f" ({shown(value)})" if not isinstance(value, dict | list) else ""


def _at(kind: types.Type, steps: Sequence[int | str]) -> types.Type | None:
    """Return the type at the end of a way, None where there is no one type there."""
    match kind:
        case types.UnionType():
            return _at(rest[0], steps) if len(rest := _rest(kind)) == 1 else None
        case types.ListType() | types.VarTupleType():
            return _at(kind.item_type, steps[1:]) if steps else kind
        case types.DictType():
            return _at(kind.value_type, steps)
        case types.StructType() if steps:
            inner = {field.encode_name: field.type for field in kind.fields}.get(str(steps[0]))
            return None if inner is None else _at(inner, steps[1:])
        case _:
            return None if steps else kind


def of_kind(documents: Sequence[Any], versions: Mapping[str, str], where: str) -> Mapping[str, Any] | None:
    """Return the document of one of these kinds (kind -> apiVersion), None where there is none.

    Raises `UserError` where there are several: which one is meant nobody knows.
    """
    found = [
        each
        for each in documents
        if isinstance(each, dict)
        and (each.get("kind"), each.get("apiVersion")) in [*versions.items()]  # neither need be hashable
    ]
    if len(found) > 1:
        names = ", ".join(shown(_name(each)) for each in found)
        raise UserError(f"{where}: holds {len(found)} of {' or '.join(versions)} ({names}); expected one")
    return found[0] if found else None


def _name(document: Mapping[str, Any]) -> Any:
    metadata = document.get("metadata")
    return metadata.get("name", "") if isinstance(metadata, dict) else ""
