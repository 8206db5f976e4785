"""The cache keeps the plugins that were used last, and those that clusters need."""

import os
from pathlib import Path

import pytest

from aaml.plugin.cache import KEPT, prune, used


def test_what_was_used_longest_ago_goes_but_for_what_a_cluster_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AAML_STATE", str(tmp_path / "state"))
    cache = tmp_path / "cache"
    folders = [cache / f"program-{number:02}" for number in range(KEPT + 4)]
    for age, folder in enumerate(reversed(folders)):
        folder.mkdir(parents=True)
        (folder / "kube-scheduler").touch()
        os.utime(folder, (1e9 - age, 1e9 - age))
    used(folders[0])
    cluster = tmp_path / "state" / "clusters" / "mine"
    (cluster / "bin").mkdir(parents=True)
    (cluster / "bin" / "kube-scheduler").symlink_to(folders[1] / "kube-scheduler")
    (cluster / "scheduler.yaml").write_text(f"weightsFile: {folders[2]}/weights.json")
    prune(list(cache.iterdir()))
    assert sorted(cache.iterdir()) == [*folders[:3], *folders[-(KEPT - 1) :]]


def test_the_few_that_are_there_stay(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    prune([tmp_path / "program", tmp_path / "gone"])
    assert [each.name for each in tmp_path.iterdir()] == ["program"]
