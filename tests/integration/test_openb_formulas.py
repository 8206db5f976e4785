"""Formulas of GPU devices: they run in the compiled benchmark, as policies, and a search finds them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aaml.cli import run
from aaml.evaluation.policies import load_policy
from aaml.evaluation.zoo import zoo
from aaml.evolve.front import looks
from aaml.openb.bench import plan
from aaml.policies.formula_file import load_formula, save_formula
from aaml.policies.formulas.policy import Formula
from aaml.policies.formulas.program import assemble
from aaml.policies.formulas.text import parse
from aaml.policies.gpu.learned import formula_scorer
from aaml.policies.gpu_names import FEATURES
from aaml.sim.openb import SEARCH_COLUMNS, loss_against_fgd, prepare, run_openb, run_openb_policy
from aaml.workload.traces import NODE_LIST, load_pods, traces_folder

WEIGHTS = {"fragment_gain": 1.0, "rest_lost": -10.0, "placeable_lost": -0.5, "model_load": -0.05}
TEXT = "gpu.fragment_gain - 10 * gpu.rest_lost - 0.5 * gpu.placeable_lost - 0.05 * gpu.model_load"


def test_a_formula_places_as_the_linear_scorer_with_its_weights():
    prepared = prepare("gpuspec33", 61)
    scorer = formula_scorer(assemble(parse(TEXT)), prepared.tables, prepared.devices)
    linear = run_openb("gpuspec33", 61, "linear", np.array([WEIGHTS.get(name, 0.0) for name in FEATURES]))
    assert run_openb("gpuspec33", 61, "formula", scorer).nodes.tolist() == linear.nodes.tolist()


def test_what_it_reads_of_the_pod_is_the_pod_s(tmp_path):
    """Pods with a share take the fullest device, others the node with least CPU left: two rules in one formula."""
    text = "-gpu.device_left if gpu_pod.share > 0.5 else -gpu.cpu_left"
    save_formula(Formula(parse(text)), tmp_path / "two.formula")
    policy = load_policy(str(tmp_path / "two.formula"), expected=load_pods("default"))
    slow = run_openb_policy("default", 61, policy, arrivals=300)
    (job,) = plan(["default"], [61], [str(tmp_path / "two.formula")], None)
    prepared = prepare("default", 61)
    fast = run_openb("default", 61, "formula", job.scorer.scorer(prepared.tables, prepared.devices))
    assert slow.nodes[:300].tolist() == fast.nodes[:300].tolist()


def test_to_be_behind_fgd_anywhere_costs_more_than_the_same_gain_brings():
    level = np.zeros(len(SEARCH_COLUMNS))
    assert loss_against_fgd(level) == 0.0
    assert loss_against_fgd(level + 0.5) == pytest.approx(-0.5)
    behind = level.copy()
    behind[3] = -0.52
    assert loss_against_fgd(behind) == pytest.approx(0.5 * 0.5 + 2.0 * 0.5 / len(SEARCH_COLUMNS))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--task", "openb", "--nodes", "10"], "nodes: (10,) is not accepted"),
        (["--task", "openb", "--traces", "defualt"], "traces: 'defualt' is not accepted; expected of"),
        (["--task", "balance", "--traces", "default"], "traces: 'default' is not accepted"),
        (["--task", "openb", "balance"], "task: 'openb'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_in_a_line(tmp_path, capsys, flags, said):
    assert run("search formula", [*flags, "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_rule_that_ships_goes_where_a_model_goes(tmp_path, capsys):
    """It is compiled in the benchmark, exported and put at the head of a scheduler; both ask what pods are like."""
    (job,) = plan(["default"], [61], ["openb-formula"], None)
    assert job.scorer is not None
    assert job.scorer.formula == load_formula(zoo()["openb-formula"].path).expression
    assert run("export", ["openb-formula", "--out", str(tmp_path / "plugin")]) == 2
    assert "expected-pods: Formula_openb weighs fragments" in capsys.readouterr().err
    assert run("schedule", ["policy", "--policy", "openb-formula", "--cluster", "sim"]) == 2
    assert "expected-pods: none; expected an openb trace" in capsys.readouterr().err
    assert run("explain", ["web", "--policy", "openb-formula"]) == 2
    assert "expected-pods: none with a GPU" in capsys.readouterr().err
    assert run("export", ["openb-formula", "--expected-pods", "default", "--out", str(tmp_path / "plugin")]) == 0
    assert "gpu.fragment_gain" in (tmp_path / "plugin" / "weights.json").read_text()
    assert run("show formula", ["openb-formula", "--form", "python"]) == 2
    assert "a score function chooses no device" in capsys.readouterr().err
    assert run("show formula", ["openb-formula"]) == 0
    assert "latex: \\mathrm" in capsys.readouterr().out


def test_features_of_nodes_and_of_devices_do_not_mix(tmp_path, capsys):
    content = {"format": "aaml-formula", "expression": "gpu.cpu_left + pair.cpu_after"}
    content["features"] = {"gpu.cpu_left": 1, "pair.cpu_after": 1}
    (tmp_path / "mixed.formula").write_text(json.dumps(content))
    assert run("show formula", [str(tmp_path / "mixed.formula")]) == 2
    assert "not both" in capsys.readouterr().err


@pytest.fixture
def small_trace(tmp_path, monkeypatch) -> Path:
    """A twentieth of the default trace's nodes, and of its pods as many."""
    folder, there = tmp_path / "traces", traces_folder()
    folder.mkdir()
    pd.read_csv(there / NODE_LIST).iloc[::20].to_csv(folder / NODE_LIST, index=False)
    pods = pd.read_csv(there / "openb_pod_list_default.csv", keep_default_na=False)
    pods.iloc[::20].to_csv(folder / "openb_pod_list_default.csv", index=False)
    monkeypatch.setenv("AAML_TRACES", str(folder))
    return folder


