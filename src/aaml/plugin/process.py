"""A scheduler's process from the start of a block to its end."""

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from aaml.errors import UserError
from aaml.plugin.run import end

_LOOK_S = 0.1
_WORDS = 300  # characters of what it said last


class SchedulerProcess(ABC):
    """A scheduler at work from the start of a `with` block, which waits until it is ready, to its end.

    What it writes is in the file `log`; it works in `folder`, this one where none is given. Raises `UserError` with its
    last words where it ends before it is ready, and where it is not after `ready_s`.
    """

    def __init__(
        self, name: str, line: Sequence[str], log: Path, *, folder: Path | None = None, ready_s: float = 300.0
    ) -> None:
        self.name, self.line, self.log = name, list(line), log
        self._folder, self._ready_s = folder, ready_s

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603  (our own command line, no shell)
                self.line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)

    @abstractmethod
    def ready(self) -> bool:
        """Whether it schedules."""

    def output(self) -> str:
        """Return what it has written so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def alive(self) -> None:
        """Raise `UserError` with the scheduler's last words when its process has ended."""
        if self.process.poll() is not None:
            words = self.output().strip().splitlines()
            raise UserError(f"scheduler: {self.name} has ended: {words[-1][-_WORDS:] if words else 'without a word'}")

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + self._ready_s
        while not self.ready():
            self.alive()
            if time.monotonic() > deadline_s:
                raise UserError(f"scheduler: {self.name} is not ready after {self._ready_s:g} s; see {self.log}")
            time.sleep(_LOOK_S)
