"""The `aaml` command with a clock that can be stepped, and a state that is checked.

`python -m aaml.chaos.clock FILE ARGUMENTS` adds the seconds in FILE to the time of day as `aaml.kube` reads it, for
leases, events and conditions. Nothing else of the machine notices, and the monotonic clock goes on, as it does where an
administrator or NTP sets the clock. Each second the cluster state is compared with the pods and nodes that it is of.
What is wrong ends the process and stands in its log after `WRONG`.
"""

import runpy
import sys
import time
from datetime import UTC, datetime, timedelta, tzinfo
from importlib import import_module
from pathlib import Path

from aaml.cluster import audit
from aaml.cluster.objects import Pod
from aaml.kube.cluster import KubeCluster

WRONG = "cluster state:"
_CHECK_S = 1.0
_READ_THE_CLOCK = ("aaml.kube.events", "aaml.kube.evictor", "aaml.kube.lease")


def step_by(file: Path) -> None:
    """Shift what reads the time of day by the seconds in the file."""

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


def check_states() -> None:
    """Let every live cluster check its state once a second, before it hands out a pod, and when it is closed."""
    checked_s = 0.0
    next_pod, close = KubeCluster.next_pod, KubeCluster.close

    def checking(self: KubeCluster, timeout_s: float) -> Pod | None:
        nonlocal checked_s
        if time.monotonic() - checked_s > _CHECK_S:
            audit.check(self.state)
            checked_s = time.monotonic()
        return next_pod(self, timeout_s)

    def closing(self: KubeCluster) -> None:
        close(self)
        audit.check(self.state)

    KubeCluster.next_pod, KubeCluster.close = checking, closing  # type: ignore[method-assign]


def main() -> None:
    """Step the clock, check the state and be `aaml`."""
    step_by(Path(sys.argv[1]))
    check_states()
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("aaml", run_name="__main__")


if __name__ == "__main__":
    main()
