"""The `aaml` command with a clock that can be stepped: `python -m aaml.chaos.clock FILE ARGUMENTS`.

The seconds in FILE are added to the time of day as `aaml.kube` reads it, for leases, events and conditions. Nothing
else of the machine notices, and the monotonic clock goes on, as it does where an administrator or NTP sets the clock.
"""

import runpy
import sys
from datetime import UTC, datetime, timedelta, tzinfo
from importlib import import_module
from pathlib import Path

_READ_THE_CLOCK = ("aaml.kube.events", "aaml.kube.evictor", "aaml.kube.lease")


def step_by(file: Path) -> None:
    """Let what reads the time of day be off by what the file says."""

    class Stepped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = UTC) -> "Stepped":
            try:
                offset_s = float(file.read_text(encoding="ascii"))
            except (OSError, ValueError):  # not written yet, or just now
                offset_s = 0.0
            return cls.fromtimestamp((datetime.now(UTC) + timedelta(seconds=offset_s)).timestamp(), tz)

    for name in _READ_THE_CLOCK:
        import_module(name).datetime = Stepped  # type: ignore[attr-defined]


def main() -> None:
    """Step the clock and be `aaml`."""
    step_by(Path(sys.argv[1]))
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("aaml", run_name="__main__")


if __name__ == "__main__":
    main()
