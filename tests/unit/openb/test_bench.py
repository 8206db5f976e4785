"""What `aaml bench openb` is asked for: the same names of policies and the same seeds as everywhere else."""

from pathlib import Path

import pytest

from aaml.errors import UserError
from aaml.openb.bench import parse_policies, plan
from aaml.openb.tables import PUBLISHED_POLICIES
from aaml.policies.gpu.policies import COMPILED
from aaml.policies.registry import POLICIES


def test_what_is_compiled_has_the_names_of_the_policies() -> None:
    assert set(PUBLISHED_POLICIES.values()) < set(COMPILED) < set(POLICIES.names())


def test_every_named_policy_can_be_run_and_the_papers_six_have_a_name_of_their_own() -> None:
    assert parse_policies(", ".join(POLICIES.names())) == list(POLICIES.names())
    assert parse_policies("published") == [
        "random", "dot-product", "gpu-clustering", "gpu-packing", "best-fit", "fgd",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["fdg", "best_fit", "linear"])
def test_a_name_that_is_none_is_answered_with_those_there_are(name: str) -> None:
    with pytest.raises(UserError, match=rf"^policy: '{name}' is not accepted; .*best-fit.* or FILE.py:NAME"):
        parse_policies(f"fgd,{name}")


def test_a_model_file_of_any_kind_can_be_run_and_only_the_benchmarks_own_is_compiled() -> None:
    models = Path(__file__).parents[3] / "models"
    scorer, linear = models / "openb_linear.npz", models / "Linear_linear_compress_s1.json"
    runs = plan(["default"], [42], [str(linear)], scorer)
    assert [(Path(run.policy).stem, run.scorer is not None) for run in runs] == [
        ("Linear_linear_compress_s1", False),
        ("openb_linear", True),
    ]


def test_two_policies_of_one_name_are_not_told_as_one(tmp_path: Path) -> None:
    scorer = Path(__file__).parents[3] / "models" / "openb_linear.npz"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.npz").write_bytes(scorer.read_bytes())
        (tmp_path / name / "mine.py").write_text("def rule(context):\n    return -context.state.requested[:, 0]\n")
    for policies in (["fgd", "fgd"], [f"{tmp_path}/a/mine.py:rule", f"{tmp_path}/b/mine.py:rule"]):
        with pytest.raises(UserError, match=r"--policy: '(fgd|rule)' is not accepted; expected each name once"):
            plan(["default"], [42], policies, None)
    with pytest.raises(UserError, match=r"--policy: 'mine' is not accepted; expected each name once"):
        plan(["default"], [42], [str(tmp_path / "a" / "mine.npz")], tmp_path / "b" / "mine.npz")
