"""A mistake in a CSV file is told with the file, the line, the column and the value."""

import pytest

from aaml.errors import UserError
from aaml.workload.table import choice, number, quantity, read_table, whole_number

COLUMNS = {"name": choice("a", "b"), "count": whole_number(1), "cpu": quantity("cpu")}


def read(tmp_path, text):
    path = tmp_path / "file.csv"
    path.write_text(text)
    return list(read_table(path, COLUMNS, {"seconds": number(0.0)}))


def test_values_are_parsed_and_optional_ones_may_be_empty(tmp_path):
    rows = read(tmp_path, "name,count,cpu,seconds,note\na,3,250m,,x\n\nb,1,2,1.5,y\n")
    assert rows == [{"name": "a", "count": 3, "cpu": 250}, {"name": "b", "count": 1, "cpu": 2000, "seconds": 1.5}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,count,cpu\na,0,1\n", ["line 2", "column count", "'0'", "at least 1"]),
        ("name,count,cpu\na,1,1\nc,1,1\n", ["line 3", "column name", "'c'", "a or b"]),
        ("name,count,cpu\na,1,much\n", ["line 2", "column cpu", "'much'", "250m"]),
        ("name,count,cpu,seconds\na,1,1,nan\n", ["line 2", "column seconds", "'nan'"]),
        ("name,count,cpu,seconds\na,1,1,-3\n", ["line 2", "column seconds", "'-3'"]),
        ("name,count\na,1\n", ["line 1", "'cpu'", "missing"]),
        ("name,name,count,cpu\na,a,1,1\n", ["line 1", "'name'", "twice"]),
        ("name,count,cpu\na,1\n", ["line 2", "2 columns", "expected 3"]),
        ("", ["line 1", "'name'", "missing", "an empty file"]),
        ('name,count,cpu\n"a,1,1\n', ["is not a CSV file"]),
    ],
)
def test_a_mistake_is_one_line_that_says_where(tmp_path, text, words):
    with pytest.raises(UserError) as error:
        read(tmp_path, text)
    message = str(error.value)
    assert "file.csv" in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_file_that_is_not_there_and_one_that_is_not_text(tmp_path):
    with pytest.raises(UserError, match=r"none\.csv: cannot be read: No such file"):
        list(read_table(tmp_path / "none.csv", COLUMNS))
    (tmp_path / "binary.csv").write_bytes(b"name,count,cpu\n\xff\xfe\n")
    with pytest.raises(UserError, match="not a CSV file in UTF-8"):
        list(read_table(tmp_path / "binary.csv", COLUMNS))
