"""docs/honoured.md has a row for every plugin that the pinned kube-scheduler has in its default profile."""

import re
from pathlib import Path

import pytest

from aaml.perf.scenarios import benchmark_dir

PAGE = Path(__file__).parents[2] / "docs" / "honoured.md"


def default_plugins(module: Path) -> dict[str, str]:
    """Return plugin -> the feature gate without which it is not in the profile, "" for those that always are."""
    source = (module / "pkg/scheduler/apis/config/v1/default_plugins.go").read_text(encoding="utf-8")
    listed, _, optional = source.partition("func applyFeatureGates")
    found = dict.fromkeys(re.findall(r"\{Name: names\.(\w+)", listed), "")
    gates = re.findall(r"Enabled\(features\.(\w+)\) \{\s*(?:(apply\w+)\(|[^}]*?names\.(\w+))", optional)
    for gate, function, name in gates:
        body = re.search(rf"func {function}\(.*?\n\}}", optional, re.DOTALL) if function else None
        names = re.findall(r"v1\.Plugin\{Name: names\.(\w+)", body[0]) if body else [name]
        found |= dict.fromkeys(names, gate)
    return found


def on_by_default(module: Path, gate: str) -> bool:
    source = (module / "pkg/features/kube_features.go").read_text(encoding="utf-8")
    versions = re.search(rf"^\t{gate}: \{{\n(.*?)^\t\}},", source, re.DOTALL | re.MULTILINE)
    assert versions is not None, gate
    return re.findall(r"Default:\s*(\w+)", versions[1])[-1] == "true"


@pytest.mark.kwok
def test_every_default_plugin_has_a_row():
    module = benchmark_dir().parents[2]
    plugins = default_plugins(module)
    assert plugins["PrioritySort"] == ""
    assert plugins["NodeDeclaredFeatures"] == "NodeDeclaredFeatures"
    assert plugins["DynamicResources"] == "DynamicResourceAllocation"
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    for plugin, gate in plugins.items():
        named = [row for row in rows if re.search(rf"\b{plugin}\b", row.split("|")[1])]
        assert named, f"docs/honoured.md has no row for {plugin}"
        if gate and not on_by_default(module, gate):
            assert "off by default" in named[0], f"{plugin} is off by default, which its row should say"
