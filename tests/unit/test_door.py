"""The door: what `import aaml` offers, and what it costs."""

import inspect
import subprocess
import sys

import pytest

import aaml

HEAVY = ("gymnasium", "torch", "numba", "numpy", "pandas", "matplotlib", "kubernetes", "tyro")


def test_the_names_are_these() -> None:
    assert aaml.__all__ == [
        "ActorCritic", "Comparison", "Dqn", "Linear", "ObservationSpec", "QTable", "QueueSort", "Results", "Scheduler",
        "Task", "UserError", "__version__", "connect", "evaluate", "load", "policy", "register_policy",
        "register_reward", "schedule", "simulate", "task", "train",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in aaml.__all__ if name != "__version__"])
def test_every_name_is_there_and_explains_itself(name: str) -> None:
    thing = getattr(aaml, name)
    said = inspect.getdoc(thing) or ""
    assert said.split("\n", 1)[0].endswith((".", ":")), said
    assert name in dir(aaml)


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'aaml' has no attribute 'fly'"):
        _ = aaml.fly


def test_importing_costs_nothing() -> None:
    code = f"import aaml, sys; print([name for name in {HEAVY} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


@pytest.mark.parametrize("imports", ["import aaml, gymnasium", "import gymnasium, aaml"])
def test_gymnasium_knows_the_environment_from_then_on(imports: str) -> None:
    code = f"{imports}; print(gymnasium.spec('aaml/Cluster-v0').entry_point)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "aaml.sim.env:ClusterEnv\n"


def test_a_task_says_its_sizes_and_refuses_what_makes_no_cluster() -> None:
    assert aaml.task("balance", nodes=10) == aaml.task("balance", nodes=(10,))
    assert aaml.task("balance", nodes=(10, 50)).sizes == (10, 50)
    assert len(aaml.task("balance", nodes=3, pods=7).build(1).workload) == 7
    with pytest.raises(aaml.UserError, match="nodes: 0 is not accepted"):
        aaml.task("balance", nodes=0)
    with pytest.raises(aaml.UserError, match="task: 'fly' is not accepted; expected one of balance"):
        aaml.task("fly")


def test_what_is_printed_has_no_address() -> None:
    assert str(aaml.task("balance", nodes=(10, 50))) == (
        "Task('balance': mixed pods come and go; use every node equally; mean_variance, lower is better; 10, 50 nodes)"
    )
    for thing in (aaml.task("bill"), aaml.policy("least-variance"), aaml.policy("fgd"), aaml.load("balance-formula")):
        assert " at 0x" not in str(thing)


def test_an_agent_may_be_a_value_with_settings_of_its_own(tmp_path) -> None:
    task = aaml.task("seedc", pods=40)
    table = aaml.train(aaml.QTable(bins=4), task, steps=60, out=tmp_path / "q", validation_episodes=1, progress=False)
    assert table.config.bins == 4
    with pytest.raises(aaml.UserError, match="holds a run already"):
        aaml.train("qtable", task, steps=60, out=tmp_path / "q")
    with pytest.raises(aaml.UserError, match="stepps"):
        aaml.train("qtable", task, stepps=60)
