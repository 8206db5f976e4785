"""Files are written whole or not at all; what is written line by line is on disk at once."""

import json
from pathlib import Path

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.files import JsonLines, RowWriter, append_row, write_json, write_text, write_whole


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "facts.json"
    write_json(path, {"a": 1})

    def fails(file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        write_whole(path, fails)
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(path.parent.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_one_line_that_names_the_field(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^out .*/file/x\.txt: cannot be written: ") as error:
        write_text(tmp_path / "file" / "x.txt", "text", field="out")
    assert "\n" not in str(error.value)


def test_others_may_read_a_file_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    for mode in (0o644, 0o600):
        write_text(tmp_path / "x", "text", mode=mode)
        assert (tmp_path / "x").stat().st_mode & 0o777 == mode


def test_json_lines_go_on_and_hold_what_numpy_computes(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "log.jsonl"
    for content in ({"mean": np.float64(0.5), "row": np.arange(2)}, {"mean": float("nan")}):
        lines = JsonLines(path)
        lines.add(content)
        lines.close()
    assert path.read_text() == '{"mean":0.5,"row":[0,1]}\n{"mean":null}\n'


def test_rows_are_on_disk_as_soon_as_they_are_written(tmp_path: Path) -> None:
    rows = RowWriter(tmp_path / "deep" / "out.csv", ["a", "b"])
    rows.add({"b": "x, y", "a": 1})
    assert rows.path.read_text() == 'a,b\n1,"x, y"\n'
    rows.close()


def test_rows_are_appended_to_a_file_with_the_same_columns_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.csv"
    append_row(path, {"a": 1, "b": 2})
    append_row(path, {"b": 4, "a": 3})
    assert path.read_text() == "a,b\n1,2\n3,4\n"
    with pytest.raises(UserError, match=r"results\.csv: has other columns than this run \(c\)"):
        append_row(path, {"a": 1, "b": 2, "c": 3})
