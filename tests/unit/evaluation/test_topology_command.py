"""The topology command: labelled lists, a picture of the graph, one line for mistakes."""

from pathlib import Path

import pytest

from aaml.cli import run
from aaml.cluster.state import ClusterState
from aaml.cluster.topology import rack_graph
from aaml.workload.traces import load_nodes


def test_labels_are_written_read_back_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node_list.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{i},1000,10,0,\n" for i in range(5))
    )
    picture = tmp_path / "t.png"
    assert run("trace topology", [f"--data-dir={tmp_path}", "--servers-per-rack=2", f"--picture={picture}"]) == 0
    assert "node_list-hier.csv" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    nodes = load_nodes(tmp_path / "node_list-hier.csv")
    assert [node.labels["rack"] for node in nodes] == ["rack-0", "rack-0", "rack-1", "rack-1", "rack-2"]
    assert rack_graph(ClusterState(nodes)).hubs == ("control-plane", "rack:rack-0", "rack:rack-1", "rack:rack-2")


def test_mistakes_end_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace topology", ["--data-dir", str(tmp_path)]) == 2
    assert run("trace topology", ["--data-dir", str(tmp_path), "--picture", "x.bmp"]) == 2
    assert "ends in .png or .svg" in capsys.readouterr().err
