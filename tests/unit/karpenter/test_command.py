"""`aaml cluster up` with an autoscaler: what is refused before anything is started."""

from pathlib import Path

import pytest

from aaml.cli import run


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
