"""TensorBoard's event files where they cannot be written."""

import errno
import threading

import pytest

from aaml.cli import quiet_where_told
from aaml.telemetry.event_file import TensorBoardWriter


def test_a_full_disk_names_the_folder(tmp_path, monkeypatch):
    writer = TensorBoardWriter(tmp_path / "curves")

    def full(_event):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer._writer, "add_event", full)
    with pytest.raises(OSError, match="No space left") as raised:
        writer.scalar("loss", 1.0, 0)
    assert raised.value.filename == str(tmp_path / "curves")


def test_and_its_threads_traceback_is_left_out_but_no_others(capsys):
    for error, told in ((OSError(errno.ENOSPC, "No space left on device"), ""), (ValueError("odd"), "ValueError: odd")):
        quiet_where_told(threading.ExceptHookArgs((type(error), error, None, None)))
        said = capsys.readouterr().err
        assert told in said
        assert bool(told) == bool(said)
