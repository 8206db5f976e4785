"""SIGTERM and Ctrl-C end a run in good order; a second Ctrl-C ends it at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception: whoever cleans up after Ctrl-C does so after it."""


def raise_terminated(_number: int, _frame: FrameType | None) -> None:
    """Raise `Terminated`: what SIGTERM does to a command that says nothing else, from its first moment on."""
    raise Terminated


class Interruption:
    """Which signal asked for the end, 0 while none did."""

    def __init__(self) -> None:
        self.signal = 0

    @property
    def status(self) -> int:
        """Exit status of work that was not done: 130 after Ctrl-C, 143 after SIGTERM; 0 without a signal."""
        return 128 + self.signal if self.signal else 0

    @property
    def service_status(self) -> int:
        """Exit status of what runs until it is told to end: 0 after SIGTERM, the usual way to stop a service."""
        return self.status if self.signal == signal.SIGINT else 0


@contextmanager
def ends_by(stop: Callable[[], None]) -> Iterator[Interruption]:
    """Call `stop` at a SIGTERM or SIGINT of the block; a SIGINT after another signal raises KeyboardInterrupt."""
    interruption = Interruption()

    def handle(number: int, _frame: FrameType | None) -> None:
        # Supervisors send SIGTERM to a whole group, and so more than once: only Ctrl-C twice is impatience.
        if interruption.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        interruption.signal = interruption.signal or number
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ends_at_once() -> Iterator[Interruption]:
    """Raise KeyboardInterrupt at a SIGTERM or SIGINT of the block: for work that is saved as it goes on."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with ends_by(interrupt) as interruption:
        yield interruption
