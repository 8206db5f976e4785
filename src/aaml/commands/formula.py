"""Print a formula: as text, as LaTeX maths, as Python that pastes into a file of your own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml formula`."""

    file: Annotated[Path, tyro.conf.Positional]
    """A formula (NAME.formula), the folder of a search, or a formula that ships, by its name."""
    form: Literal["all", "text", "latex", "python"] = "all"
    """How to print it: python is a file with a score function, a policy as FILE.py:NAME."""


def run(args: Args) -> int:
    """Print it."""
    from aaml.evaluation.zoo import model_file
    from aaml.policies.formulas.expression import parts, terms
    from aaml.policies.formulas.formula_file import load_formula
    from aaml.policies.formulas.text import to_latex, to_python, to_text

    policy = load_formula(model_file(args.file))
    expression = policy.formula.expression
    if args.form == "python":
        print(to_python(expression, policy.name), end="")
    elif args.form == "text":
        print(to_text(expression))
    elif args.form == "latex":
        print(to_latex(expression))
    else:
        print(f"{policy.name} = {to_text(expression)}\n\nsize: {parts(expression)}, terms: {terms(expression)}")
        for name, value in policy.formula.provenance.items():
            print(f"{name}: {value}")
        print(f"\nlatex: {to_latex(expression)}\n\n{to_python(expression, policy.name)}", end="")
    return 0
