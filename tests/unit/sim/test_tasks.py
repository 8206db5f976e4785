"""Task presets: same seed, same episode; sizes; traces; what `aaml show policies` says of them."""

import pickle

import pytest

from aaml.cli import run
from aaml.episodes.plan import Plan
from aaml.errors import UserError
from aaml.nodes.settings import HighNodeUtilizationSettings
from aaml.sim.env import ClusterEnv
from aaml.sim.recorded_bill import under
from aaml.sim.tasks import ALL_TASKS, find_task


@pytest.mark.parametrize("name", ALL_TASKS)
def test_same_seed_builds_the_same_episode(name):
    task = find_task(name)
    builds = [[(p.created_s, p.requests, p.gpu, p.lifetime_s) for p in task.build(seed).workload] for seed in (3, 3, 4)]
    assert builds[0] == builds[1]
    assert builds[0] != builds[2]


@pytest.mark.parametrize("name", ALL_TASKS)
def test_metric_is_one_that_a_run_yields(name):
    task = find_task(name)
    assert task.metric in task.build(0).metrics()


def test_sizes_as_asked_for():
    cluster = find_task("balance").build(0, nodes=100, pods=70)
    assert (len(cluster.state), len(cluster.workload)) == (100, 70)
    assert len(find_task("seed-a").build(0, nodes=7).state) == 8  # and the control plane
    assert len(find_task("seedc").build(0).state) == 3
    for options in ({"nodes": 0}, {"pods": 0}):
        with pytest.raises(UserError, match=f"{next(iter(options))}: 0"):
            find_task("balance").build(0, **options)
    with pytest.raises(UserError, match="task: 'golf' is not accepted; expected one of balance"):
        find_task("golf")
    with pytest.raises(UserError, match=r"task: 'balence' is not accepted; did you mean balance\? Expected"):
        find_task("balence")


def test_a_task_of_ones_own_is_found_in_its_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import dataclasses\nimport aaml\nsmall = dataclasses.replace(aaml.task('balance'), nodes=3)\nn = 3\n"
    )
    assert find_task(f"{file}:small").size()[0] == 3
    assert find_task(f"{file}:small").name == f"{file}:small", "results name it so that it is found again"
    with pytest.raises(UserError, match="'n' is not accepted; expected an aaml"):
        find_task(f"{file}:n")


@pytest.mark.slow
def test_a_task_of_ones_own_with_functions_of_its_file_is_judged_by_workers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import dataclasses\nimport aaml\nfrom aaml.cluster.fleet import NodeShape, workers\n"
        "def fleet(count):\n"
        "    return (*workers(1, NodeShape(cpu='96'), prefix='large'), *workers(count - 1))\n"
        "uneven = dataclasses.replace(aaml.task('balance'), make_nodes=fleet)\n"
        "unnamed = dataclasses.replace(aaml.task('balance'), make_nodes=lambda count: fleet(count))\n"
    )
    for name in ("uneven", "unnamed"):
        run("evaluate", f"--task mine.py:{name} --nodes 3 --pods 20 --seeds 1 --policies random --out {name}".split())
        assert f"mine.py:{name}, 3 nodes" in capsys.readouterr().out


def test_varied_draws_a_mix_and_a_fleet_for_each_episode():
    fleets, kinds, bursts = set(), set(), 0
    for seed in range(40):
        cluster = find_task("varied").build(seed, nodes=4)
        allocatable = cluster.state.allocatable[:, :2]
        fleets.add(len({tuple(row) for row in allocatable.tolist()}))
        pods = cluster.workload.pods
        asked = [(pod.requests["cpu"], pod.requests["memory"]) for pod in pods]
        kinds.add(len(set(asked)))
        bursts += pods[0].created_s == pods[1].created_s
        assert all((allocatable >= request).all() for request in set(asked)), "every pod fits on every empty node"
    assert fleets >= {1, 2}
    assert len(kinds) > 5
    assert 5 < bursts < 30
    assert find_task("varied@0.5").build(1, nodes=3).workload.pods


