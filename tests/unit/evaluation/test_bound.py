"""Bounds: instances whose optimum is known by hand, and what the simulator makes of the solver's placements."""

import csv
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aaml.cli import run
from aaml.cluster.objects import GpuRequest, Node, Pod
from aaml.errors import UserError
from aaml.evaluation.bound import bound_rows
from aaml.evaluation.bound_names import BOUND_ROWS
from aaml.evaluation.entries import policy_entries
from aaml.evaluation.evaluate import evaluate
from aaml.evaluation.results import ResultFile, Results
from aaml.openb.bound import LinearProgram, column_bounds, patterns
from aaml.optimum.placement import best_placement
from aaml.sim.openb import prepare, run_openb
from aaml.sim.tasks import find_task
from aaml.workload.model import Workload

ROOM = {"cpu": 10_000, "memory": 1 << 34, "pods": 10}


def shares(*milli: int) -> list[Pod]:
    return [Pod(f"p{i}", requests={"cpu": 1}, gpu=GpuRequest(1, each)) for i, each in enumerate(milli)]


def gpu_optimum(nodes: Sequence[Node], pods: Sequence[Pod]) -> float:
    """In devices."""
    optimum = best_placement(nodes, pods, "final_gpu_allocation")
    assert optimum.proven
    assert optimum.bound == pytest.approx(optimum.value)
    return optimum.value * sum(node.gpu_count for node in nodes)


def test_shares_are_paired_so_that_nothing_is_left() -> None:
    # Best fit in order of arrival puts .5 and .4 together, and the .6 beside neither .5 nor .4 of what comes then.
    nodes = [Node("a", ROOM, gpu_count=2)]
    assert gpu_optimum(nodes, shares(500, 400, 600, 500)) == pytest.approx(2.0)
    assert gpu_optimum(nodes, shares(600, 600, 600)) == pytest.approx(1.2)  # no two on a device, none over two devices


def test_whole_devices_are_not_shared() -> None:
    nodes = [Node("a", ROOM, gpu_count=2)]
    both = Pod("w", requests={"cpu": 1}, gpu=GpuRequest(2, 1000))
    assert gpu_optimum(nodes, [*shares(900), both]) == pytest.approx(2.0)  # the share stays out
    one = Pod("w", requests={"cpu": 1}, gpu=GpuRequest(1, 1000))
    assert gpu_optimum(nodes, [*shares(900), one, both]) == pytest.approx(2.0)
    assert gpu_optimum([*nodes, Node("b", ROOM, gpu_count=1)], [*shares(900), one, both]) == pytest.approx(3.0)


def test_cpu_pods_and_models_limit_what_is_allocated() -> None:
    hungry = [Pod(f"p{i}", requests={"cpu": 6_000}, gpu=GpuRequest(1, 1000)) for i in range(2)]
    assert gpu_optimum([Node("a", ROOM, gpu_count=2)], hungry) == pytest.approx(1.0)
    assert gpu_optimum([Node("a", {**ROOM, "pods": 2}, gpu_count=1)], shares(300, 300, 400)) == pytest.approx(0.7)
    picky = [Pod("p", requests={"cpu": 1}, gpu=GpuRequest(1, 1000, frozenset({"T4"})))]
    assert gpu_optimum([Node("a", ROOM, gpu_count=1, gpu_model="P100")], picky) == 0.0
    assert gpu_optimum([Node("a", ROOM, gpu_count=1, gpu_model="T4")], picky) == pytest.approx(1.0)


def batch(*requests: tuple[int, int]) -> list[Pod]:
    """Pods of (cores, GiB)."""
    return [Pod(f"p{i}", requests={"cpu": 1000 * c, "memory": m << 30}) for i, (c, m) in enumerate(requests)]


