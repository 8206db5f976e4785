"""A process that is started again whenever it ends by itself, as systemd or a kubelet would do."""

import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from aaml.plugin.run import end
from aaml.threads import Background

_PAUSE_S = 1.0  # between an end and the next start
_STOP_S = 300.0  # a busy machine takes its time to end one, too


class Supervised:
    """Runs `command` in `folder` from the start of a `with` block to its end; both output streams go to `log`."""

    def __init__(self, command: Sequence[str], folder: Path, log: Path) -> None:
        self.command, self.folder, self.log = tuple(command), folder, log
        self.restarts = 0
        """How often it was started again."""
        self.status: int | None = None
        """The exit status of the process that was stopped at the end."""
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._supervising: Background[None] | None = None

    @property
    def pid(self) -> int:
        """The id of the process that runs, 0 between two."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    def children(self) -> list[psutil.Process]:
        """Return the processes that it has started itself."""
        with suppress(psutil.Error, ValueError):
            return psutil.Process(self.pid).children(recursive=True) if self.pid else []
        return []

    def kill(self) -> None:
        """End the process as a crash does; it is started again."""
        if self.pid and self._process is not None:
            self._process.kill()

    def stop(self) -> int:
        """Send SIGTERM, wait for the end and return the exit status; the process is not started again."""
        self._ending.set()
        if self._supervising is not None:
            self._supervising.check()
        if self._process is not None:
            self.status = end(self._process, _STOP_S)
        return self.status or 0

    def output(self) -> str:
        """Return what it has written so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def __enter__(self) -> Self:
        self._process = self._start()
        self._supervising = Background(self._watch, "supervisor")
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is None:
            self.stop()

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with self.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603  (our own command line, no shell)
                self.command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _watch(self) -> None:
        while self._process is not None:
            self._process.wait()
            if self._ending.wait(_PAUSE_S):
                return
            self._process = self._start()
            self.restarts += 1
