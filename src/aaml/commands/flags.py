"""Flags from settings: what `aaml COMMAND --help` shows, and the settings that a command line stands for.

Defaults count least, then the YAML file of `--config`, then the flags.
"""

import argparse
import contextlib
import dataclasses
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_type_hints

from aaml.errors import UserError, bad_value, did_you_mean
from aaml.settings import NONE, Row, Settings, SettingsFile, changed, fields, other_names, rows

_INDENT = "  "
_NARROWEST, _WIDEST = 40, 120  # characters of a line of text
_FEW = 6  # flags that a line names


def parse(settings: Any, argv: Sequence[str], prog: str, description: str | None, *, underscores: bool = False) -> Any:
    """Return the settings that a command line stands for.

    `settings` is a dataclass, or an instance whose values are the defaults. Flags may be written with dashes or
    underscores; `underscores` says which the help shows. `said` of what is returned has the names that the command line
    and its file name. Raises `UserError` in one line for what is not accepted.
    """
    import tyro

    message, printed = io.StringIO(), _Caught()
    if shutil.get_terminal_size().columns < _NARROWEST:  # where the parser breaks each word, or goes on without end
        os.environ["COLUMNS"] = str(_NARROWEST)
    argv = _own_names(settings, argv)
    how = _how(settings, argv)
    try:
        with contextlib.redirect_stderr(message), contextlib.redirect_stdout(printed):
            parsed = tyro.cli(
                prog=prog, description=_laid_out(description), args=list(argv), use_underscores=underscores, **how
            )
    except SystemExit as end:
        if not end.code:  # --help, where the parser leaves two lines between paragraphs that are indented
            print(re.sub(r"\n{3,}", "\n\n", printed.getvalue()), end="")
            raise
        start = how["default"] if isinstance(how["default"], Settings) else how["f"]
        known = rows(start) if isinstance(start, Settings) or issubclass(start, Settings) else _of_word(start, argv)
        raise UserError(f"{_mistake(message.getvalue(), known, argv)} (see {prog} --help)") from None
    return _saying(parsed, how["default"], argv) if isinstance(parsed, Settings) else parsed


def _saying(parsed: Settings, start: Any, argv: Sequence[str]) -> Settings:
    """Return settings with the names that a command line says, and those that its file does."""
    names = {row.name for row in rows(parsed)}
    flags = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in argv if word.startswith("--")}
    typed = {flag if flag in names else flag.removeprefix("no_") for flag in flags} & names
    if isinstance(start, Settings):
        return _said(parsed, typed | start.said)
    values: dict[str, Any] = {}  # the file of settings of which some have no default is read after the flags
    for row in fields(parsed):
        values |= read_yaml(row.value, row.name) if row.kind == SettingsFile and row.value is not None else {}
    others = other_names(parsed)
    values = {others.get(name, name): value for name, value in values.items()}
    told = changed(parsed, {name: value for name, value in values.items() if name not in typed})
    return _said(told, typed | values.keys())


def _said(settings: Settings, names: Collection[str]) -> Settings:
    object.__setattr__(settings, "said", frozenset(names))
    return settings


class _Caught(io.StringIO):
    """What is printed; of the kind that standard output is, so that colours and boxes stay."""

    def __init__(self) -> None:
        super().__init__()
        self._like = sys.stdout

    def isatty(self) -> bool:
        return self._like.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._like.encoding


def _laid_out(description: str | None) -> str | None:
    """Return a description whose lines fit the terminal; indented, for the parser joins lines that are not.

    A paragraph with columns keeps its lines.
    """
    if description is None:
        return None
    width = min(shutil.get_terminal_size().columns, _WIDEST) - len(_INDENT)
    paragraphs = [
        each if "  " in each else textwrap.fill(each, width, break_on_hyphens=False)
        for each in description.strip().split("\n\n")
    ]
    return textwrap.indent("\n\n".join(paragraphs), _INDENT)


def parser(settings: Any, argv: Sequence[str], prog: str) -> argparse.ArgumentParser:
    """Return the parser of the same flags as argparse has it, from which a shell completes what is typed.

    `argv` is what was typed so far: an agent that is named in it has flags of its own.
    """
    import warnings

    import tyro

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # only this form has what completion asks for
        made: Any = tyro.extras.get_parser(prog=prog, **_how(settings, argv))
    return cast("argparse.ArgumentParser", made)  # tyro ships a copy of its own


