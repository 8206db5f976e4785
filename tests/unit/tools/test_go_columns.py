"""The plugin's columns are those of the lists in Python."""

from go_columns import GO, constant, source


def test_the_plugins_columns_are_written_from_the_lists_of_features() -> None:
    assert GO.read_text(encoding="utf-8") == source(), "run: python tools/plugin/go_columns.py"


def test_a_columns_name_in_go() -> None:
    assert constant("node", "cpu_used_minus_mean") == "nodeCPUUsedMinusMean"
