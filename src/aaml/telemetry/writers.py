"""Writers of a run's curves and events: TensorBoard files, JSON lines, several places at once, or nowhere."""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aaml.files import JsonLines
from aaml.scheduling.curves import Layout
from aaml.scheduling.ports import RunWriter
from aaml.telemetry.timelapse import Timelapse

_LOG = logging.getLogger("aaml")
FLUSH_S = 2.0  # TensorBoard looks every few seconds; a killed run loses no more than this

Scalar = bool | int | float | str


class NullWriter:
    """Writes nothing. Writers that care for a part of what there is to write derive from it."""

    def scalar(self, name: str, value: float, step: int) -> None:
        """Record one point of a curve."""

    def histogram(self, name: str, values: npt.NDArray[np.float64] | Sequence[float], step: int) -> None:
        """Record a distribution."""

    def event(self, kind: str, fields: Mapping[str, object]) -> None:
        """Record a structured event."""

    def close(self) -> None:
        """Flush and close."""


class RunWriters:
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


class Lenient:
    """Hands everything on to a writer and leaves out what it cannot write: a full disk must not end what is recorded.

    That is told once, as is the first time that it works again.
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
        except OSError as error:
            self._failed(error)

    def attempt(self, write: Callable[[], object]) -> None:
        """Write, or tell why not."""
        try:
            write()
        except OSError as error:
            self._failed(error)
        else:
            if not self._works:
                _LOG.info("%s can be written again", self._what)
            self._works = True

    def _failed(self, error: OSError) -> None:
        if self._works:
            _LOG.warning("%s cannot be written (%s): left out until they can", self._what, error.strerror or error)
        self._works = False


class JsonLinesWriter:
    """One JSON object a line: {"time": unix seconds, "kind": ..., ...}; scalars and histograms too.

    A number that JSON cannot write (NaN, infinity) becomes null.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = JsonLines(path)

    def scalar(self, name: str, value: float, step: int) -> None:
        """Write {"kind": "scalar", "name", "value", "step"}."""
        self.event("scalar", {"name": name, "value": float(value), "step": step})

    def histogram(self, name: str, values: npt.NDArray[np.float64] | Sequence[float], step: int) -> None:
        """Write {"kind": "histogram", "name", "values", "step"}."""
        self.event("histogram", {"name": name, "values": np.asarray(values, dtype=float).tolist(), "step": step})

    def event(self, kind: str, fields: Mapping[str, object]) -> None:
        """Write one line."""
        self._lines.write({"time": time.time(), "kind": kind, **fields})

    def flush(self) -> None:
        """Write out what is buffered."""
        self._lines.flush()

    def close(self) -> None:
        """Write out what is buffered and close the file."""
        self._lines.close()


class TensorBoardWriter(NullWriter):
    """Writes a run's event file with TensorBoard's own writer (no torch, no TensorFlow).

    Events of the `event` kind have no place in TensorBoard and are left out; see `JsonLinesWriter`.
    """

    def __init__(self, directory: Path, *, flush_s: float = FLUSH_S) -> None:
        from tensorboard.plugins.scalar import metadata  # most of a second
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._writer = EventFileWriter(str(directory), max_queue_size=1000, flush_secs=flush_s)
        self._of_scalars = metadata.create_summary_metadata(display_name=None, description=None)
        self._charts: Layout = {}
        self._curves: set[str] = set()

    def scalar(self, name: str, value: float, step: int) -> None:
        """Add one point to a curve."""
        from tensorboard.compat.proto import summary_pb2, tensor_pb2, types_pb2

        # What `summary_v2.scalar_pb` makes takes three times as long, and a live run begins with two points a decision.
        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, tensor_shape={}, float_val=[value])
        point = summary_pb2.Summary.Value(tag=name, tensor=tensor, metadata=self._of_scalars)
        self._add(summary_pb2.Summary(value=[point]), step)
        if name not in self._curves:
            self._curves.add(name)
            self._lay_out(step)

    def histogram(self, name: str, values: npt.NDArray[np.float64] | Sequence[float], step: int) -> None:
        """Add a distribution; TensorBoard shows it in 30 buckets of equal width."""
        from tensorboard.plugins.histogram import summary_v2

        self._add(summary_v2.histogram_pb(name, values), step)

    def image(self, name: str, png: bytes, *, width: int, height: int, step: int = 0) -> None:
        """Add a picture, given as the bytes of a PNG file."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        picture = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=png)
        self._add(Summary(value=[Summary.Value(tag=name, image=picture)]), step)

    def graph(self, graph_def: bytes) -> None:
        """Show a graph of computation, given as a serialised `GraphDef`."""
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), graph_def=graph_def))

    def timelapse(self, lapse: Timelapse, step: int) -> None:
        """Add the pictures of what a cluster looked like."""
        for resource, picture in lapse.pictures().items():
            name = f"Cluster/{resource} of nodes (rows) over time"
            self.image(name, picture.png, width=picture.width, height=picture.height, step=step)

    def layout(self, charts: Layout) -> None:
        """Arrange TensorBoard's custom-scalars page: a chart of curves, or of one curve in its interval.

        A chart is there once there is one of its curves, so that no agent has the empty charts of another.
        """
        self._charts = charts

    def _lay_out(self, step: int) -> None:
        from tensorboard.compat.proto import tensor_pb2, types_pb2
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.custom_scalar import layout_pb2, metadata

        def band(tags: tuple[str, str, str]) -> layout_pb2.MarginChartContent:
            value, lower, upper = tags
            series = layout_pb2.MarginChartContent.Series(value=value, lower=lower, upper=upper)
            return layout_pb2.MarginChartContent(series=[series])

        shown = {
            category: {
                title: tags
                for title, tags in members.items()
                if any(re.fullmatch(tag, name) for tag in tags for name in self._curves)
            }
            for category, members in self._charts.items()
        }
        if not any(shown.values()):
            return
        layout = layout_pb2.Layout(
            category=[
                layout_pb2.Category(
                    title=category,
                    chart=[
                        layout_pb2.Chart(title=title, margin=band(tags))
                        if isinstance(tags, tuple)
                        else layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=tags))
                        for title, tags in members.items()
                    ],
                )
                for category, members in shown.items()
                if members
            ]
        )
        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[layout.SerializeToString()])
        value = Summary.Value(
            tag=metadata.CONFIG_SUMMARY_TAG, tensor=tensor, metadata=metadata.create_summary_metadata()
        )
        self._add(Summary(value=[value]), step)

    def hyperparameters(
        self, values: Mapping[str, Scalar], metrics: Sequence[str] = (), run: Path | None = None
    ) -> None:
        """Describe the run for TensorBoard's HPARAMS page; `metrics` are names of curves to compare runs by.

        `run` is the run's folder where that is not this one. Its name comes first: the page cuts what is long.
        """
        from tensorboard.plugins.hparams import summary_v2

        folder = (run or self.directory).resolve()
        parameters = [summary_v2.HParam(name) for name in values]
        config = summary_v2.hparams_config_pb(hparams=parameters, metrics=[summary_v2.Metric(name) for name in metrics])
        self._add(config, 0)
        self._add(summary_v2.hparams_pb(dict(values), trial_id=f"{folder.name} in {folder.parent}"), 0)

    def flush(self) -> None:
        """Write out what is queued."""
        self._writer.flush()

    def close(self) -> None:
        """Write out what is queued and close the file."""
        self._writer.close()

    def _add(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
