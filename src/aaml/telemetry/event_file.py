"""A run's event file for TensorBoard, by TensorBoard's own writer: curves, distributions, pictures, layout, settings.

The library takes long to import: who makes a writer imports this module then.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto import tensor_pb2, types_pb2
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as layouts
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.plugins.scalar import metadata as scalars
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from aaml.folders import made_dir
from aaml.scheduling.curves import Layout
from aaml.scheduling.ports import RunWriter
from aaml.telemetry.timelapse import Timelapse
from aaml.telemetry.writers import Scalar

FLUSH_S = 2.0  # TensorBoard looks every few seconds; a killed run loses no more than this


class TensorBoardWriter(RunWriter):
    """Writes a run's event file with TensorBoard's own writer (no torch, no TensorFlow).

    Events of the `event` kind have no place in TensorBoard and are left out; see `JsonLinesWriter`.
    """

    def __init__(self, directory: Path, *, flush_s: float = FLUSH_S) -> None:
        self.directory = made_dir(directory)
        self._writer = EventFileWriter(str(directory), max_queue_size=1000, flush_secs=flush_s)
        self._of_scalars = scalars.create_summary_metadata(display_name=None, description=None)
        self._charts: Layout = {}
        self._curves: set[str] = set()

    def scalar(self, name: str, value: float, step: int) -> None:
        """Add one point to a curve."""
        # What `summary_v2.scalar_pb` makes takes three times as long, and a live run begins with two points a decision.
        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, tensor_shape={}, float_val=[value])
        point = Summary.Value(tag=name, tensor=tensor, metadata=self._of_scalars)
        self._add(Summary(value=[point]), step)
        if name not in self._curves:
            self._curves.add(name)
            self._lay_out(step)

    def histogram(self, name: str, values: npt.NDArray[np.float64] | Sequence[float], step: int) -> None:
        """Add a distribution; TensorBoard shows it in 30 buckets of equal width."""
        self._add(histogram_pb(name, values), step)

    def image(self, name: str, png: bytes, *, width: int, height: int, step: int = 0) -> None:
        """Add a picture, given as the bytes of a PNG file."""
        picture = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=png)
        self._add(Summary(value=[Summary.Value(tag=name, image=picture)]), step)

    def graph(self, graph_def: bytes) -> None:
        """Show a graph of computation, given as a serialised `GraphDef`."""
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
        value = Summary.Value(tag=layouts.CONFIG_SUMMARY_TAG, tensor=tensor, metadata=layouts.create_summary_metadata())
        self._add(Summary(value=[value]), step)

    def hyperparameters(
        self, values: Mapping[str, Scalar], metrics: Sequence[str] = (), run: Path | None = None
    ) -> None:
        """Describe the run for TensorBoard's HPARAMS page; `metrics` are names of curves to compare runs by.

        `run` is the run's folder where that is not this one. Its name comes first: the page cuts what is long.
        """
        folder = (run or self.directory).resolve()
        parameters = [hparams.HParam(name) for name in values]
        config = hparams.hparams_config_pb(hparams=parameters, metrics=[hparams.Metric(name) for name in metrics])
        self._add(config, 0)
        self._add(hparams.hparams_pb(dict(values), trial_id=f"{folder.name} in {folder.parent}"), 0)

    def flush(self) -> None:
        """Write out what is queued."""
        with self._named():
            self._writer.flush()

    def close(self) -> None:
        """Write out what is queued and close the file."""
        with self._named():
            self._writer.close()

    def _add(self, summary: Any, step: int) -> None:
        with self._named():
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the folder where nothing can be written: TensorBoard's own errors name no file."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self.directory)
            raise
