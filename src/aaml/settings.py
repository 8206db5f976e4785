"""What a setting is: one field of a frozen dataclass, from which everything else that is said about it comes.

The field is the flag, the key of a settings file, the entry in a model's header and the row of a table: its annotation
says which values are taken (`steps: Count`), its default what holds where nobody says otherwise, and the string below
it what it is for. Settings may have parts, which are settings too: people write the names of all parts side by side.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta
from msgspec import inspect as types

from aaml.errors import bad_value

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Share = Annotated[float, Meta(gt=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Percent = Annotated[int, Meta(ge=0, le=100)]
RemainingLifetimes = Literal["nothing", "learned", "known"]
"""What a policy knows of pods' remaining lifetimes: nothing, an estimate from the past, or the truth."""
SettingsFile = Annotated[Path | None, "holds settings"]
"""Names a YAML file with other settings of the same command."""

_Kind = TypeVar("_Kind")
if TYPE_CHECKING:
    Unset = Annotated[_Kind, "may be left unset"]
else:

    class Unset:
        """The type of a setting that may be left unset: None until a default is chosen by what it is used for."""

        def __class_getitem__(cls, kind: Any) -> Any:
            return kind | None


UNSET: Any = None
"""The default of a setting that is left unset."""
NONE = "none"
"""How None is written."""
_Settings = TypeVar("_Settings", bound="Settings")


class Settings:
    """Base of the frozen dataclasses whose fields are settings.

    Raises `UserError` for a value that its field does not take; what it does take has the field's type afterwards.
    """

    other_names: ClassVar[Mapping[str, str]] = {}
    """other names of settings, which people and files may use too -> the setting"""

    without_repeats: ClassVar[frozenset[str]] = frozenset({"nodes", "metrics", "plugins", "traces"})
    """settings of several values whose episodes or comparisons would count twice where a value stands twice"""

    said: ClassVar[frozenset[str]] = frozenset()
    """of those that a command line stands for: the settings that it or its file names, whatever their values"""

    @classmethod
    def usual(cls, name: str) -> str:  # noqa: ARG003
        """Return in words what holds for a setting that is left unset; empty where it is none."""
        return ""

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, kind in _kinds(cls).items():
            value = take(name, getattr(self, name), kind)
            if name in self.without_repeats and isinstance(value, tuple) and len(set(value)) < len(value):
                raise bad_value(name, list(value), "each once")
            object.__setattr__(self, name, value)


class Named(Settings):
    """Settings of one of several kinds, chosen by a name that stands for some of their values: `--agent gnn`."""

    implied: ClassVar[tuple[str, ...]] = ()
    """the fields that the name says, which are therefore no settings of their own"""

    @classmethod
    def names(cls) -> Mapping[str, "Named"]:
        """Return every name with what it stands for."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name that stands for these settings, whatever their other values are."""
        raise NotImplementedError


@dataclass(frozen=True)
class Row:
    """One setting: its name, type, value (or default), what it is for, and what holds where it is left unset."""

    name: str
    kind: Any
    value: Any
    help: str
    usual: str = ""

    @property
    def accepted(self) -> str:
        """The values that are taken, in words."""
        return _accepted(self.kind)

    @property
    def takes_none(self) -> bool:
        """Whether `none` is taken; where text or a path is, that is one of these."""
        return not _is_part(self.kind) and _takes_none(self.kind)

    @property
    def range(self) -> str:
        """The range of a number in words, empty where there is none."""
        return "".join(map(_range, self._numbers))

    @property
    def is_number(self) -> bool:
        """Whether the values are numbers, which lie between others."""
        return bool(self._numbers)

    @property
    def _numbers(self) -> list[types.IntType | types.FloatType]:
        infos = [] if _is_part(self.kind) else [types.type_info(self.kind)]
        parts = [part for info in infos for part in (info.types if isinstance(info, types.UnionType) else (info,))]
        return [part for part in parts if isinstance(part, types.IntType | types.FloatType)]

    @property
    def named(self) -> bool:
        """Whether it is a part of one of several kinds, which is chosen by a name."""
        return _is_part(self.kind) and "names" in vars(self.kind)


def rows(settings: Settings | type[Settings]) -> list[Row]:
    """Return a row for each setting, those of the parts included; a class has the defaults as values."""
    found: list[Row] = []
    for row in fields(settings):
        part = row.value
        if row.named:
            found.append(Row(row.name, row.kind, part.name, row.help))
        found += rows(part) if isinstance(part, Settings) else [row]
    return found


def fields(settings: Settings | type[Settings]) -> list[Row]:
    """Return a row for each field but those that a name stands for; a part is one field.

    A class's field that has to be given has `dataclasses.MISSING` as its value.
    """
    cls: Any = settings if isinstance(settings, type) else type(settings)
    helps = _helps(cls)
    now = {f.name: f.default if settings is cls else getattr(settings, f.name) for f in dataclasses.fields(cls)}
    return [
        Row(name, kind, now[name], helps.get(name, ""), cls.usual(name))
        for name, kind in _kinds(cls).items()
        if name not in getattr(cls, "implied", ())
    ]


def plain(settings: Settings) -> dict[str, Any]:
    """Return the values by name as JSON and YAML hold them, those of the parts beside the others."""
    return {row.name: _plain(row.value) for row in rows(settings)}


def changed(settings: _Settings, values: Mapping[str, Any]) -> _Settings:
    """Return settings with other values, by name wherever among the parts it is; text is read by the setting's type.

    A setting's other name is taken, too. Raises `UserError` for a name
    that is none of theirs, and for a value that is not taken.
    """
    others = other_names(settings)
    left = {others.get(name, name): value for name, value in values.items()}
    result = _changed(settings, left)
    for name in left.keys() - {others[name] for name in values.keys() & others.keys()}:
        raise bad_value("setting", name, f"one of {', '.join(row.name for row in rows(result))}")
    return result


