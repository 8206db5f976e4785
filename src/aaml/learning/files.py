"""Model files are written whole or not at all: a reader, or a crash, never meets half of one."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from aaml.errors import UserError


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file next to `path`, then rename it. Raises `UserError` where that is not possible."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise UserError(f"model {path}: cannot be written: {error.strerror or error}") from error


def write_json(path: Path, content: Any, indent: int | None = None) -> None:
    """Write plain values as JSON, whole or not at all."""
    text = json.dumps(content, indent=indent) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))
