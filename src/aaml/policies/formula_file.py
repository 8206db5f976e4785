"""Formulas on disk: a small JSON file, `NAME.formula`, that a person can read and change.

==============  =====================================================================================
expression      the formula as text
constants       numbers that the text calls by name, if any
features        the features that it reads, each with its version
observation     what features are measured with (expected pods, lifetimes), in one line; left out where nothing
provenance      where it came from: command, seeds, task, metric
latex, size     for readers; not read back
==============  =====================================================================================
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from aaml.errors import UserError, bad_value
from aaml.files import write_text
from aaml.policies.formulas.expression import features, parts
from aaml.policies.formulas.policy import VERSIONS, Formula, versions_of
from aaml.policies.formulas.text import parse, to_latex, to_text
from aaml.policies.spec_file import read_spec, spec_to_dict
from aaml.scheduling.observation import PLAIN
from aaml.schema import convert, of_json, read_bytes

FORMAT = "aaml-formula"


def save_formula(formula: Formula, path: Path) -> None:
    """Write a formula, whole or not at all."""
    expression = formula.expression
    content: dict[str, Any] = {
        "format": FORMAT,
        "expression": to_text(expression),
        "features": versions_of(expression),
        "size": parts(expression),
        "latex": to_latex(expression),
        "provenance": dict(formula.provenance),
    }
    text = json.dumps(content, indent=1)
    if formula.observation_spec != PLAIN:  # in one line, last: life tables are long
        observation = json.dumps(spec_to_dict(formula.observation_spec))
        text = text.removesuffix("\n}") + f',\n "observation": {observation}\n}}'
    write_text(path, text + "\n", field="formula")


def load_formula(path: Path) -> Formula:
    """Read a formula. Raises `UserError` for a file that is missing, none, or about features of another version."""
    where = f"formula {path}"
    found = convert(of_json(read_bytes(path, "formula"), where, any_number=True), _File, where)
    if found.format != FORMAT:
        raise UserError(f"{where}: format is {found.format!r}, expected {FORMAT}")
    expression = parse(found.expression, found.constants, f"{where}: expression")
    for name in features(expression):
        if found.features.get(name) != VERSIONS[name]:
            raise bad_value(f"{where}: version of {name}", found.features.get(name, "none"), str(VERSIONS[name]))
    spec = PLAIN if found.observation is None else read_spec(found.observation, f"{where}: observation")
    return Formula(expression, spec, found.provenance)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    expression: str
    features: dict[str, int]
    size: int = 0
    latex: str = ""
    provenance: dict[str, Any] = {}
    constants: dict[str, float] = {}
    observation: dict[str, Any] | None = None
