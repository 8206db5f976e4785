"""What a run records is what TensorBoard and a reader of the JSON lines get."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util

from aaml.scheduling.curves import TRAINING_LAYOUT, VALIDATION_SCORE, validation_metric
from aaml.scheduling.ports import RunWriter
from aaml.sim.metrics import METRICS
from aaml.telemetry.console import DECISIONS, file_log
from aaml.telemetry.event_file import TensorBoardWriter
from aaml.telemetry.writers import JsonLinesWriter, Lenient, RunWriters
from support.limits import largest_file


@pytest.fixture
def read():
    def _read(directory):
        events = EventAccumulator(str(directory), size_guidance={"tensors": 0, "images": 0})
        events.Reload()
        return events

    return _read


def test_scalars_come_back_with_their_steps(tmp_path, read):
    writer = TensorBoardWriter(tmp_path / "dqn_first")
    for step, value in ((1, 0.5), (2, -3.25)):
        writer.scalar("1. CSR", value, step)
    writer.close()
    points = read(tmp_path / "dqn_first").Tensors("1. CSR")
    assert [(point.step, float(tensor_util.make_ndarray(point.tensor_proto))) for point in points] == [
        (1, 0.5),
        (2, -3.25),
    ]


def test_a_histogram_counts_each_value_once(tmp_path, read):
    writer = TensorBoardWriter(tmp_path)
    writer.histogram("4. Actions", [0.0, 0.0, 9.0], 7)
    writer.close()
    (point,) = read(tmp_path).Tensors("4. Actions")
    buckets = tensor_util.make_ndarray(point.tensor_proto)  # [30, 3]: left edge, right edge, count
    assert point.step == 7
    assert buckets[0, 2] == 2
    assert buckets[-1, 2] == 1
    assert buckets[:, 2].sum() == 3


def test_the_layout_groups_curves(tmp_path, read):
    writer = TensorBoardWriter(tmp_path)
    writer.layout(
        {
            "Scheduling": {"reward": ["1. CSR"], "difference": ("mean", "low", "high")},
            "Learning": {"actor and critic": ["Actor", "Critic"]},
        }
    )
    for step in range(3):
        writer.scalar("mean", 0.5, step)
        writer.scalar("1. CSR", 0.5, step)
    writer.close()
    point = read(tmp_path).Tensors("custom_scalars__config__")[-1]
    layout = layout_pb2.Layout.FromString(tensor_util.make_ndarray(point.tensor_proto).item())
    assert [category.title for category in layout.category] == ["Scheduling"], "there is no curve of the other"
    assert list(layout.category[0].chart[0].multiline.tag) == ["1. CSR"]
    (band,) = layout.category[0].chart[1].margin.series
    assert (band.value, band.lower, band.upper) == ("mean", "low", "high")


def test_the_score_of_the_validation_and_its_metric_have_a_chart_each():
    names = [VALIDATION_SCORE, *(validation_metric(metric) for metric in METRICS)]
    charts = [
        {name for name in names if any(re.fullmatch(pattern, name) for pattern in patterns)}
        for members in TRAINING_LAYOUT.values()
        for patterns in members.values()
    ]
    shown = [chart for chart in charts if chart]
    assert shown == [{VALIDATION_SCORE}, {validation_metric(metric) for metric in METRICS}]


def test_hyperparameters_come_back(tmp_path, read):
    writer = TensorBoardWriter(tmp_path)
    writer.hyperparameters({"gamma": 0.99, "hidden_size": 32, "optimizer": "Adam"}, ["1. CSR"])
    writer.close()
    metadata = read(tmp_path).SummaryMetadata("_hparams_/session_start_info")
    values = plugin_data_pb2.HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info.hparams
    assert values["gamma"].number_value == 0.99
    assert values["hidden_size"].number_value == 32
    assert values["optimizer"].string_value == "Adam"


def test_an_image_comes_back_byte_for_byte(tmp_path, read):
    writer = TensorBoardWriter(tmp_path)
    writer.image("cluster", b"\x89PNG...", width=3, height=2)
    writer.close()
    (picture,) = read(tmp_path).Images("cluster")
    assert (picture.encoded_image_string, picture.width, picture.height) == (b"\x89PNG...", 3, 2)


def test_writing_curves_imports_neither_torch_nor_tensorflow(tmp_path):
    code = (
        "import sys; from pathlib import Path; from aaml.telemetry.event_file import TensorBoardWriter;"
        f"r = TensorBoardWriter(Path({str(tmp_path)!r})); r.scalar('a', 1.0, 1); r.close();"
        "sys.exit(bool({'torch', 'tensorflow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_json_lines_are_valid_json_whatever_the_numbers(tmp_path):
    writer = JsonLinesWriter(tmp_path / "deep" / "run.jsonl")
    writer.scalar("loss", float("nan"), 1)
    writer.event("decision", {"row": np.int64(3), "values": np.array([1.5, 2.5]), "where": tmp_path})
    writer.histogram("4. Actions", np.array([1, 2]), 2)
    writer.close()
    lines = [json.loads(line) for line in (tmp_path / "deep" / "run.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["scalar", "decision", "histogram"]
    assert lines[0]["value"] is None
    assert lines[1]["row"] == 3
    assert lines[1]["values"] == [1.5, 2.5]
    assert lines[1]["where"] == str(tmp_path)
    assert lines[2]["values"] == [1.0, 2.0]


def test_several_writers_all_get_everything(tmp_path):
    first, second = JsonLinesWriter(tmp_path / "1"), JsonLinesWriter(tmp_path / "2")
    both = RunWriters(first, second)
    both.scalar("x", 1.0, 1)
    both.event("e", {})
    both.histogram("h", [1.0], 1)
    both.close()
    assert [json.loads(line)["kind"] for line in (tmp_path / "2").read_text().splitlines()] == [
        "scalar",
        "e",
        "histogram",
    ]
    assert len((tmp_path / "1").read_text().splitlines()) == 3


def test_on_a_full_disk_records_are_left_out_until_there_is_room_and_every_line_stays_whole(tmp_path):
    """The file may grow to 4 KiB, as on a disk with one block left, and then as far as it likes."""
    path = tmp_path / "run.jsonl"
    program = (
        "import logging, resource, sys; from pathlib import Path\n"
        "from aaml.telemetry.writers import JsonLinesWriter, Lenient\n"
        "logging.basicConfig(level=logging.INFO, format='%(message)s')\n"
        "writer = Lenient(JsonLinesWriter(Path(sys.argv[1])), 'lines')\n"
        "most = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "for size in (4096, most[0]):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most[1]))\n"
        "    for number in range(1000):\n"
        "        writer.event('bind', {'pod': number})\n"
        "writer.close()"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True)
    first, second = done.stderr.splitlines()
    assert first == "lines cannot be written (File too large): left out until they can"
    assert second == "lines can be written again"
    pods = [json.loads(line)["pod"] for line in path.read_text().splitlines()]
    assert pods[-1000:] == list(range(1000))
    assert pods[0] == 0


def test_a_writer_that_fails_for_good_is_told_of_once(caplog):
    class Broken(RunWriter):
        def scalar(self, name, value, step):
            raise OSError(28, "No space left on device")

    writer = Lenient(Broken(), "curves")
    for step in range(3):
        writer.scalar("1. CSR", 0.5, step)
    writer.close()
    assert caplog.messages == ["curves cannot be written (No space left on device): left out until they can"]


def test_a_log_that_a_full_disk_does_not_take_ends_nothing(tmp_path):
    with largest_file(4096), file_log("run", tmp_path) as path:
        for number in range(300):
            DECISIONS.info("decision %d of many that are written once a second", number)
    assert path.stat().st_size <= 4096
