"""`aaml cluster build --queue` and `up --queue kueue`: what is refused, and what stays in the cache."""

import re
from pathlib import Path

import pytest

from aaml.cli import run
from aaml.kube.provision.binaries import recipe_dir
from aaml.kueue import build


def test_kueue_runs_beside_plain_processes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AAML_STATE", str(tmp_path / "state"))
    assert run("cluster", ["up", "--queue", "kueue", "--runtime", "docker"]) == 2
    assert capsys.readouterr().err.strip() == "aaml cluster up: error: queue: kueue needs --runtime binary"
    assert not (tmp_path / "state").exists()


def test_another_version_of_kueue_is_another_program_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AAML_CACHE", str(tmp_path))
    first = build.program_path()
    assert first.is_relative_to(tmp_path)
    assert build.version() in first.parent.name
    assert not build.built()
    first.parent.mkdir(parents=True)
    first.write_bytes(b"")
    assert build.built()


def test_its_module_names_the_program_and_has_its_sums() -> None:
    folder = recipe_dir() / "kueue"
    text = (folder / "go.mod").read_text()
    assert "tool sigs.k8s.io/kueue/cmd/kueue" in text
    required = dict(re.findall(r"^\t(\S+) (v\S+)", text, re.MULTILINE))
    sums = (folder / "go.sum").read_text()
    assert f"sigs.k8s.io/kueue {required['sigs.k8s.io/kueue']} h1:" in sums
    assert required["k8s.io/client-go"].startswith("v0.35."), "the Kubernetes that this release of Kueue is made for"
