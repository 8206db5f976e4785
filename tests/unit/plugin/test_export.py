"""What `aaml export` writes, and what it refuses."""

import itertools
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from aaml.cli import run
from aaml.errors import UserError
from aaml.kube.provision.binaries import programs_dir, recipe_dir
from aaml.learning.agents import load_agent
from aaml.learning.config import LIVE
from aaml.perf.scenarios import benchmark_dir
from aaml.plugin import export as export_module
from aaml.plugin.build import build, program_path
from aaml.plugin.configuration import DECIDES, DEFAULTS_GIVE, ProfileOptions
from aaml.plugin.export import ExportOptions, export
from aaml.plugin.module import PluginModule, is_plugin
from aaml.plugin.profile import CARRIED, score_document
from aaml.plugin.source import MODULE, source_files

MODEL = "varied-acdqn"


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> PluginModule:
    return export(MODEL, tmp_path_factory.mktemp("export") / "plugin")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line that a command says when it refuses."""
    assert run("export", list(arguments)) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    return said


def documents(path: Path) -> list[dict]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--image", "a: b"], "image: 'a: b' is not accepted; expected REGISTRY/NAME:TAG"),
        (["--image", "a\n  hostNetwork: true"], "image: 'a\\n  hostNetwork: true' is not accepted"),
        (["--scheduler-name", "mine: x"], "scheduler_name: 'mine: x' is not accepted; expected letters, digits"),
        (
            ["--learn", "/tmp/learn.sock"],
            "learn: '/tmp/learn.sock' is not accepted; expected a path in a folder of its",
        ),
        (["--learn", "/run/a b/learn.sock"], "learn: '/run/a b/learn.sock' is not accepted"),
    ],
)
def test_what_manifests_cannot_hold_is_refused_before_a_file_is_written(capsys, tmp_path, flags, said) -> None:
    assert said in refused(capsys, MODEL, "--out", str(tmp_path / "plugin"), *flags)
    assert not (tmp_path / "plugin").exists()


def test_the_module_is_pinned_to_the_versions_of_the_recipe(module: PluginModule) -> None:
    ours = (module.folder / "go.mod").read_text()
    recipe = (recipe_dir() / "kubernetes" / "go.mod").read_text()

    def pinned(text: str) -> dict[str, str]:
        return dict(re.findall(r"^\t?(?:require )?([\w./-]+/[\w./-]+) (v\S+)", text, re.MULTILINE))

    assert pinned(ours)["k8s.io/kubernetes"] == "v1.37.2"
    assert pinned(ours).items() <= pinned(recipe).items()


def test_its_sources_are_those_that_the_project_tests(module: PluginModule) -> None:
    """`go vet` and `go test` pass on them in tests/integration/test_plugin_states.py."""
    sources = source_files()
    assert {path: (module.folder / path).read_bytes() for path in sources} == sources
    assert Path("main.go") in sources


def test_the_weights_are_compiled_in_and_lie_beside(module: PluginModule) -> None:
    assert module.weights.read_bytes() == module.embedded.read_bytes()
    assert json.loads(module.weights.read_text())["format"] == "aaml-plugin-weights"


def test_manifests_are_whole_and_fit_together(module: PluginModule) -> None:
    kustomization = yaml.safe_load((module.folder / "kustomization.yaml").read_text())
    maps = kustomization["configMapGenerator"]
    files = [*kustomization["resources"], *(name for each in maps for name in each["files"])]
    assert all((module.folder / each).is_file() for each in files)
    (deployment,) = documents(module.folder / "manifests/deployment.yaml")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "aaml-kube-scheduler:1.37.2"
    assert [each["configMap"]["name"] for each in pod["volumes"][0]["projected"]["sources"]] == [
        each["name"] for each in maps
    ]
    roles = documents(module.folder / "manifests/rbac.yaml")
    bound = {each["roleRef"]["name"] for each in roles if "roleRef" in each}
    assert bound == {
        "extension-apiserver-authentication-reader",
        "aaml-kube-scheduler",
    }
    account = {(each["subjects"][0]["name"], each["subjects"][0]["namespace"]) for each in roles if "subjects" in each}
    assert account == {(pod["serviceAccountName"], "aaml")}


def kustomized(folder: Path) -> dict[tuple[str, str], dict]:
    """Return what kustomize makes of a folder, by kind and name."""
    command = [str(programs_dir() / "kubectl"), "kustomize", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(made)}


def mounted(folder: Path) -> list[str]:
    """Return the names of the ConfigMaps that the pods mount, after checking that they are there."""
    found = kustomized(folder)
    (volume,) = [
        each for each in found["Deployment", "aaml-kube-scheduler"]["spec"]["template"]["spec"]["volumes"]
        if each["name"] == "aaml"
    ]  # fmt: skip
    names = [each["configMap"]["name"] for each in volume["projected"]["sources"]]
    assert all(("ConfigMap", name) in found for name in names)
    return names


def test_another_configuration_replaces_the_pods_and_other_weights_do_not(tmp_path: Path) -> None:
    made = export("balance-linear", tmp_path / "plugin")
    configuration, weights = mounted(made.folder)
    lease = kustomized(made.folder)["Role", "aaml-kube-scheduler"]["rules"][0]
    assert lease["resourceNames"] == ["aaml-kube-scheduler"], "the Lease keeps its name"
    made.weights.write_text(made.weights.read_text() + "\n")
    assert mounted(made.folder) == [configuration, weights]
    made.configuration.write_text(made.configuration.read_text() + "# changed\n")
    changed, same = mounted(made.folder)
    assert changed != configuration
    assert same == weights == "aaml-kube-scheduler-weights"


def test_in_the_place_of_the_clusters_scheduler_it_may_hold_that_ones_lease(tmp_path: Path) -> None:
    for name, place, lease, verbs in (
        ("default-scheduler", "kube-system", "kube-scheduler", ["get", "update"]),
        ("mine", "aaml", "aaml-kube-scheduler", ["get", "update", "create"]),
    ):
        options = ExportOptions(ProfileOptions(scheduler_name=name))
        made = export("balance-linear", tmp_path / name, options)
        roles = documents(made.folder / "manifests/rbac.yaml")
        (role,) = [each for each in roles if each["kind"] == "Role"]
        assert (role["metadata"]["namespace"], role["rules"][0]["resourceNames"]) == (place, [lease])
        assert [verb for rule in role["rules"] for verb in rule["verbs"]] == verbs
        (binding,) = [
            each for each in roles if each["kind"] == "RoleBinding" and each["roleRef"]["name"] == "aaml-kube-scheduler"
        ]
        assert binding["metadata"]["namespace"] == place


def test_one_replica_stays_while_nodes_are_drained(module: PluginModule) -> None:
    (budget,) = documents(module.folder / "manifests/poddisruptionbudget.yaml")
    (deployment,) = documents(module.folder / "manifests/deployment.yaml")
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    assert deployment["spec"]["replicas"] - budget["spec"]["maxUnavailable"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("model", [MODEL, "varied-gnn"])
def test_a_learner_beside_the_plugin_shares_its_socket_and_its_weights(tmp_path: Path, model: str) -> None:
    out = tmp_path / "plugin"
    assert run("export", [model, "--out", str(out), "--learn", "/run/aaml/learn.sock"]) == 0
    found = kustomized(out)
    pod = found["Deployment", "aaml-kube-scheduler"]["spec"]["template"]["spec"]
    containers = {each["name"]: each for each in pod["containers"]}
    mounts = {name: {m["mountPath"]: m["name"] for m in each["volumeMounts"]} for name, each in containers.items()}
    assert mounts["kube-scheduler"]["/run/aaml"] == mounts["learner"]["/run/aaml"] == "learn"
    assert {"name": "learn", "emptyDir": {}} in pod["volumes"]
    said = containers["learner"]["args"]
    agent = model.removeprefix("varied-")
    assert said[:3] == ["aaml", "learn", agent]
    assert "--socket=/run/aaml/learn.sock" in said
    assert "--weights=/run/aaml/weights.json" in said
    (arguments,) = yaml.safe_load((out / "kube-scheduler-configuration.yaml").read_text())["profiles"][0][
        "pluginConfig"
    ]
    assert arguments["args"]["weightsFile"] == "/run/aaml/weights.json"
    (begins,) = (Path(each.partition("=")[2]) for each in said if each.startswith("--model="))
    (models,) = [
        each for (kind, name), each in found.items() if kind == "ConfigMap" and name.startswith("aaml-learner-")
    ]
    assert begins.name in models["binaryData"], "another model replaces the pods, as a learner reads it once"
    load_agent(out / "learner" / begins.name, LIVE[agent])  # with its critic, where it is an actor
    assert run("export", [model, "--out", str(out)]) == 0
    assert not [*out.rglob("*learner*")], "nothing of it stays"


def test_only_what_can_learn_gets_a_learner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "plugin")
    assert "network" in refused(capsys, "balance-linear", "--out", out, "--learn", "/run/aaml/learn.sock")


def test_nothing_in_the_texts_is_left_to_fill_in(module: PluginModule) -> None:
    for path in module.folder.rglob("*"):
        if path.is_file() and path.suffix in {"", ".md", ".yaml"} and "embedded" not in path.parts:
            assert not re.search(r"\$\w|\$\{", path.read_text()), path


def test_the_profile_is_what_the_flags_say(tmp_path: Path) -> None:
    out = str(tmp_path / "plugin")
    flags = ["--scheduler-name", "default-scheduler", "--alone", "--percentage-of-nodes-to-score", "0"]
    assert run("export", [MODEL, "--out", out, *flags]) == 0
    found = yaml.safe_load(PluginModule(Path(out)).configuration.read_text())
    assert found["percentageOfNodesToScore"] == 0
    assert found["leaderElection"] == {
        "leaderElect": True, "resourceNamespace": "kube-system", "resourceName": "kube-scheduler",
    }  # fmt: skip
    (profile,) = found["profiles"]
    assert profile["schedulerName"] == "default-scheduler"
    assert profile["plugins"]["score"]["disabled"] == [{"name": "*"}]
    assert profile["plugins"]["bind"]["enabled"] == [{"name": "AAML"}, {"name": "DefaultBinder"}]
    assert profile["pluginConfig"][0]["args"]["fallback"] == "default"
    assert profile["pluginConfig"][0]["args"]["candidates"] > 0, (
        "the policy decides: kube-scheduler filters its best nodes"
    )
    assert profile["plugins"]["postFilter"] == {"enabled": [{"name": "AAML"}]}, "ours comes before preemption"
    assert "learnSocket" not in profile["pluginConfig"][0]["args"]
    assert run("export", [MODEL, "--out", out, "--alone", "--learn", "/run/aaml/learn.sock"]) == 0
    (profile,) = yaml.safe_load(PluginModule(Path(out)).configuration.read_text())["profiles"]
    assert profile["pluginConfig"][0]["args"]["learnSocket"] == "/run/aaml/learn.sock"
    assert run("export", [MODEL, "--out", out, "--weight", "1"]) == 0
    (profile,) = yaml.safe_load(PluginModule(Path(out)).configuration.read_text())["profiles"]
    assert "candidates" not in profile["pluginConfig"][0]["args"], "others have a say: they see all nodes"


def test_a_rank_outweighs_all_default_plugins_of_the_pinned_version() -> None:
    """A score plugin without a weight counts once; each gives 100 at most."""
    source = benchmark_dir().parents[2] / "pkg/scheduler/apis/config/v1/default_plugins.go"
    weights = re.findall(r"\{Name: names\.(\w+), Weight: ptr\.To\[int32\]\((\d+)\)\}", source.read_text())
    scores = {name: int(weight) for name, weight in weights if name != "PodGroupPodsCount"} | {"VolumeBinding": 1}
    assert len(scores) >= 8
    assert 100 * sum(scores.values()) <= DEFAULTS_GIVE < DECIDES


def test_what_cannot_be_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "plugin")
    for version in ("1.35.0", "1.34", "nothing"):  # the framework of 1.34 has other types
        said = refused(capsys, MODEL, "--out", out, "--kubernetes", version)
        assert f"kubernetes: '{version}' is not accepted" in said
        assert "one of 1.37.2, 1.36.1, 1.35.4, for which" in said
    assert "random" in refused(capsys, "random", "--out", out)
    assert "no-such" in refused(capsys, "no-such.pth", "--out", out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert "out" in refused(capsys, MODEL, "--out", str(tmp_path / "mine"))
    assert [each.name for each in tmp_path.rglob("*")] == ["mine", "notes.txt"]


def test_a_profile_has_no_score_plugin_that_the_module_refuses(tmp_path: Path, caplog) -> None:
    carried = re.search(
        r"var defaultScores = \[\]string\{(.*?)\}", (MODULE / "internal/aaml/carried.go").read_text(), re.DOTALL
    )
    assert carried is not None
    assert frozenset(re.findall(r"names\.(\w+)", carried[1])) == CARRIED
    file = tmp_path / "profile.yaml"
    file.write_text(
        "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, profiles: [{pluginConfig: ["
        "{name: VolumeBinding, args: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}}]}]}"
    )
    for spec in ("kube-scheduler", "kube-scheduler-packing", f"kube-scheduler:{file}"):
        (profile,) = score_document(spec)["profiles"]
        names = {each["name"] for each in (*profile["plugins"]["score"]["enabled"], *profile["pluginConfig"])}
        assert names <= CARRIED
        assert ("VolumeBinding stays behind" in caplog.text) == (str(file) in spec)


def test_weights_alone_replace_those_of_a_plugin(tmp_path: Path) -> None:
    module = export(MODEL, tmp_path / "plugin")
    before = program_path(module)
    assert run("export", ["varied-gnn", "--out", str(module.weights)]) == 0
    assert module.weights.read_bytes() != module.embedded.read_bytes()
    assert program_path(module) == before, "the program is the same"
    export("varied-gnn", module.folder)
    assert program_path(module) != before


def test_a_folder_and_a_prefix_stand_for_a_plugin(module: PluginModule, tmp_path: Path) -> None:
    assert is_plugin(str(module.folder))
    assert is_plugin("plugin:varied-acdqn")
    assert not is_plugin(str(tmp_path))
    assert not is_plugin("varied-acdqn")


def test_a_compiler_that_fails_says_why_in_a_line(tmp_path: Path) -> None:
    module = export(MODEL, tmp_path / "plugin")
    (module.folder / "main.go").write_text("package main\n\nfunc main() { nothing() }\n")
    with pytest.raises(UserError, match="undefined: nothing"):
        build(module, progress=False)
    assert not program_path(module).exists()


def test_an_order_of_waiting_pods_stays_behind_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run("export", ["waiting-linear", "--out", str(tmp_path / "w.json")]) == 0
    assert "waiting-linear: its order of waiting pods stays behind" in caplog.text
    caplog.clear()
    assert run("export", ["balance-linear", "--out", str(tmp_path / "w.json")]) == 0
    assert not caplog.text


@pytest.mark.parametrize(
    "flags", [["--weight", "5"], ["--alone"], ["--image", "registry/name:1"], ["--learn", "learn.sock"]]
)
def test_a_file_of_weights_takes_nothing_that_it_does_not_say(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.json"
    assert run("export", ["balance-linear", "--out", str(path), *flags]) == 2
    line = f"{flags[0][2:]}: a file of weights, {path}, does not say that; give --out a folder"
    assert capsys.readouterr().err.strip() == f"aaml export: error: {line}"
    assert not path.exists()


CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 30
extenders: [{urlPrefix: "http://127.0.0.1:1", filterVerb: filter}]
profiles:
- schedulerName: spreading
- schedulerName: packing
  plugins:
    multiPoint: {disabled: [{name: ImageLocality}]}
    score: {enabled: [{name: NodeResourcesFit, weight: 7}], disabled: [{name: PodTopologySpread}]}
  pluginConfig:
  - {name: InterPodAffinity, args: {hardPodAffinityWeight: 60}}
  - {name: DefaultPreemption, args: {minCandidateNodesPercentage: 20}}
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 3}]}}
"""


