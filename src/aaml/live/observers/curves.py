"""A run's curves in TensorBoard, and every decision and bind as a JSON line."""

import time
from collections.abc import Mapping
from math import inf
from pathlib import Path

from aaml.cluster.metrics import use_of_nodes
from aaml.scheduling.curves import CLUSTER_VARIANCE, CUMULATIVE_REWARD, SCHEDULING_LAYOUT
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Decision, Outcome
from aaml.telemetry.curves import Curves
from aaml.telemetry.event_file import TensorBoardWriter
from aaml.telemetry.run_tail import CLUSTER
from aaml.telemetry.timelapse import Timelapse
from aaml.telemetry.writers import JsonLinesWriter, Lenient, RunWriters, Scalar

_PICTURE_EVERY, _PICTURE_EVERY_S = 300, 10.0  # decisions and seconds, at least: at 1,000 nodes drawing takes 60 ms


class CurveFiles(Curves):
    """Writes event files for TensorBoard to the folder `curves`, and decisions and binds to the file `events`.

    `parameters` describe the run on TensorBoard's page of hyperparameters; `cluster` is written as the first event.
    Where the disk is full scheduling goes on: the JSON lines continue once there is space, TensorBoard's curves end.
    """

    def __init__(self, curves: Path, events: Path, parameters: Mapping[str, Scalar], cluster: str) -> None:
        board = TensorBoardWriter(curves)
        board.layout(SCHEDULING_LAYOUT)
        board.hyperparameters(parameters, [CUMULATIVE_REWARD, CLUSTER_VARIANCE])
        self._board, self._lenient = board, Lenient(board, "curves for TensorBoard")
        super().__init__(RunWriters(self._lenient, Lenient(JsonLinesWriter(events), str(events))))
        self._writer.event(CLUSTER, {"where": cluster})
        self._lapse = Timelapse()
        self._next_step, self._next_s = _PICTURE_EVERY, -inf

    def on_decision(self, context: Context, decision: Decision, outcome: Outcome) -> None:
        """Record one decision."""
        super().on_decision(context, decision, outcome)
        self._lapse.see(lambda: use_of_nodes(context.state))
        if self.step >= self._next_step and time.monotonic() >= self._next_s:
            self._picture()
            self._next_step, self._next_s = self.step + _PICTURE_EVERY, time.monotonic() + _PICTURE_EVERY_S

    def on_learned(self, scalars: Mapping[str, float], step: int) -> None:
        """Record what an update told, except the cumulative reward, which `Curves` has for every decision."""
        for name, value in scalars.items():
            if name != CUMULATIVE_REWARD:
                self._writer.scalar(name, float(value), step)

    def close(self) -> None:
        """Write out what is buffered."""
        super().close()
        self._picture()
        self._writer.close()

    def _picture(self) -> None:
        """Show what the cluster looked like since the last picture."""
        self._lenient.attempt(lambda: self._board.timelapse(self._lapse, self.step))
        self._lapse.forget()
