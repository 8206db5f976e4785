"""What a script reads: the numbers of the tables as JSON on standard output, and nothing else there."""

import csv
import json
from statistics import fmean

import pytest

from aaml.cli import run

TWO = ["kube-scheduler", "least-variance"]


def test_a_comparison_is_printed_as_json(tmp_path, capfd):
    folder = tmp_path / "runs"
    asked = ["--policies", *TWO, "--seeds", "1000..1002", "--nodes", "4", "--pods", "30", "--workers", "1"]
    assert run("evaluate", [*asked, "--out", str(folder), "--json"]) == 0
    evaluated = json.loads(capfd.readouterr().out)
    assert run("report compare", [str(folder), "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == evaluated
    rows = {row["policy"]: row for row in evaluated}
    with (folder / "results.csv").open() as file:
        measured = [(row["policy"], float(row["mean_variance"])) for row in csv.DictReader(file)]
    means = {name: fmean(value for policy, value in measured if policy == name) for name in TWO}
    assert rows["kube-scheduler"]["difference"] is None
    assert rows["least-variance"]["reference"] == "kube-scheduler"
    assert rows["least-variance"]["mean"] == pytest.approx(means["least-variance"])
    assert rows["least-variance"]["difference"] == pytest.approx(means["least-variance"] - means["kube-scheduler"])


def test_the_names_are_printed_as_json(capsys):
    assert run("show policies", ["--json"]) == 0
    names = json.loads(capsys.readouterr().out)
    assert set(TWO) <= set(names["policies"])
    assert run("show tasks", ["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["balance"]["metric"] == "mean_variance"
