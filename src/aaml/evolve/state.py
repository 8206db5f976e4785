"""What a search for formulas leaves in its folder, as types that say what is taken: state.json and front.json."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from aaml.errors import UserError
from aaml.policies.formulas.text import parse
from aaml.schema import convert, of_json, read_bytes
from aaml.search.generator import generator_of

Natural = Annotated[int, Meta(ge=0)]
_WRITTEN = "a folder that `aaml search formula` wrote"


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    pass


class _Island(_Strict):
    members: Annotated[list[tuple[str, str, float]], Meta(min_length=1)]
    known: dict[str, tuple[float, list[float]]]
    rng: dict[str, Any]
    played: Natural
    asked: Natural


class _State(_Strict):
    generations: Annotated[int, Meta(ge=1)]
    fronts: list[list[tuple[str, float, Natural]]]
    islands: list[_Island]
    inputs: dict[str, str] | None = None


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


def read_state(path: Path, islands: int) -> dict[str, Any]:
    """Return the state of a search with so many islands. Raises `UserError` for a file that is damaged."""
    found = convert(of_json(read_bytes(path, "out", _WRITTEN), f"out: {path}", any_number=True), _State, f"out: {path}")
    if len(found.islands) != islands or len(found.fronts) != islands or not all(found.fronts):
        raise UserError(f"out: {path}: has {len(found.islands)} islands; expected {islands}, each with a front")
    for number, each in enumerate(found.islands):
        for text, _, _ in each.members:
            parse(text, None, f"out: {path}: islands[{number}].members")
        generator_of(each.rng, f"out: {path}: islands[{number}].rng")
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain


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
