"""Rack and server labels: where they land, what stays, and that a second run changes nothing."""

from pathlib import Path

import pytest
import yaml

from aaml.errors import UserError
from aaml.workload.hierarchy import label_csv, make_hierarchical, rack_and_server, read_documents

NODES = """apiVersion: v1
kind: Node
metadata: {name: a}
---
apiVersion: v1
kind: Node
metadata: {name: b, labels: {rack: mine}}
---
apiVersion: v1
kind: Node
metadata: {name: c}
"""
PODS = """apiVersion: v1
kind: PodList
items:
- metadata: {name: p}
  spec: {containers: [{name: c}]}
"""


def folder(tmp_path: Path) -> Path:
    trace = tmp_path / "openb_pod_list_default"
    trace.mkdir()
    (trace / "nodes.yaml").write_text(NODES)
    (trace / "pods.yaml").write_text(PODS)
    return trace


def test_racks_are_filled_in_node_order_and_labels_that_exist_stay(tmp_path: Path) -> None:
    trace = folder(tmp_path)
    make_hierarchical(tmp_path, 2, "mine-scheduler")
    labels = [d["metadata"]["labels"] for d in yaml.safe_load_all((trace / "nodes-hier.yaml").read_text())]
    assert labels == [
        {"rack": "rack-0", "server": "srv-0"},
        {"rack": "mine", "server": "srv-1"},
        {"rack": "rack-1", "server": "srv-0"},
    ]
    (pod,) = read_documents(trace / "pods-hier.yaml")
    assert pod["spec"]["schedulerName"] == "mine-scheduler"
    assert (trace / "nodes.yaml").read_text() == NODES


def test_a_second_run_gives_the_same_files(tmp_path: Path) -> None:
    trace = folder(tmp_path)
    first = make_hierarchical(tmp_path, 2)
    contents = [path.read_text() for path in first]
    assert make_hierarchical(tmp_path, 2) == first
    assert [path.read_text() for path in first] == contents
    assert len(list(trace.iterdir())) == 4


def test_csv_node_lists_get_two_columns() -> None:
    assert label_csv("sn,gpu\na,2\nb,0\nc,8\n", 2) == (
        "sn,gpu,rack,server\na,2,rack-0,srv-0\nb,0,rack-0,srv-1\nc,8,rack-1,srv-0\n"
    )
    assert rack_and_server(9, 4) == {"rack": "rack-2", "server": "srv-1"}


@pytest.mark.parametrize(("per_rack", "words"), [(0, "servers-per-rack: 0"), (4, "holds no YAML")])
def test_mistakes_get_one_line(tmp_path: Path, per_rack: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_hierarchical(tmp_path, per_rack)


def test_bad_yaml_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("kind: Node\nmetadata: {name: [}\n")
    with pytest.raises(UserError, match=r"bad\.yaml line 2: not readable as YAML"):
        read_documents(path)
    path.write_text("- just\n- a list\n")
    with pytest.raises(UserError, match="document 0: list"):
        read_documents(path)
