"""Runs a command for as long as the same cluster answers: `while_same_cluster.py COMMAND...`.

Karpenter goes on when a new cluster takes the old one's place, and waits for objects that nobody makes there. So this
ends it, with status 1, and the service's restart policy starts it anew. SIGTERM is handed on.
"""

import signal
import subprocess
import sys
from contextlib import suppress

from aaml.kube.history import History
from aaml.kube.transport import Transport, Unreachable

_LOOK_S = 5.0
_END_S = 20.0


def main(command: list[str]) -> int:
    """Return the command's exit status, 1 where it was ended for a new cluster."""
    history, number = History(Transport()), 0
    with suppress(Unreachable):
        number = history.current(number, "")
    with subprocess.Popen(command) as child:  # noqa: S603  (what the compose file says)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda got, _: child.send_signal(got))
        while True:
            try:
                status = child.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                pass
            else:
                return status if status >= 0 else 128 - status
            with suppress(Unreachable):
                if history.current(number, "") != number:
                    print("another cluster answers; starting anew there", flush=True)
                    break
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_END_S)
        child.kill()
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