def _how(settings: Any, argv: Sequence[str]) -> dict[str, Any]:
    """Return the arguments by which tyro reads settings: their type, their defaults and the rules of `Settings`."""
    import tyro

    ours = isinstance(settings, type) and issubclass(settings, Settings) and not _has_to_be_told(settings)
    start = settings() if ours else settings
    if isinstance(start, Settings):
        start = before_flags(start, argv)
    return {
        "f": start if isinstance(start, type) else type(start),
        "default": tyro.MISSING_NONPROP if isinstance(start, type) else start,
        "config": (tyro.conf.OmitArgPrefixes,),
        "registry": _registry(),
    }


def _own_names(settings: Any, argv: Sequence[str]) -> list[str]:
    """Return a command line in which a setting's other name is its own, and `none` is Python's word for it."""
    start = settings() if isinstance(settings, type) and not _has_to_be_told(settings) else settings
    of_settings = isinstance(start, Settings) or (isinstance(start, type) and issubclass(start, Settings))
    without = {row.name for row in rows(start) if row.takes_none} if of_settings else set()
    others, words, before = other_names(start), list[str](), ""
    for word in argv:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if word == NONE and before in without:
            words.append(str(None))
        elif flag.startswith("--") and (name in others or (name in without and value == NONE)):
            words.append(f"--{others.get(name, name)}{equals}{None if value == NONE and name in without else value}")
        else:
            words.append(word)
        before = name if flag.startswith("--") and not equals else ""
    return words


def before_flags(settings: Settings, argv: Sequence[str]) -> Settings:
    """Return the settings that the flags are said on top of: those of the file, for the agent that is named."""
    named = {row.name: row for row in rows(settings) if row.named}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    files = [row.name for row in fields(settings) if row.kind == SettingsFile]
    for name in [*named, *files]:
        parser.add_argument(f"--{name}", nargs="?")
    given = {name: value for name, value in vars(parser.parse_known_args(argv)[0]).items() if value}
    values: dict[str, Any] = {}
    for name in files:
        values |= read_yaml(Path(given.pop(name)), name) if name in given else {}
    known = {name: value for name, value in given.items() if value in named[name].kind.names()}  # tyro tells others
    others = other_names(settings)
    return _said(changed(settings, {**values, **known}), {others.get(name, name) for name in {**values, **known}})


def read_yaml(path: Path, field: str) -> dict[str, Any]:
    """Return the settings of a YAML file that `field` names. Raises `UserError` when it holds none."""
    from aaml.schema import of_yaml, read_bytes

    documents = of_yaml(read_bytes(path, field, "a readable file"), f"{field} {path}")
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise UserError(f"{field} {path}: expected settings as NAME: VALUE")
    return documents[0]


def _registry() -> Any:
    """Return the rule by which the parser reads settings: their fields, and the name of what is chosen by one."""
    from tyro import MISSING_NONPROP
    from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

    registry = ConstructorRegistry()

    @registry.struct_rule
    def _of_settings(info: StructTypeInfo) -> StructConstructorSpec | None:
        if not isinstance(info.type, type) or not issubclass(info.type, Settings):
            return None
        kind = info.type
        start = info.default if isinstance(info.default, Settings) else kind if _has_to_be_told(kind) else kind()
        shown, parts = [], {}
        for row in fields(start):
            name, taken = row.name, type(row.value) if isinstance(row.value, Settings) else row.kind
            value = MISSING_NONPROP if row.value is dataclasses.MISSING else row.value
            if row.named:  # the name is a flag; what it stands for has those of its settings, in a box of its own
                choice: Any = Literal[tuple(row.kind.names())]
                shown.append(StructFieldSpec(name, choice, row.value.name, row.help))
                name = parts[row.name] = row.value.name
            words = (type(row.value).__doc__ or "").partition("\n")[0] if row.named else row.help
            shown.append(StructFieldSpec(name, taken, value, "; ".join(filter(None, (words, row.usual, row.range)))))

        def make(**values: Any) -> Settings:
            chosen = {name: values.pop(part) for name, part in parts.items()}
            values = {**values, **chosen}
            return dataclasses.replace(start, **values) if isinstance(start, Settings) else kind(**values)  # type: ignore[type-var]

        return StructConstructorSpec(make, tuple(shown))

    return registry


def _has_to_be_told(settings: type) -> bool:
    """Whether a dataclass has fields without a default."""
    fresh = (dataclasses.MISSING, dataclasses.MISSING)
    return any((each.default, each.default_factory) == fresh for each in dataclasses.fields(settings))


def _of_word(command: type, argv: Sequence[str]) -> list[Row]:
    """Return the settings of a command whose first word chooses among several, such as `aaml schedule policy`."""
    choices = [each for hint in get_type_hints(command, include_extras=True).values() for each in _annotated(hint)]
    for kind, *told in choices:
        if argv and any(getattr(each, "name", None) == argv[0] for each in told) and issubclass(kind, Settings):
            return rows(kind)
    return []