def test_least_variance_of_a_batch() -> None:
    nodes = [Node(name, {"cpu": 8000, "memory": 8 << 30, "pods": 10}) for name in "ab"]
    # Greedy puts 1 and 1 apart, then 2 and 2, then 4 on either: 7 and 3. The optimum is 4 + 1 and 2 + 2 + 1.
    optimum = best_placement(nodes, batch((1, 1), (1, 1), (2, 2), (2, 2), (4, 4)), "final_variance")
    assert (optimum.value, optimum.bound, optimum.proven) == (0.0, 0.0, True)
    # 3 and 0 cores, 0 and 1 GiB, in eighths: CPU's variance (1.5 / 8)^2, memory's (.5 / 8)^2; the mean of both.
    optimum = best_placement(nodes, batch((3, 0), (0, 1)), "final_variance")
    assert optimum.value == pytest.approx(0.5 * (1.5**2 + 0.5**2) / 64)


def test_fewest_nodes_of_a_batch() -> None:
    nodes = [Node(name, {"cpu": 10_000, "memory": 8 << 30, "pods": 10}) for name in "abcd"]
    # First fit takes three nodes: 5 + 3, 7, 5; the optimum 5 + 5 and 7 + 3 takes two.
    optimum = best_placement(nodes, batch((5, 0), (3, 0), (7, 0), (5, 0)), "final_empty_fraction")
    assert (optimum.value, optimum.bound) == (0.5, 0.5)


def test_a_batch_that_does_not_fit() -> None:
    with pytest.raises(UserError, match="a placement of all 2 pods on 1 nodes does not exist"):
        best_placement([Node("a", {"cpu": 1000, "pods": 1})], batch((1, 0), (1, 0)), "final_empty_fraction")
    with pytest.raises(UserError, match="equal CPU and memory"):
        best_placement([Node("a", ROOM), Node("b", {**ROOM, "cpu": 1})], batch((1, 0)), "final_variance")
    with pytest.raises(UserError, match="metric: 'mean_variance' is not accepted"):
        best_placement([Node("a", ROOM)], batch((1, 0)), "mean_variance")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "nodes"), [("fragmentation", 4), ("balance-batch", 3), ("compress-batch", 4)])
def test_no_policy_passes_the_bound(name: str, nodes: int, tmp_path: Path) -> None:
    task = find_task(name)
    file = ResultFile(tmp_path)
    policies = ("best-fit", "least-variance")
    frame = evaluate(policies, name, (1, 2), nodes, progress=False, on_row=file.append).frame()
    for seed in (1, 2):
        optimum, rows = bound_rows(task, seed, nodes, limit_s=10)
        for row in rows:
            file.append(row)
        assert optimum.proven
        values = frame[frame.seed == seed][task.metric]
        assert (values <= optimum.bound + 1e-9 if task.higher_is_better else values >= optimum.bound - 1e-9).all()
    (ranking,) = Results.read(tmp_path).compare("best-fit")
    assert {line.policy for line in ranking.lines} == {*policies, "cp-sat", "cp-sat-bound"}


def test_placements_are_carried_out_with_the_devices_that_were_planned() -> None:
    pods = (*shares(500, 400, 600, 500), Pod("w", requests={"cpu": 1}, gpu=GpuRequest(2, 1000)))
    task = replace(
        find_task("fragmentation"),
        make_nodes=lambda _: (Node("a", ROOM, gpu_count=4),),
        draw=lambda *_: Workload(pods),
    )
    _, (row, bound) = bound_rows(task, 0)
    assert row["final_gpu_allocation"] == bound["final_gpu_allocation"] == 1.0
    assert (row["policy"], bound["policy"], row["pending"]) == ("cp-sat", "cp-sat-bound", 0.0)


def test_patterns_leave_no_room_for_one_more() -> None:
    assert list(patterns([600, 300])) == [(1, 1), (0, 3)]
    assert list(patterns([])) == []
    for pattern in patterns([700, 450, 160]):
        left = 1000 - np.dot(pattern, [700, 450, 160])
        assert 0 <= left < 160


