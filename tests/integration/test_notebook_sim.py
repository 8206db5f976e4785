"""The project's notebook runs from top to bottom on the in-process cluster."""

from support.notebook import execute


def test_the_notebook_runs(tmp_path):
    printed = execute(tmp_path, {"AAML_CLUSTER": "sim"})
    assert "no pod pending" in printed
    assert "steps of experience" in printed
    runs = sorted(path.name.split("_")[0] for path in (tmp_path / "tlogs").iterdir())
    assert runs == ["acdqn", "acgnn", "dqn", "dqn", "dqn", "gnn"]
    assert len(list((tmp_path / "models").glob("*.pth"))) == 8  # three DQN, one GNN, two files an actor-critic
