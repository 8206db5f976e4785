"""The published runs of Weng et al. (USENIX ATC 2023), every column of the three tables; all: `make bench-openb`."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aaml.cli import run as aaml
from aaml.openb.tables import Published, differences, expected_folder, published_tables
from aaml.policies.gpu.scorer_file import ScorerModel, load_scorer, save_scorer
from aaml.policies.gpu_names import FEATURES
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.registry import make_policy
from aaml.sim.openb import prepare, run_openb, run_openb_policy
from aaml.workload.traces import load_pods

DETERMINISTIC = ("fgd", "best-fit", "dot-product", "gpu-packing", "gpu-clustering")
# Seeds by trace: all of the default trace's, two of the others that differ most, one of each kind of the rest.
SEEDS = {
    "default": range(42, 52), "gpuspec33": (42, 43), "multigpu40": (42, 49), "gpushare100": (46,), "gpushare40": (47,),
    "cpu250": (51,), "cpu050": (44,), "gpuspec10": (45,), "multigpu20": (50,), "gpushare60": (48,),
}  # fmt: skip


@pytest.fixture(scope="module")
def published() -> Published:
    folder = expected_folder()
    assert folder, "the published tables are missing: set AAML_EXPECTED to the folder with analysis_allo_discrete.csv"
    return published_tables(folder)


@pytest.mark.parametrize("trace", SEEDS)
def test_every_column_is_the_published_one(trace: str, published: Published) -> None:
    wrong = {
        (seed, policy): columns
        for seed in SEEDS[trace]
        for policy in DETERMINISTIC
        if (columns := differences(run_openb(trace, seed, policy), published)) != 0
    }
    assert wrong == {}


def test_random_lies_where_the_published_one_does(published: Published) -> None:
    ours = np.array([run_openb("default", seed, "random").allocation[-1] for seed in range(42, 52)])
    theirs = np.array([published["allocation"]["default", "random", seed][-1] for seed in range(42, 52)])
    error = (ours - theirs).std(ddof=1) / 10**0.5
    assert abs(ours.mean() - theirs.mean()) < 3.25 * error  # 99%, t distribution with 9 degrees of freedom


def test_fgd_s_lead_leans_on_truncation_and_the_fixed_order() -> None:
    runs = range(42, 47)
    raw = np.mean([run_openb("default", seed, "fgd", truncate=False).allocation[-1] for seed in runs])
    shuffled = np.mean([run_openb("default", seed, "fgd", tie_break="random").allocation[-1] for seed in runs])
    assert raw == pytest.approx(94.39, abs=0.15)
    assert shuffled == pytest.approx(90.0, abs=0.5)


@pytest.mark.parametrize("policy", ["best-fit", "gpu-clustering"])
def test_the_policies_of_the_live_loop_place_the_same(policy: str, published: Published) -> None:
    """The heuristics on a `ClusterState`, stopped after 400 arrivals: one truth, not two."""
    options = PolicyOptions(tie_break="fixed", truncate=True, expected=load_pods("default"))
    slow = run_openb_policy("default", 42, make_policy(policy, options), arrivals=400)
    fast = run_openb("default", 42, policy)
    assert slow.nodes[:400].tolist() == fast.nodes[:400].tolist()


def test_a_saved_scorer_scores_as_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    prepared = prepare("default", 42)
    width = len(FEATURES) + 8
    model = ScorerModel(
        layers=((rng.normal(size=(16, width)), rng.normal(size=16)), (rng.normal(size=(1, 16)), np.zeros(1)))
    )
    save_scorer(model, tmp_path / "net.npz")
    runs = [
        run_openb("default", 42, "network", each.scorer(prepared.tables, prepared.devices))
        for each in (model, load_scorer(tmp_path / "net.npz"))
    ]
    assert runs[0].nodes.tolist() == runs[1].nodes.tolist()
    assert (runs[0].nodes >= 0).sum() > 5000


def test_the_command_writes_tables_summary_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert aaml("bench openb", ["--policy", "fgd,best-fit", "--seeds", "42,43", "--out", str(out)]) == 0
    assert "published runs matched in every column: 4 of 4" in capsys.readouterr().out
    table = pd.read_csv(out / "allocation.csv")
    assert list(table.columns) == ["workload", "policy", "tune", "seed", *map(str, range(131))]
    assert table.set_index(["policy", "seed"]).loc[("fgd", 42), "130"] == 95.29
    summary = json.loads((out / "summary.json").read_text())
    assert [run["failed"] for run in summary["runs"] if run["policy"] == "fgd"] == [2532, 2442]
    for name in ("allocation.png", "fragmentation.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "fdg"], "policy: 'fdg'"),
        (["--policy", "fgd", "--seeds", "52..42"], "--seeds: '52..42'"),
        (["--policy", "fgd", "--traces", "nowhere"], "--traces: 'nowhere'"),
        ([], "--policy or --model"),
        (["--model", "no.npz"], "model: 'no.npz' is not accepted; expected a model file that exists"),
    ],
)
def test_a_mistake_is_one_line(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aaml("bench openb", [*flags, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