@pytest.fixture
def tiny_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = ["a,64000,262144,2,P100", "b,96000,393216,8,G2", "c,96000,393216,8,G2"]
    pods = [f"p{i},{4000 + 500 * i},8192,1,{300 + 70 * i}," for i in range(9)]
    pods += ["w,8000,16384,1,1000,", "v,60000,65536,8,1000,G2", "z,1000,1024,0,0,"]
    for name, header, rows in (
        ("openb_node_list_gpu_node.csv", "sn,cpu_milli,memory_mib,gpu,model", nodes),
        ("openb_pod_list_tiny.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec", pods),
    ):
        (tmp_path / name).write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    monkeypatch.setenv("AAML_TRACES", str(tmp_path))


@pytest.mark.usefixtures("tiny_trace")
def test_the_linear_program_is_above_fgd_and_exact_where_it_is_simple(tmp_path: Path) -> None:
    prepared = prepare("tiny", 1)
    program = LinearProgram(prepared)
    result = run_openb("tiny", 1, "fgd")
    asked = np.cumsum([shape[2] * shape[3] for shape in prepared.shapes[prepared.arrivals]])
    bounds = [program.bound(arrivals + 1) for arrivals in range(len(asked))]
    assert bounds[0] == pytest.approx(100 * asked[0] / prepared.capacity_milli)
    assert (np.diff(bounds) > -1e-9).all()
    columns = sorted(set(prepared.column.tolist()))
    assert (np.array(column_bounds("tiny", 1, columns)) >= result.allocation[columns] - 0.006).all()  # two decimals
    assert bounds[-1] < 100 * asked[-1] / prepared.capacity_milli

    out, last = tmp_path / "out", str(columns[-1])
    flags = ["--bound", "--traces", "tiny", "--seeds", "1", "--columns", last]
    assert run("bench openb", [*flags, "--out", str(out)]) == 0
    with (out / "results.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["trace"], row["seed"], row["column"]) == ("tiny", "1", last)
    assert float(row["fgd"]) <= float(row["bound"]) <= 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "--task", "balance"], "task: 'balance' is not accepted; did you mean balance-batch?"),
        (["evaluate", "--task", "fragmentation", "--limit-s", "0"], "limit_s: 0.0"),
        (["evaluate", "--task", "fragmentation", "--seeds", "x"], "seeds: 'x'"),
        (["evaluate", "--task", "fragmentation", "--nodes", "0"], "nodes: "),
        (["bench openb", "--traces", "tiny", "--seeds", "1", "--columns", "131"], "columns: 131"),
        (["bench openb", "--traces", "none"], "--traces: 'none'"),
        (["bench openb", "--traces", "tiny", "--policy", "fgd"], "bound: True is not accepted; expected no policy"),
    ],
)
@pytest.mark.usefixtures("tiny_trace")
def test_mistakes_are_told_in_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *flags = arguments
    assert run(command, [*flags, "--bound", "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("tiny_trace")
def test_a_missing_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ortools", "ortools.sat.python.cp_model", "ortools.linear_solver.pywraplp"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"ortools is not installed; .*aaml\[solver\]"):
        best_placement([Node("a", ROOM)], [], "final_gpu_allocation")
    with pytest.raises(UserError, match="ortools is not installed"):
        LinearProgram(prepare("tiny", 1))


def test_a_path_with_an_equals_sign_is_no_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("lr=0.1")
    folder.mkdir()
    for name in ("m.pth", "scores.py", "mine.yaml"):
        (folder / name).write_text("")
    specs = ("lr=0.1/m.pth", "lr=0.1/scores.py:a", "kube-scheduler:lr=0.1/mine.yaml")
    assert [each.spec for each in policy_entries(specs)] == list(specs)
    labelled = policy_entries([f"a={specs[0]}", "lr=random", "b=none/m.pth"])
    assert [(each.label, each.spec) for each in labelled] == [("a", specs[0]), ("lr", "random"), ("b", "none/m.pth")]


@pytest.mark.parametrize("label", BOUND_ROWS)
def test_no_policy_is_called_as_a_row_of_a_bound(label: str) -> None:
    with pytest.raises(
        UserError, match=f"policies: '{label}' is not accepted; expected another label: results of --bound"
    ):
        policy_entries([f"{label}=random"])
