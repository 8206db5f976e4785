"""CSV files made by people; the first mistake is reported with its file, line, column and value."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aaml.cluster.quantity import amount
from aaml.errors import UserError, bad_value

Parser = Callable[[str, str], Any]  # (field as errors name it, text) -> value; raises UserError


def read_table(
    path: Path, required: Mapping[str, Parser], optional: Mapping[str, Parser] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a dictionary for each line, with the values of the required and of the optional columns.

    As `read_lines`, without the numbers of the lines.
    """
    return (values for _, values in read_lines(path, required, optional))


def read_lines(
    path: Path, required: Mapping[str, Parser], optional: Mapping[str, Parser] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line's number in the file, and its values of the required and of the optional columns.

    Blank lines are passed over. An optional column that is absent or empty is left out, and other columns are not read.
    Raises `UserError` naming file, line, column and value at the first mistake.
    """
    optional = optional or {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _check_header(path, header, required)
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) != len(header):
                    raise UserError(
                        f"{path}, line {reader.line_num}: {len(cells)} columns; expected {len(header)} "
                        f"({', '.join(header)})"
                    )
                try:
                    values = _parse(dict(zip(header, cells, strict=True)), required, optional)
                except UserError as error:
                    raise UserError(f"{path}, line {reader.line_num}, column {error}") from None
                yield reader.line_num, values
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: is not a CSV file in UTF-8 ({error})") from error


def _check_header(path: Path, header: Sequence[str], required: Mapping[str, Parser]) -> None:
    missing = [name for name in required if name not in header]
    if missing:
        found = ", ".join(header) or "an empty file"
        raise UserError(
            f"{path}, line 1: column {missing[0]!r} is missing; expected {', '.join(required)}; found {found}"
        )
    doubled = next((name for name in header if header.count(name) > 1), None)
    if doubled is not None:
        raise UserError(f"{path}, line 1: column {doubled!r} comes twice")


def _parse(row: Mapping[str, str], required: Mapping[str, Parser], optional: Mapping[str, Parser]) -> dict[str, Any]:
    values = {name: parse(name, row[name].strip()) for name, parse in required.items()}
    for name, parse in optional.items():
        text = row.get(name, "").strip()
        if text:
            values[name] = parse(name, text)
    return values


def any_text(_field: str, text: str) -> str:
    """Accept every text."""
    return text


def whole_number(least: int = 0) -> Parser:
    """Return a parser of whole numbers of at least `least`."""

    def parse(field: str, text: str) -> int:
        if not text.isascii() or not text.removeprefix("-").isdigit() or int(text) < least:
            raise bad_value(field, text, f"a whole number of at least {least}")
        return int(text)

    return parse


def number(least: float = 0.0) -> Parser:
    """Return a parser of finite numbers of at least `least`."""

    def parse(field: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value < float("inf"):
            raise bad_value(field, text, f"a number of at least {least:g}")
        return value

    return parse


def quantity(resource: str) -> Parser:
    """Return a parser of Kubernetes quantities of a resource, which gives the integer that AAML counts in."""

    def parse(field: str, text: str) -> int:
        return amount(resource, text, field)

    return parse


def choice(*names: str) -> Parser:
    """Return a parser that accepts these words."""

    def parse(field: str, text: str) -> str:
        if text not in names:
            raise bad_value(field, text, " or ".join(names))
        return text

    return parse
