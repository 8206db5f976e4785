"""The notebooks that use a real cluster run from top to bottom on one."""

import pytest

from support.kwok import pods
from support.notebook import NOTEBOOKS, execute, execute_alone, printed


def test_the_notebook_runs_on_a_real_cluster(kwok, namespace, tmp_path):
    printed = execute(
        tmp_path,
        {"AAML_CLUSTER": "kube", "KUBECONFIG": str(kwok.kubeconfig), "AAML_POD_LOAD": "0.05", "OMP_NUM_THREADS": "1"},
    )
    assert "no pod pending" in printed
    runs = sorted(path.name.split("_")[0] for path in (tmp_path / "tlogs").iterdir())
    assert runs == ["acdqn", "acgnn", "dqn", "dqn", "dqn", "gnn"]
    assert [pod for pod in pods(kwok.api(), "default") if pod["spec"]["schedulerName"] == "custom-scheduler"] == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("07-a-real-cluster", ["agreement", "'bound':", "http://127.0.0.1:"]),
        ("08-record-and-replay", ["the simulated kube-scheduler reproduces", "p50"]),
    ],
)
def test_it_runs_and_shows_what_the_documents_show(kwok, namespace, tmp_path, monkeypatch, name, says):
    monkeypatch.setenv("KUBECONFIG", str(kwok.kubeconfig))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said = printed(execute_alone(NOTEBOOKS / f"{name}.ipynb", tmp_path))
    assert [words for words in says if words not in said] == []
    assert [each for each in pods(kwok.api(), "default") if each["metadata"]["name"].startswith("web-")] == []
