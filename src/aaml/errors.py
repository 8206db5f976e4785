"""The one exception that a person's mistake ends in: a clear line, exit status 2, no traceback."""

import re
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

_NAMES = "one of "
_WHOLE = "a whole number"
_LIST = "a list, each a whole number"
_SHOWN = 200  # characters of a value that a message repeats


class UserError(Exception):
    """Bad input from a person: the message names the field, the value and what is accepted, in one line."""


class OtherSizeError(UserError):
    """A policy knows clusters of another number of nodes than the one that it is to decide in."""


def bad_value(field: str, value: object, accepted: str) -> UserError:
    """Build the usual message: which field, what it was, of names the one that was meant, and what it may be."""
    listed = accepted.removeprefix(_NAMES).partition(", or ")[0] if accepted.startswith(_NAMES) else ""
    names = [each for each in re.split(", | or | and ", listed) if re.fullmatch(r"[\w.@/-]*\w", each)]
    meant = did_you_mean(value, names) if isinstance(value, str) else ""
    if accepted.startswith(_WHOLE) and isinstance(value, str):
        meant = _whole_number(value)
    if accepted.startswith(_LIST) and isinstance(value, str):
        meant = _with_spaces(value)
    expected = f"{meant} Expected" if meant else "; expected"
    return UserError(f"{field}: {shown(value)} is not accepted{expected} {accepted}")


def shown(value: object) -> str:
    """Return a value as a message repeats it: its first 200 characters."""
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def did_you_mean(word: str, names: Sequence[str]) -> str:
    """Return a question with the name that a word is nearest to, or the initials of; empty where there is none."""
    near = get_close_matches(word, names, n=1) or [name for name in names if "_" in name and word == _initials(name)]
    return f"; did you mean {near[0]}?" if near else ""


def _initials(name: str) -> str:
    return "".join(part[:1] for part in name.split("_"))


def _whole_number(text: str) -> str:
    """Return a question with the whole number that another notation stands for, such as 1e6; empty for all else."""
    if text.isdigit() or not re.fullmatch(r"\d+(\.\d*)?([eE]\+?\d{1,2})?", text):
        return ""
    number = float(text)
    return f"; did you mean {int(number)}?" if number.is_integer() else ""


def _with_spaces(text: str) -> str:
    """Return a question with the numbers of a list between commas, such as 10,20; empty for all else."""
    return f"; did you mean {text.replace(',', ' ')}?" if re.fullmatch(r"\d+(,\d+)+", text) else ""


def failure_of(error: Exception, *files: Path) -> str:
    """Return a failure of a person's own code as one line, with the last line of their `files` that took part."""
    known = set(map(str, files))
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename in known]
    place = f"line {lines[-1]}: {type(error).__name__}: " if lines else ""
    return f"{place}{' '.join(str(error).split())}"


class StoppedError(Exception):
    """Work was stopped before its end, as asked for: what it had begun is to be forgotten."""
