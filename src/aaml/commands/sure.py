"""Being sure before something is deleted: a question at a terminal, `--yes` elsewhere."""

import sys

from aaml.errors import UserError


def ask(question: str, *, yes: bool) -> bool:
    """Return whether a person agrees: asked at a terminal, taken for granted with `yes`.

    Raises `UserError` without a terminal and without `yes`.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError("yes: is missing; it is only asked for at a terminal (--dry-run says what would be done)")
    return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}
