"""The version of AAML that trains: the name of the program that plays and decides, and of what learns, by its source.

So a changed comment or docstring leaves the name, and any other change of a learner is another version.
"""

import ast
import hashlib
from functools import cache
from pathlib import Path

from aaml.evaluation.program import program_sha256

_LEARNS = ("learning", "training")  # packages
_SHOWN = 12  # characters of the digest, as of the program's
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def training_version() -> str:
    """Return the name of the program that plays, decides and learns."""
    package = Path(__file__).parents[1]
    return f"{program_sha256()} {learners_sha256(tuple(package / name for name in _LEARNS))}"


def learners_sha256(packages: tuple[Path, ...]) -> str:
    """Return a digest of the source of packages, without comments and docstrings."""
    found = hashlib.sha256()
    for package in packages:
        for file in sorted(package.rglob("*.py")):
            found.update(f"{file.relative_to(package.parent)}\n{_code(file.read_text(encoding='utf-8'))}\n".encode())
    return found.hexdigest()[:_SHOWN]


def _code(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
