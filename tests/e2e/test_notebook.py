"""The project's notebook runs from top to bottom on a real cluster."""

from support.kwok import pods
from support.notebook import execute


def test_the_notebook_runs_on_a_real_cluster(kwok, namespace, tmp_path):
    printed = execute(tmp_path, {"AAML_CLUSTER": "kube", "KUBECONFIG": str(kwok.kubeconfig), "AAML_POD_LOAD": "0.05"})
    assert "no pod pending" in printed
    runs = sorted(path.name.split("_")[0] for path in (tmp_path / "tlogs").iterdir())
    assert runs == ["acdqn", "acgnn", "dqn", "dqn", "dqn", "gnn"]
    assert [pod for pod in pods(kwok.api(), "default") if pod["spec"]["schedulerName"] == "custom-scheduler"] == []
