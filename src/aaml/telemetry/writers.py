"""Writers of a run's curves and events: JSON lines, several places at once, or nowhere. TensorBoard's: `event_file`."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from aaml.errors import UserError
from aaml.files import JsonLines
from aaml.scheduling.ports import RunWriter

_LOG = logging.getLogger("aaml")

Scalar = bool | int | float | str


class RunWriters(RunWriter):
    """Hands everything on to several writers."""

    def __init__(self, *writers: RunWriter) -> None:
        self._writers = writers

    def scalar(self, name: str, value: float, step: int) -> None:
        """Record one point of a curve everywhere."""
        for writer in self._writers:
            writer.scalar(name, value, step)

    def histogram(self, name: str, values: npt.NDArray[np.float64] | Sequence[float], step: int) -> None:
        """Record a distribution everywhere."""
        for writer in self._writers:
            writer.histogram(name, values, step)

    def event(self, kind: str, fields: Mapping[str, object]) -> None:
        """Record a structured event everywhere."""
        for writer in self._writers:
            writer.event(kind, fields)

    def close(self) -> None:
        """Close every writer."""
        for writer in self._writers:
            writer.close()


class Lenient(RunWriter):
    """Passes everything to a writer and drops what cannot be written, so that a full disk does not end a run.

    The first failure is logged, and the first success after it.
    """

    def __init__(self, writer: RunWriter, what: str) -> None:
        self._writer, self._what = writer, what
        self._works = True

    def scalar(self, name: str, value: float, step: int) -> None:
        """Record one point of a curve."""
        self.attempt(lambda: self._writer.scalar(name, value, step))

    def histogram(self, name: str, values: npt.NDArray[np.float64] | Sequence[float], step: int) -> None:
        """Record a distribution."""
        self.attempt(lambda: self._writer.histogram(name, values, step))

    def event(self, kind: str, fields: Mapping[str, object]) -> None:
        """Record a structured event."""
        self.attempt(lambda: self._writer.event(kind, fields))

    def close(self) -> None:
        """Flush and close."""
        try:
            self._writer.close()  # it may do so in silence after a write that failed
        except (OSError, UserError) as error:
            self._failed(error)

    def attempt(self, write: Callable[[], object]) -> None:
        """Write, or log why it fails."""
        try:
            write()
        except (OSError, UserError) as error:
            self._failed(error)
        else:
            if not self._works:
                _LOG.info("%s can be written again", self._what)
            self._works = True

    def _failed(self, error: OSError | UserError) -> None:
        if self._works:
            reason = error.strerror if isinstance(error, OSError) else str(error).rpartition(": ")[2]
            _LOG.warning("%s cannot be written (%s): left out until they can", self._what, reason or error)
        self._works = False


class JsonLinesWriter(JsonLines, RunWriter):
    """One JSON object a line: {"time": unix seconds, "kind": ..., ...}; scalars and histograms too.

    A number that JSON cannot write (NaN, infinity) becomes null.
    """

    def scalar(self, name: str, value: float, step: int) -> None:
        """Write {"kind": "scalar", "name", "value", "step"}."""
        self.event("scalar", {"name": name, "value": float(value), "step": step})

    def histogram(self, name: str, values: npt.NDArray[np.float64] | Sequence[float], step: int) -> None:
        """Write {"kind": "histogram", "name", "values", "step"}."""
        self.event("histogram", {"name": name, "values": np.asarray(values, dtype=float).tolist(), "step": step})

    def event(self, kind: str, fields: Mapping[str, object]) -> None:
        """Write one line."""
        self.add({"time": time.time(), "kind": kind, **fields})
