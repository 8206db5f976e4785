"""The program that README begins with, without its cluster (that is in tests/e2e/test_first_program_live.py)."""

import aaml
from support.program import first_program, small_program


def test_it_has_five_lines_and_runs_as_often_as_one_likes(tmp_path, monkeypatch, capsys):
    assert sum(bool(line) for line in first_program().splitlines()) == 5
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(aaml, "connect", lambda: "the cluster")
    scheduled = []
    monkeypatch.setattr(aaml, "schedule", lambda agent, cluster: scheduled.append((agent.name, cluster)))
    for run in ("gnn-balance-s0", "gnn-balance-s0-2"):
        exec(small_program(), {})
        assert (tmp_path / "runs" / run / "config.json").is_file()
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "balance, 10 nodes: mean_variance (lower is better), 2 seeds"
    assert {line.split()[0] for line in table[3:6]} == {"gnn", "kube-scheduler", "least-variance"}
    assert scheduled == [("gnn", "the cluster")] * 2