def _annotated(hint: Any) -> Iterator[tuple[Any, ...]]:
    """Yield each annotated class within a type, with what is annotated."""
    inner = get_args(hint)
    if hasattr(hint, "__metadata__") and isinstance(inner[0], type):
        yield inner
        return
    for each in inner:
        yield from _annotated(each)


def _mistake(box: str, known: Sequence[Row], argv: Sequence[str]) -> str:  # noqa: PLR0911
    """Return what the parser says in a box as one line, with what the settings take or the name that was meant."""
    message, more = _paragraphs(box)[:2]
    if missing := re.match(r"Missing from .*?: \S+ (.*?)\.? \(required\)", message):
        name = next((row.name for row in known if " ".join(row.help.split()).startswith(missing[1])), "command")
        return f"{name}: is missing; expected {re.sub('^[A-Z](?![A-Z])', lambda first: first[0].lower(), missing[1])}"
    if empty := re.match(r"Missing value for argument '--([\w-]+)'", message):
        field = empty[1].replace("-", "_")
        taken = next((row.accepted for row in known if row.name == field), "a value")
        return f"{field}: needs a value; expected {taken}"
    if choices := re.match(r"Expected one of \{(.*)\}", message):
        return f"command: is missing; expected one of {choices[1]}"
    if unread := re.match(r"Error parsing --([\w-]+): (.*)", message):
        field, why = unread[1].replace("-", "_"), unread[2]
        values = re.search(r"\[(.*?)\]", why) or re.search(r"('[^']*')$", why)
        accepted = {row.name: row.accepted for row in known}
        number = "a whole number" if "int()" in why else "a number" if "float" in why else ""
        if values and (words := accepted.get(field, number)):
            return str(bad_value(field, " ".join(re.findall("'([^']*)'", values[1])), words))
    if choice := re.match(r"invalid choice '(.*)' for argument '-*(.*)'\. Expected one of \((.*?),?\)\.", message):
        value, field, names = choice.groups()
        named = [each for each in names.replace("'", "").split(", ") if each]  # "" is for what is not said
        return str(bad_value(field, value, f"one of {', '.join(named)}"))
    word = message.removeprefix("Unrecognized options: ").split(",")[0]
    if more.startswith("Perhaps you meant:"):
        flags = re.findall(r"--[\w-]+", more)
        return f"{message}{did_you_mean(word, flags)}"
    if message != word and (meant := _meant(word, known)):
        return f"{message}; did you mean {meant}?"
    if more.startswith("Available subcommands: "):
        names = more.removeprefix("Available subcommands: ")
        return str(bad_value("command", word, f"one of {names}"))
    return _too_many(word, known, argv) if message != word and not word.startswith("-") else message


def _too_many(word: str, known: Sequence[Row], argv: Sequence[str]) -> str:
    """Return in a line what may stand where a word without a flag does."""
    import tyro

    before = argv[argv.index(word) - 1] if word in argv[1:] else ""
    if before in {row.name for row in known}:  # `policy kube-scheduler`
        return f"{word!r} is one word too many; did you mean --{before} {word}?"
    (positional,) = get_args(tyro.conf.Positional[str])[1:]
    flags = [
        f"--{row.name.replace('_', '-')}" for row in known if positional not in getattr(row.kind, "__metadata__", ())
    ]
    return f"{word!r} is one word too many; expected {', '.join(flags) if 0 < len(flags) <= _FEW else 'flags alone'}"


def _meant(word: str, known: Sequence[Row]) -> str:
    """Return the flag that a word without one belongs to, or whose initials it has (--lr); "" for none."""
    for row in known:
        flag = f"--{row.name.replace('_', '-')}"
        if row.named and word in row.kind.names():
            return f"{flag} {word}"
        if "_" in row.name and word == f"--{''.join(part[0] for part in row.name.split('_'))}":
            return flag
    return ""


def _paragraphs(box: str) -> list[str]:
    """Return the texts below the title of a box of the parser, each between rules in one line, and an empty one."""
    paragraphs: list[list[str]] = [[]]
    for line in box.strip().splitlines()[1:]:
        text = line.strip(" |+\u2502\u256d\u256e\u2570\u256f")  # the sides and corners of the box
        if re.search("[-\u2500]{3}", text):  # a border or rule
            paragraphs.append([])
        else:
            paragraphs[-1] += text.split()
    return [*(" ".join(words) for words in paragraphs if words), ""]
