"""The benchmark that puts simulated bills beside real ones reads Karpenter's file and reckons as it says."""

import importlib.util
import json
from pathlib import Path

BENCHMARK = Path(__file__).parents[3] / "benchmarks/bench_bill_simulated.py"


def loaded():
    spec = importlib.util.spec_from_file_location("bench_bill_simulated", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entry(name, cores, gib, price):
    return {
        "name": name, "architecture": "x86_64", "operatingSystems": ["linux"],
        "resources": {"cpu": str(cores), "memory": f"{gib}Gi", "pods": "58"},
        "offerings": [{"Price": price, "Available": True, "Requirements": []}],
    }  # fmt: skip


def test_it_reads_karpenters_file_and_prints_a_row_for_each_setting(tmp_path, monkeypatch, capsys):
    bench, file = loaded(), tmp_path / "types.json"
    file.write_text(json.dumps([
        entry("m5.large", 2, 8, 0.102), entry("m5.9xlarge", 36, 144, 1.8), entry("t3.large", 2, 8, 0.08)
    ]))  # fmt: skip
    monkeypatch.setattr(bench, "REAL", (bench.REAL[0], bench.REAL[-1]))
    monkeypatch.setattr("sys.argv", ["bench", "--instance-types", str(file), "--repeats", "1"])
    assert [each.name for each in bench.catalogue_of(file).types] == ["m5.large", "m5.9xlarge"]
    bench.main()
    said = capsys.readouterr().out
    assert "   1 kube-scheduler           WhenEmptyOrUnderutilized      2.440 2.291" in said
    assert "mean absolute error over 3 real runs" in said


def test_its_pods_are_those_of_the_real_runs():
    pods, ends = loaded().pods_of(1)
    assert len(pods) == 601
    assert (pods[0].created_s, pods[0].requests, ends[0].at_s) == (2.417, {"cpu": 2000, "memory": 16 << 30}, 503.147)
    assert len(ends) == sum(not pod.do_not_disrupt for pod in pods)