def test_a_configuration_becomes_a_policy_of_its_score_plugins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights are those of the default profile but for what the file says: InterPodAffinity 2, and so on."""
    file, out = tmp_path / "mine.yaml", tmp_path / "plugin"
    file.write_text(CONFIGURATION, encoding="utf-8")
    assert run("export", [f"kube-scheduler:{file}#packing", "--out", str(out)]) == 0
    assert "not modelled here: DefaultPreemption: how many candidate nodes; 1 extender" in caplog.text
    told = json.loads((out / "weights.json").read_text())["policy"]
    (profile,) = told["configuration"]["profiles"]
    assert {each["name"]: each["weight"] for each in profile["plugins"]["score"]["enabled"]} == {
        "TaintToleration": 3, "NodeAffinity": 2, "NodeResourcesFit": 7, "InterPodAffinity": 2,
        "NodeResourcesBalancedAllocation": 1,
    }  # fmt: skip
    assert {each["name"]: each["args"] for each in profile["pluginConfig"]} == {
        "InterPodAffinity": {"hardPodAffinityWeight": 60},
        "NodeResourcesFit": {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 3}]}},
    }
    found = yaml.safe_load((out / "kube-scheduler-configuration.yaml").read_text())
    assert found["percentageOfNodesToScore"] == 30, "what the file says"
    assert found["profiles"][0]["plugins"]["score"]["disabled"] == [{"name": "*"}], "it takes the place of the others"


def test_a_policy_that_cannot_be_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plugin"
    (tmp_path / "mine.yaml").write_text(CONFIGURATION.replace("weight: 7", "weight: many"), encoding="utf-8")
    assert "weight" in refused(capsys, f"kube-scheduler:{tmp_path / 'mine.yaml'}#packing", "--out", str(out))
    assert "network" in refused(capsys, "kube-scheduler", "--out", str(out), "--learn", "/run/aaml/learn.sock")
    assert not out.exists()


def test_an_export_replaces_what_an_earlier_one_wrote_and_leaves_the_files_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plugin"
    module = export("varied-gnn", out)
    whole = {each.relative_to(out) for each in out.rglob("*")}
    (out / "metrics.go").write_text("package main // ours\n")
    (out / "internal" / "notes.md").write_text("ours")
    export(MODEL, out)
    assert (out / "metrics.go").read_text() == "package main // ours\n"
    assert {each.relative_to(out) for each in out.rglob("*")} == {*whole, Path("metrics.go"), Path("internal/notes.md")}
    earlier = out / "internal" / "of_an_earlier_version.go"  # which this version does not write
    earlier.write_text("package internal\n")
    written = json.loads((out / ".aaml-export.json").read_text())
    (out / ".aaml-export.json").write_text(
        json.dumps({**written, "internal/of_an_earlier_version.go": [], "../outside": []})
    )
    (tmp_path / "outside").write_text("ours")
    export(MODEL, out)
    assert not earlier.exists()
    assert (tmp_path / "outside").exists()
    (out / ".aaml-export.json").write_text(
        json.dumps({name: each for name, each in written.items() if name != "README.md"})
    )
    before = module.weights.read_bytes()
    assert f"{out / 'README.md'} is not of an earlier export" in refused(capsys, "varied-gnn", "--out", str(out))
    assert module.weights.read_bytes() == before


@pytest.mark.parametrize("kept", ["hashes", "names", "nothing"])
def test_an_export_does_not_write_over_what_a_person_changed(
    kept: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plugin"
    export(MODEL, out, ExportOptions(ProfileOptions(learn="/run/aaml/learn.sock"), image="r/n:1"))
    learner, deployment, sums = (
        out / name for name in ("manifests/learner.yaml", "manifests/deployment.yaml", "go.sum")
    )
    learner.write_text("ours")
    deployment.write_text(deployment.read_text().replace("replicas: 2", "replicas: 5"))
    sums.write_text("changed")
    (out / "weights.json").write_text("another policy's, which an export may replace")
    listed = out / ".aaml-export.json"
    if kept == "names":  # as an earlier version wrote it
        listed.write_text(json.dumps(list(json.loads(listed.read_text()))))
    elif kept == "nothing":
        listed.unlink()
    before = {each: each.read_bytes() for each in out.rglob("*") if each.is_file()}
    said = refused(capsys, MODEL, "--out", str(out), "--image", "r/n:1")
    changed = ["go.sum", "manifests/deployment.yaml"] + ["manifests/learner.yaml"] * (kept == "hashes")
    if kept == "hashes":
        assert f"out: {', '.join(changed)} in {out} " in said
    assert all(name in said for name in changed)
    assert said.endswith("; move them first, or write over them with --overwrite")
    assert {each: each.read_bytes() for each in out.rglob("*") if each.is_file()} == before
    assert run("export", [MODEL, "--out", str(out), "--image", "r/n:2", "--overwrite"]) == 0
    assert "replicas: 2" in deployment.read_text()
    assert sums.read_text() != "changed"
    assert learner.exists() == (kept == "nothing"), "nobody knows whose it is"
    export("varied-gnn", out, ExportOptions(image="r/n:3"))  # nothing was changed since


def test_an_export_that_was_cut_off_can_be_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, count = tmp_path / "plugin", itertools.count()
    original = export_module.write_bytes

    def full(path: Path, content: bytes) -> None:
        if next(count) == 3:
            raise UserError(f"file {path}: cannot be written: No space left on device")
        original(path, content)

    monkeypatch.setattr(export_module, "write_bytes", full)
    with pytest.raises(UserError, match="No space left"):
        export(MODEL, out)
    export(MODEL, out)
    count = itertools.count()
    with pytest.raises(UserError, match="No space left"):
        export(MODEL, out, ExportOptions(image="r/n:1"))
    export(MODEL, out, ExportOptions(image="r/n:2"))
    whole = export(MODEL, tmp_path / "whole").folder
    assert {each.relative_to(out) for each in out.rglob("*")} == {each.relative_to(whole) for each in whole.rglob("*")}
