"""`aaml cluster up` with an autoscaler: what is refused before anything is started, and what Karpenter may launch."""

from pathlib import Path

import pytest

from aaml.cli import run
from aaml.commands.cluster.autoscaler import pool_and_types
from aaml.errors import UserError


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--instance-types", "types.json"], "instance_types: is for an autoscaler; add --autoscaler karpenter"),
        (["--nodepool", "pool.yaml"], "nodepool: is for an autoscaler; add --autoscaler karpenter"),
        (["--autoscaler", "karpenter", "--runtime", "docker"], "autoscaler: karpenter needs --runtime binary"),
        (["--autoscaler", "karpenter", "--instance-types", "none.json"], "instance types: 'none.json' is not accepted"),
        (["--autoscaler", "karpenter", "--nodepool", "none.yaml"], "nodepool: 'none.yaml' is not accepted"),
    ],
)
def test_a_mistake_is_one_line(
    flags: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AAML_STATE", str(tmp_path / "state"))
    assert run("cluster", ["up", *flags]) == 2
    said = capsys.readouterr().err.strip()
    assert line in said
    assert "\n" not in said
    assert not (tmp_path / "state").exists()


def node_pool(folder: Path, key: str, value: str) -> Path:
    path = folder / "pool.yaml"
    requirement = f"{{key: {key}, operator: In, values: [{value}]}}"
    path.write_text(
        "{apiVersion: karpenter.sh/v1, kind: NodePool, spec: {template: {spec: {requirements: [" + requirement + "]}}}}"
    )
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [("karpenter.sh/capacity-type", "on-demand"), ("node.kubernetes.io/instance-type", "compute-2")],
)
def test_karpenter_is_told_of_offerings_that_its_first_node_pool_does_not_allow(
    key: str, value: str, tmp_path: Path
) -> None:
    _, types = pool_and_types(node_pool(tmp_path, key, value), None)
    assert {way.capacity_type for kind in types.types for way in kind.offerings} == {"spot", "on-demand"}
    assert {"compute-2", "compute-32"} <= {kind.name for kind in types.types}


def test_a_node_pool_that_allows_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"requirement on node\.kubernetes\.io/instance-type: 'huge' is not accepted"):
        pool_and_types(node_pool(tmp_path, "node.kubernetes.io/instance-type", "huge"), None)
