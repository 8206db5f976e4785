"""The learners on one page: short enough to read, alone with torch and Gymnasium, and they learn."""

import ast
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import aaml
from aaml.sim.sb3 import sb3_policy
from support import make

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*_single_file.py"))
ALLOWED = {"aaml", "gymnasium", "numpy", "torch"} | sys.stdlib_module_names


def test_each_is_one_page_that_needs_torch_and_gymnasium_alone() -> None:
    assert [path.name for path in EXAMPLES] == ["dqn_single_file.py", "ppo_single_file.py"]
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 250
        imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
        assert {name for name in names if name.partition(".")[0] not in ALLOWED} == set()
        assert {name for name in names if name.startswith("aaml")} <= {"aaml", "aaml.sim"}


@pytest.mark.parametrize(("path", "steps"), zip(EXAMPLES, (4_000, 20_000), strict=True), ids=str)
def test_a_short_training_already_places_far_better_than_chance(path: Path, steps: int) -> None:
    example = runpy.run_path(str(path))
    network = example["train"](example["Args"](task="seedc", nodes=3, steps=steps))
    task = aaml.task("seedc", nodes=3, pods=90)
    results = aaml.evaluate([example["policy"](network), "random"], task, seeds=range(1000, 1004), progress=False)
    value = results.frame().groupby("policy")["mean_variance"].mean()
    assert value[f"one_file_{path.name[:3]}"] < 0.7 * value["random"]


def test_a_ppo_of_stable_baselines_is_trained_kept_and_named_as_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = EXAMPLES[0].with_name("sb3_maskable_ppo.py")
    kept = tmp_path / "sb3.zip"
    monkeypatch.setenv("SB3_MODEL", str(kept))
    example = runpy.run_path(str(path))
    model = example["train"](example["Args"](task="seedc", nodes=3, steps=40_000, envs=32))
    model.save(kept)
    task = aaml.task("seedc", nodes=3, pods=90)
    results = aaml.evaluate([model, f"kept={path}:ppo", "random"], task, seeds=range(1000, 1004), progress=False)
    value = results.frame().groupby("policy")["mean_variance"].mean()
    assert value["MaskablePPO"] < 0.7 * value["random"]
    assert value["kept"] == value["MaskablePPO"]


def test_a_network_for_one_size_says_so_on_another_and_leaves_the_control_plane_out() -> None:
    example = runpy.run_path(str(EXAMPLES[0].with_name("sb3_maskable_ppo.py")))
    model = example["train"](example["Args"](task="seedc", nodes=3, steps=1, envs=8))
    plane = make.node("plane", labels={"node-role.kubernetes.io/control-plane": ""})
    scores = sb3_policy(model).scores(make.context(make.cluster([plane, *make.nodes(3)]), make.pod("p", 100, 2**20)))
    assert np.isfinite(scores).tolist() == [False, True, True, True]
    results = aaml.evaluate({"one": model, "other": model.policy}, aaml.task("seedc", nodes=3, pods=5), [1000])
    assert results.frame().groupby("policy")["mean_variance"].mean().nunique() == 1
    with pytest.raises(aaml.UserError, match=r"policy mine: was trained on clusters of 3 nodes .* this one has 4"):
        aaml.evaluate({"mine": model}, aaml.task("seedc", nodes=4, pods=5), seeds=[1000], progress=False)
