"""What a person at a terminal sees of a run: log lines, a progress bar, and the log file that stays."""

import logging
import math
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from aaml.errors import UserError
from aaml.folders import made_dir
from aaml.progress import IN_NOTEBOOK, progress_bar

LOG = logging.getLogger("aaml")
DECISIONS = logging.getLogger("aaml.decisions")  # one line a decision: in the file always, scrolling when asked

_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
_RATE_WINDOW_S = 10.0
_REFRESH_S = 0.2
_FOLD_S, _FOLDS_KEPT = 60.0, 1000


def stamp() -> str:
    """Return the local time as it stands in the names of files: 20260131-235959."""
    return time.strftime("%Y%m%d-%H%M%S")


def unused_path(directory: Path, stem: str, suffix: str) -> Path:
    """Return directory/stem+suffix.

    Where another run of the same second took that name, a number comes before the suffix.
    """
    path, number = directory / f"{stem}{suffix}", 2
    while path.exists():
        path, number = directory / f"{stem}-{number}{suffix}", number + 1
    return path


class _Folding(logging.Handler):
    """A handler that writes a line once a minute at most, and says how often it came meanwhile.

    What goes wrong again and again (an API server that is away, a bind that is forbidden) must not hide the rest.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._folds: OrderedDict[str, tuple[float, int]] = (
            OrderedDict()
        )  # text -> when it was written, and how often not

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record, unless the same line was written in the last minute."""
        if record.name == DECISIONS.name:  # each has its number
            return bool(super().handle(record))
        text = record.getMessage()
        written_s, more = self._folds.get(text, (-math.inf, 0))
        if record.created - written_s < _FOLD_S:
            self._folds[text] = (written_s, more + 1)
            return False
        if more:
            record = self._with(record, f"{text} ({_times(more)} more in {record.created - written_s:.0f} s)")
        self._folds[text] = (record.created, 0)
        self._folds.move_to_end(text)
        if len(self._folds) > _FOLDS_KEPT:
            self._folds.popitem(last=False)
        return bool(super().handle(record))

    def close(self) -> None:
        """Say how often each line came that was not written."""
        folds, self._folds = self._folds, OrderedDict()
        for text, (_, more) in folds.items():
            if more:
                message = f"{text} ({_times(more)} more)"
                super().handle(logging.LogRecord(LOG.name, logging.INFO, "", 0, message, (), None))
        super().close()

    @staticmethod
    def _with(record: logging.LogRecord, text: str) -> logging.LogRecord:
        changed = copy(record)  # other handlers have theirs to say
        changed.msg, changed.args = text, ()
        return changed


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


class TqdmHandler(_Folding):
    """Writes log lines above progress bars instead of through them; in a notebook not as errors, red there."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            tqdm.write(self.format(record), file=sys.stdout if IN_NOTEBOOK else sys.stderr)
        except (OSError, ValueError):  # the terminal has gone: the file still has the line
            self.handleError(record)


class _RunFile(_Folding, logging.FileHandler):
    """A log file whose lines are on disk at once.

    Decisions are an exception: there are many, so they are written out at most once a second.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self._flushed_s = 0.0
        self._is_decision = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self._is_decision = record.name == DECISIONS.name
        super().emit(record)

    def flush(self) -> None:
        """Write out what is buffered, unless it can wait."""
        now_s = time.monotonic()
        if not self._is_decision or now_s - self._flushed_s >= 1.0:
            self._flushed_s = now_s
            super().flush()

    def close(self) -> None:
        """Close the file; lines that a full disk does not take are lost."""
        with suppress(OSError):
            super().close()


@contextmanager
def terminal_log(*, scrolling: bool = False) -> Iterator[None]:
    """Show the log on the terminal until the block ends; every decision too where it is to scroll."""
    terminal = TqdmHandler()
    terminal.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    if not scrolling:
        terminal.addFilter(lambda record: record.name != DECISIONS.name or record.levelno >= logging.WARNING)
    with _logging_to(terminal):
        yield


@contextmanager
def file_log(stem: str, directory: Path) -> Iterator[Path]:
    """Log to directory/<stem>.log until the block ends; yields the file's path."""
    path = unused_path(made_dir(directory), stem, ".log")
    try:
        file = _RunFile(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    file.setFormatter(logging.Formatter(_FORMAT))
    with _logging_to(file):
        yield path


@contextmanager
def run_log(name: str, directory: Path) -> Iterator[Path]:
    """Log to the terminal and to directory/<name>_<time>.log until the block ends; yields the file's path."""
    with terminal_log(), file_log(f"{name}_{stamp()}", directory) as path:
        yield path


@contextmanager
def _logging_to(handler: logging.Handler) -> Iterator[None]:
    level = LOG.level
    LOG.setLevel(logging.INFO)
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)
        handler.close()


class Rate:
    """Events a second over the last ten seconds; `clock` gives seconds."""

    def __init__(self, window_s: float = _RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, int]] = deque()
        self._started_s: float | None = None

    def add(self, now_s: float, count: int = 1) -> None:
        """Count events at a time that does not go back."""
        if self._started_s is None:
            self._started_s = now_s
        self._points.append((now_s, count))
        self._forget(now_s)

    def per_s(self, now_s: float) -> float:
        """Return the rate, over the last `window_s` seconds.

        While less time than that has passed since the first event, it is the rate over that time.
        """
        self._forget(now_s)
        if self._started_s is None:
            return 0.0
        span = min(self._window_s, now_s - self._started_s)
        return sum(count for _, count in self._points) / span if span > 0 else 0.0

    def _forget(self, now_s: float) -> None:
        while self._points and self._points[0][0] < now_s - self._window_s:
            self._points.popleft()


class Bar:
    """A progress bar of decisions, with facts behind it.

    A bar that is not enabled does nothing, so that callers need not ask.
    """

    def __init__(self, description: str, *, enabled: bool, total: int | None = None, unit: str = "pod") -> None:
        self._bar = progress_bar(description, total, unit, enabled=enabled)
        self._shown_s = 0.0

    def advance(self, count: int = 1, **facts: float | str) -> None:
        """Go on by `count`. The `facts` stand behind the bar and are refreshed a few times a second."""
        now_s = time.monotonic()
        if not self._bar.disable and now_s - self._shown_s > _REFRESH_S:
            self._shown_s = now_s
            self._bar.set_postfix(ordered_dict=dict(facts), refresh=False)
        self._bar.update(count)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
