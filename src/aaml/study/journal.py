"""Optuna's journal in a file of ours: half a line is mended, a full disk is told. `optuna-dashboard` reads it too."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from aaml.errors import UserError
from aaml.files import LineFile, whole_lines


class Journal(BaseJournalBackend):
    """The lines of a file that one process writes at a time. Raises `UserError` for a file that is no journal."""

    def __init__(self, path: Path) -> None:
        try:
            lines = whole_lines(path).splitlines() if path.exists() else []
            self._logs = [json.loads(line) for line in lines]
        except OSError as error:
            raise UserError(f"out: {path} cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"out: {path}: is no journal of a study: {error}") from error
        self._file = LineFile(path, field="out")

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Return what was logged from a number on."""
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Put logs on disk. Raises `UserError` where there is no room."""
        for each in logs:
            self._file.write(json.dumps(each).encode() + b"\n")
        self._file.flush()
        self._logs += logs

    def close(self) -> None:
        """Close the file."""
        self._file.close()
