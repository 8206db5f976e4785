"""Print a formula: as text, as LaTeX maths, as Python that pastes into a file of your own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml show formula`."""

    file: Annotated[Path, tyro.conf.Positional]
    """A formula (NAME.formula), the folder of a search, or a formula that ships, by its name."""
    form: Literal["all", "text", "latex", "python"] = "all"
    """How to print it: python is a file with a score function, a policy as FILE.py:NAME."""


def run(args: Args) -> int:
    """Print it."""
    from aaml.errors import UserError
    from aaml.evaluation.zoo import model_file, zoo
    from aaml.policies.formula_file import load_formula
    from aaml.policies.formulas.expression import is_of_gpus, parts, terms
    from aaml.policies.formulas.text import to_latex, to_python, to_text

    file = model_file(args.file)
    if not file.exists():
        ship = ", ".join(name for name, model in zoo().items() if model.agent == "formula")
        raise UserError(
            f"file: {str(args.file)!r} is not there; expected NAME.formula, the folder of a search, or {ship}"
        )
    formula = load_formula(file)
    expression = formula.expression
    if args.form == "python":
        print(to_python(expression, file.stem), end="")
    elif args.form == "text":
        print(to_text(expression))
    elif args.form == "latex":
        print(to_latex(expression))
    else:
        print(f"{file.stem} = {to_text(expression)}\n\nsize: {parts(expression)}, terms: {terms(expression)}")
        for name, value in formula.provenance.items():
            print(f"{name}: {value}")
        print(f"\nlatex: {to_latex(expression)}")
        if is_of_gpus(expression):
            print("\npython: none, for a score function chooses a node and no device")
        else:
            print(f"\n{to_python(expression, file.stem)}", end="")
    return 0
