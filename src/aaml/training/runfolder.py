"""A run's folder, written: config.json, metrics.jsonl, tensorboard/, model/, resume.pt."""

import io
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import image as images

from aaml.errors import UserError
from aaml.evaluation.zoo import model_file
from aaml.files import write_bytes, write_json
from aaml.learning.checkpoint import read_tensors, write_atomically
from aaml.outputs import output_folder
from aaml.scheduling.curves import ACTIONS, TRAINING_LAYOUT, VALIDATION_SCORE
from aaml.telemetry.event_file import TensorBoardWriter
from aaml.telemetry.provenance import command, provenance
from aaml.telemetry.timelapse import Timelapse
from aaml.telemetry.writers import JsonLinesWriter, RunWriters
from aaml.training.records import CONFIG, METRICS, RESUME, read_config


class RunFolder:
    """Where a run writes, alone until `close`; `writer` takes its curves.

    Raises `UserError` where another process writes there.
    """

    def __init__(self, path: Path, stem: str) -> None:
        self.path = path
        self.stem = stem
        self.models = path / "model"
        with ExitStack() as stack:
            stack.enter_context(output_folder(path))
            self._board = TensorBoardWriter(path / "tensorboard")
            self._board.layout(TRAINING_LAYOUT)
            self._lines = JsonLinesWriter(path / METRICS)
            self.writer = RunWriters(self._board, self._lines)
            stack.callback(self.writer.close)
            self._held = stack.pop_all()

    @classmethod
    def create(
        cls, path: Path, stem: str, config: Mapping[str, Any], hyperparameters: Mapping[str, bool | int | float | str]
    ) -> "RunFolder":
        """Make a folder and write what the run is made of."""
        facts = {"stem": stem, **config, "command": command(), **provenance()}
        folder = cls(path, stem)
        with ExitStack() as stack:
            stack.callback(folder.close)
            if read_config(path) is not None:
                raise UserError(f"out: {path} holds a run that was begun at this moment; choose another folder")
            write_json(path / CONFIG, facts, indent=2, field="out")
            folder._board.hyperparameters(dict(hyperparameters), [VALIDATION_SCORE], path)
            stack.pop_all()
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open a folder that is there; lines of metrics after its last save are dropped, for they come again."""
        config = read_config(path)
        if config is None:
            raise UserError(f"out: {path} holds no run ({CONFIG} is missing)")
        folder = cls(path, config["stem"])
        try:
            saved = folder.read_resume()
        except UserError:
            folder.close()
            raise
        with (path / METRICS).open("r+b") as file:  # which may have been cut off, and is not to be filled up
            file.truncate(min(file.seek(0, os.SEEK_END), 0 if saved is None else int(saved["metrics_bytes"])))
        return folder

    def model_path(self) -> Path:
        """Return the model file (of an actor and its critic, the actor). Raises `UserError` when there is none yet."""
        if (path := model_file(self.path)) == self.path:
            raise UserError(f"{self.models}: holds no model yet")
        return path

    def write_resume(self, state: Mapping[str, Any]) -> None:
        """Save what the run goes on from."""
        self.flush()
        size = (self.path / METRICS).stat().st_size
        write_atomically(self.path / RESUME, {**state, "metrics_bytes": size})

    def read_resume(self) -> dict[str, Any] | None:
        """Return what `write_resume` saved, None when nothing was."""
        path = self.path / RESUME
        if not path.exists():
            return None
        state = read_tensors(path)
        if not isinstance(state, dict) or "metrics_bytes" not in state:
            raise UserError(f"{path}: is not the state of a training run")
        return state

    def picture(self, image: npt.NDArray[np.uint8], step: int) -> None:
        """Keep a picture [H, W, 3] as placement.png and in TensorBoard."""
        buffer = io.BytesIO()
        images.imsave(buffer, image, format="png")
        write_bytes(self.path / "placement.png", buffer.getvalue(), field="out")
        height, width = image.shape[:2]
        self._board.image("Placement", buffer.getvalue(), width=width, height=height, step=step)

    def show(self, chosen: Sequence[int], lapse: Timelapse, step: int) -> None:
        """Show in TensorBoard which nodes validation's episodes chose, and what the first of them looked like."""
        if chosen:
            self._board.histogram(ACTIONS, [float(node_index) for node_index in chosen], step)
        self._board.timelapse(lapse, step)

    def graph(self, graph_def: bytes) -> None:
        """Show a network in TensorBoard."""
        self._board.graph(graph_def)

    def flush(self) -> None:
        """Write out what is buffered."""
        self._lines.flush()
        self._board.flush()

    def close(self) -> None:
        """Write out, close the writers and leave the folder to others."""
        self._held.close()