def other_names(settings: Any) -> dict[str, str]:
    """Return the other names of settings and their parts -> the setting, without those that are a setting's own."""
    found: dict[str, str] = {**getattr(settings, "other_names", {})}
    names = set()
    if isinstance(settings, Settings):
        for row in fields(settings):
            found |= other_names(row.value) if isinstance(row.value, Settings) else {}
        names = {row.name for row in rows(settings)}
    return {name: now for name, now in found.items() if name not in names}


def take(name: str, value: Any, kind: Any, *, text: bool = False) -> Any:
    """Return a value as the type of the setting `name` has it; with `text`, numbers and such may be written as text.

    Raises `UserError` for what is no such value.
    """
    if _is_part(kind):
        if isinstance(value, kind):
            return value
        if issubclass(kind, Named) and isinstance(value, str) and value in kind.names():
            return kind.names()[value]
        raise bad_value(name, value, _accepted(kind))
    several = get_args(kind)[1:] == (...,)
    try:
        taken = msgspec.convert(_given(value, kind, several), kind, strict=not text, dec_hook=_path)
    except msgspec.ValidationError:
        raise bad_value(name, _first_wrong(value, kind, text) if several else value, _accepted(kind)) from None
    if any(isinstance(each, float) and not math.isfinite(each) for each in (taken if several else (taken,))):
        raise bad_value(name, value, _accepted(kind))
    return taken


def _first_wrong(values: Any, kind: Any, text: bool) -> Any:
    """Return the first of several values that is none of `kind`, or all of them where they are no list."""
    if not isinstance(values, list | tuple):
        return values
    for each in values:
        try:
            msgspec.convert([each], kind, strict=not text, dec_hook=_path)
        except msgspec.ValidationError:
            return each
    return values


def _given(value: Any, kind: Any, several: bool) -> Any:
    """Return a value in the form that `kind` needs, where another is as clear."""
    if type(value).__module__ == "numpy":
        return value.item()
    if several and isinstance(value, Mapping):  # NAME: VALUE in a file is NAME=VALUE in a flag
        return [f"{name}={_text(each)}" for name, each in value.items()]
    if several and isinstance(value, str | int | float):
        return [value]
    if kind is str and isinstance(value, int | float):
        return str(value)  # a YAML file says 1 where a flag's text says "1"
    return None if value == NONE and not several and _takes_none(kind) else value


def _takes_none(kind: Any) -> bool:
    return any(isinstance(each, types.NoneType) for each in _parts(kind))


def _parts(kind: Any) -> Sequence[types.Type]:
    """Return the kinds of which a value may be any; none where text or a path is one of them."""
    info = types.type_info(kind)
    parts = info.types if isinstance(info, types.UnionType) else (info,)
    return () if any(isinstance(each, types.StrType | types.CustomType) for each in parts) else parts


def _text(value: object) -> str:
    """Return what a flag would say for a value of a file."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)


def _changed(settings: _Settings, left: dict[str, Any]) -> _Settings:
    """Return settings with the values of `left` that are theirs, which are taken out of it."""
    values: dict[str, Any] = {}
    for row in fields(settings):
        value = row.value
        if row.named and row.name in left:
            value = _renamed(value, take(row.name, left.pop(row.name), row.kind))
        if isinstance(value, Settings):
            values[row.name] = _changed(value, left)
        elif row.name in left:
            values[row.name] = take(row.name, left.pop(row.name), row.kind, text=True)
    return dataclasses.replace(settings, **values)  # type: ignore[type-var]


def _renamed(old: Named, new: Named) -> Named:
    """Return what another name stands for, with all that was said otherwise about the old one as far as it has it."""
    if old.name == new.name:
        return old
    usual = old.names()[old.name]
    known = {row.name for row in fields(new)}
    said = {row.name: row.value for row in fields(old) if row.name in known and row.value != getattr(usual, row.name)}
    return dataclasses.replace(new, **said)  # type: ignore[type-var]


@functools.cache
def _kinds(cls: Any) -> dict[str, Any]:
    """Return the types of a class's fields, with what their annotations say."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@functools.cache
def _helps(cls: Any) -> dict[str, str]:
    """Return the strings below a class's fields, and below those of the classes that it builds on."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not hasattr(base, "__dataclass_fields__"):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for field, below in itertools.pairwise(getattr(tree, "body", ())):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Settings)


def _accepted(kind: Any) -> str:
    if _is_part(kind):
        return f"one of {', '.join(kind.names())}" if issubclass(kind, Named) else f"a {kind.__name__}"
    return _words(types.type_info(kind))


def _words(kind: types.Type) -> str:  # noqa: PLR0911
    match kind:
        case types.UnionType():
            return " or ".join(_words(each) for each in kind.types)
        case types.NoneType():
            return NONE
        case types.BoolType():
            return "true or false"
        case types.IntType() | types.FloatType():
            range_ = _range(kind).replace("at least", "of at least")
            return f"a {'whole ' * isinstance(kind, types.IntType)}number {range_}".rstrip()
        case types.LiteralType():
            return f"one of {', '.join(str(each) for each in kind.values if each != '')}"
        case types.VarTupleType():
            return f"a list, each {_words(kind.item_type)}"
        case types.CustomType():
            return "a path"
        case _:
            return "text"


def _range(kind: types.IntType | types.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f"between {kind.ge:g} and {kind.le:g}"
    bounds = (("at least", kind.ge), ("above", kind.gt), ("at most", kind.le), ("below", kind.lt))
    return " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise TypeError(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