def test_a_trace_of_another_folder_is_another_trace(small_trace, monkeypatch):
    there = prepare("default", 61).capacity_milli
    monkeypatch.setenv("AAML_TRACES", str(small_trace.parent / "again"))
    shutil.copytree(small_trace, small_trace.parent / "again")
    nodes = pd.read_csv(small_trace.parent / "again" / NODE_LIST)
    nodes.iloc[1:].to_csv(small_trace.parent / "again" / NODE_LIST, index=False)
    assert prepare("default", 61).capacity_milli == there - 1000 * nodes["gpu"].iloc[0]


def test_a_search_leaves_a_formula_of_devices_and_the_benchmark_counts_looks_at_it(tmp_path, small_trace, capsys):
    del small_trace
    save_formula(Formula(parse(TEXT)), tmp_path / "start.formula")
    out, flags = tmp_path / "run", ["--task", "openb", "--traces", "default", "--episodes", "4", "--islands", "1"]
    flags += ["--validation-episodes", "4", "--population", "6", "--generations", "2", "--seed", "77"]
    assert run("search formula", [*flags, "--start", str(tmp_path / "start.formula"), "--out", str(out)]) == 0
    assert f"next: aaml bench openb --policy fgd --model {out}" in capsys.readouterr().out
    assert "gpu." in json.loads((out / "model/openb.formula").read_text())["expression"]
    assert (out / "report.html").is_file()
    told = [
        "--policy",
        "fgd",
        "--model",
        str(out),
        "--seeds",
        "42,43",
        "--no-plots",
        "--out",
        str(tmp_path / "b"),
    ]
    assert run("bench openb", told) == 0
    assert looks(out) == 1
    assert json.loads((out / "looks.jsonl").read_text())["task"] == "openb default"
    assert run("search formula", ["--out", str(out), "--look", "3"]) == 2
    assert "aaml bench openb" in capsys.readouterr().err
