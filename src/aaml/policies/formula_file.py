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

from aaml.errors import UserError, bad_value
from aaml.files import write_text
from aaml.policies.formulas.expression import features, parts
from aaml.policies.formulas.policy import VERSIONS, Formula, versions_of
from aaml.policies.formulas.text import parse, to_latex, to_text
from aaml.policies.spec_file import spec_from_dict, spec_to_dict
from aaml.scheduling.observation import PLAIN

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
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise UserError(f"formula {path}: format is {content['format']!r}, expected {FORMAT}")
        named = {str(name): float(value) for name, value in content.get("constants", {}).items()}
        expression = parse(str(content["expression"]), named, f"formula {path}: expression")
        told = {str(name): int(version) for name, version in content["features"].items()}
        for name in features(expression):
            if told.get(name) != VERSIONS[name]:
                raise bad_value(f"formula {path}: version of {name}", told.get(name, "none"), str(VERSIONS[name]))
        spec = spec_from_dict(content["observation"]) if "observation" in content else PLAIN
        return Formula(expression, spec, content.get("provenance", {}))
    except OSError as error:
        raise UserError(f"formula {path}: cannot be read: {error.strerror or error}") from error
    except KeyError as error:
        raise UserError(f"formula {path}: is not a formula (it lacks {error})") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"formula {path}: is not a formula ({error})") from error
