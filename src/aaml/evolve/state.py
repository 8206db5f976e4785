"""The formulas that a search leaves in its folder, as types that say what is taken: front.json."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from aaml.errors import UserError
from aaml.policies.formulas.text import parse
from aaml.schema import convert, of_json, read_bytes

Natural = Annotated[int, Meta(ge=0)]
_WRITTEN = "a folder that `aaml search formula` wrote"


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    pass


class FrontRow(_Strict):
    """A formula of front.json; `size`, `terms` and `latex` are for readers.

    `compared`: of so many formulas it was chosen; 0: of as many as the file has.
    """

    text: str
    training_loss: float
    losses: Annotated[list[float], Meta(min_length=1)]
    compared: Natural = 0
    size: int = 0
    terms: int = 0
    latex: str = ""


def read_front_rows(path: Path) -> list[FrontRow]:
    """Return the formulas of a front, at least one. Raises `UserError` for a file that is missing or damaged."""
    content = of_json(read_bytes(path, "out", _WRITTEN), f"out: {path}", any_number=True)
    rows = convert(content, list[FrontRow], f"out: {path}")
    if not rows:
        raise UserError(f"out: {path}: has no formula; expected {_WRITTEN}")
    for number, each in enumerate(rows):
        parse(each.text, None, f"out: {path}: [{number}].text")
        if len(each.losses) != len(rows[0].losses):
            raise UserError(f"out: {path}: [{number}].losses: expected {len(rows[0].losses)}, as the first has")
    return rows