def test_waiting_asks_for_more_than_there_is():
    cluster = find_task("waiting").build(0, pods=4000)
    pods = cluster.workload.pods
    held = sum(pod.request("cpu") * pod.lifetime_s for pod in pods) / pods[-1].created_s
    assert held > 0.9 * cluster.state.allocatable[:, 0].sum()


def test_traces_replace_the_pods(tmp_path, monkeypatch):
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,P100\nb,96000,393216,8,G2\n", encoding="utf-8"
    )
    (tmp_path / "openb_pod_list_tiny.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np0,12000,16384,1,1000,\np1,6000,12288,1,460,\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("AAML_TRACES", str(tmp_path))
    task = find_task("fragmentation")
    cluster = task.build(0, nodes=2, pods=10, trace="tiny")
    assert cluster.state.names == ["a", "b"]
    assert {pod.gpu.milli for pod in cluster.workload} == {1000, 460}
    assert [pod.name for pod in task.expected("tiny")] == ["p0", "p1"]
    with pytest.raises(UserError, match="trace: 'huge' is not accepted; expected one of tiny"):
        task.build(0, nodes=2, trace="huge")
    with pytest.raises(UserError, match=r"nodes: 3 .* at most 2"):
        task.build(0, nodes=3, trace="tiny")


def test_policies_command_lists_own_ones_too(tmp_path, capsys):
    file = tmp_path / "listed.py"
    file.write_text(
        "from aaml.policies.registry import register_policy\n"
        "@register_policy('test-listed')\n"
        "def score(context):\n"
        "    return context.state.allocatable[:, 0]\n",
        encoding="utf-8",
    )
    assert run("show policies", ["--file", str(file)]) == 0
    said = capsys.readouterr().out
    assert "test-listed" in said
    assert all(name in said for name in ("kube-scheduler", "seed-a-corrected"))
    assert run("show tasks", []) == 0
    said = capsys.readouterr().out
    assert all(f"{name} " in said for name in ALL_TASKS)
    assert run("show policies", ["--file", str(tmp_path / "none.py")]) == 2


@pytest.mark.parametrize("task", ALL_TASKS.values(), ids=ALL_TASKS)
def test_a_task_that_went_to_another_process_is_known_there(task):
    assert {task: "known"}[pickle.loads(pickle.dumps(task))] == "known"


def test_a_bill_is_drawn_with_its_catalogue_and_the_environment_says_that_it_takes_none():
    task = find_task("bill")
    drawn = [task.drawn_catalogue(seed) for seed in range(20)]
    assert len({catalogue.types[0].cheapest.price for catalogue in drawn}) == 20
    assert len({len(catalogue) for catalogue in drawn}) > 3
    largest = max(pod.requests["cpu"] for seed in range(20) for pod in task.build(seed, 5).workload)
    assert all(catalogue.room[:, 0].max() > largest for catalogue in drawn), "every pod fits a type"
    first, second = (task.build(seed, 5).workload.pods[0].owner for seed in (1, 2))
    assert first != second, "nobody knows a lifetime from another episode"
    cluster = task.build(3, 5, pods=12)
    assert (len(cluster.workload), cluster.until_s) == (12, cluster.workload[-1].created_s)
    with pytest.raises(UserError, match="task: 'bill' is not accepted; expected one whose nodes stay"):
        ClusterEnv("bill")
    described = under(task, HighNodeUtilizationSettings())
    assert Plan.of_cluster(described.build(3, 5, pods=12)).supply is not None, "compiled episodes take a descheduler"
    with pytest.raises(UserError, match="trace: 'default' is not accepted; expected none"):
        task.build(1, trace="default")


@pytest.mark.parametrize("name", ["bill@nope", "balance@x..y", "bill@"])
def test_what_stands_behind_a_task_is_a_load_or_a_trace(name):
    with pytest.raises(
        UserError, match=rf"^task: '{name}' is not accepted; expected [^\n]* at a load [^\n]* on a trace: "
    ):
        find_task(name)
