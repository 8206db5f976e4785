"""Whom a cluster belongs to: a process, such as a test run, whose end leaves the cluster to be cleared away."""

import os
from dataclasses import dataclass

import psutil

from aaml.errors import bad_value

_CLOCK_TOLERANCE_S = 1.0


@dataclass(frozen=True)
class Owner:
    """One process, named so that a later process with the same id is not taken for it.

    `started_s` is the time from the machine's boot to the start of the process, which no change of the clock moves.
    """

    pid: int
    started_s: float

    @classmethod
    def of(cls, pid: int) -> "Owner":
        """Return the owner that process `pid` is; raise `UserError` when no such process runs."""
        try:
            return cls(pid, _started_s(psutil.Process(pid)))
        except (psutil.Error, ValueError, OverflowError) as error:
            raise bad_value("owner", pid, "the id of a running process") from error

    @classmethod
    def this_process(cls) -> "Owner":
        """Return the process that calls."""
        return cls.of(os.getpid())

    def alive(self) -> bool:
        """Say whether the process still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(_started_s(process) - self.started_s) < _CLOCK_TOLERANCE_S
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def _started_s(process: psutil.Process) -> float:
    return process.create_time() - psutil.boot_time()
