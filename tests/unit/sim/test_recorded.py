"""A trace in the simulator: the same nodes, arrivals and lifetimes, and seeds that keep training from what judges."""

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from aaml.cli import run as command
from aaml.cluster.objects import (
    HOSTNAME_LABEL,
    PRICE_LABEL,
    TYPE_LABEL,
    ZONE_LABEL,
    Affinity,
    HostPort,
    LabelSelector,
    Node,
    NodeSelectorTerm,
    Pod,
    PodAffinityTerm,
    Requirement,
    TopologySpread,
    VolumeNeeds,
)
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.errors import UserError
from aaml.evaluation.entries import PolicyEntry
from aaml.evaluation.evaluate import evaluate
from aaml.evaluation.statistics import LEAST_SEEDS
from aaml.evaluation.what_if import recorded_metrics, what_if
from aaml.lab.runs import playable
from aaml.nodes.catalogue import Catalogue, Offering
from aaml.nodes.catalogue_file import read_catalogue, shipped_catalogue, written_catalogue
from aaml.nodes.prices import PriceList
from aaml.policies.registry import make_policy
from aaml.scheduling.play import play
from aaml.scheduling.ports import Decision
from aaml.sim.recorded import cluster_of
from aaml.sim.recorded_bill import provisioned_from, recorded_dollars
from aaml.sim.tasks import find_task, find_trace_task
from aaml.training.rollouts import EnvConfig, EnvFactory, Stream
from aaml.training.settings import TrainConfig
from aaml.training.validation import VALIDATION_SEEDS
from aaml.workload.trace.events import Began, Listed, NodeGone, NodeSeen, PodBound, PodEnded, PodSeen
from aaml.workload.trace.store import TraceWriter
from aaml.workload.trace.trace import Trace
from aaml.workload.trace.windows import FEWEST, Split, Windows

NODES = [Node(name, {CPU: 1000, MEMORY: 1 << 30, PODS: 10}) for name in ("a", "b")]


def life(name, created, bound, node, ended, cpu=500):
    pod = Pod(name, requests={CPU: cpu}, created_s=created)
    events = [PodSeen(at=created, pod=pod), PodBound(at=bound, uid=pod.uid, node_name=node)]
    return [*events, PodEnded(at=ended, uid=pod.uid, how="succeeded")] if ended else events


def recorded(*events, nodes=NODES, until=100.0):
    begin = [Began(at=0.0), *(NodeSeen(at=0.0, node=node) for node in nodes), Listed(at=0.0)]
    return [*begin, *sorted(events, key=lambda each: each.at), NodeSeen(at=until, node=Node("end"))]


def windows(*events, length=100.0, **more):
    return Windows(Trace.of(recorded(*events, **more)), Split(length, 0.0))


class Onto:
    """Places each pod where it is told."""

    name = "onto"

    def __init__(self, where):
        self._where = where

    def act(self, context):
        return Decision(context.state.index[self._where[context.pod.name]])


def test_the_recorded_choices_in_the_simulator_are_the_recorded_run():
    """Binds at the very moment of arrival: then simulation and recording tell the same, number by number."""
    events = (*life("p", 10, 10, "a", 60), *life("q", 20, 20, "b", 90), *life("r", 60, 60, "a", None, 1000),
              NodeSeen(at=70.0, node=Node("c", {CPU: 2000, MEMORY: 1 << 30, PODS: 10})))  # fmt: skip
    window = windows(*events).window(0)
    cluster = cluster_of(window, invariants=True)
    play(cluster, Onto({"p": "a", "q": "b", "r": "a"}))
    simulated, real = cluster.metrics(), recorded_metrics(window)
    assert real == pytest.approx(simulated | {"rejected": 0.0})
    # a is half used for 50 s and wholly for 40 s, b half for 70 s; c is empty from 70 s on. By hand, [fractions]:
    # 10-20 and 60-60: var(.5, 0); 20-60: var(.5, .5); 60-70: var(1, .5); 70-90: var(1, .5, 0); 90-100: var(1, 0, 0)
    held = [(10, [0, 0]), (10, [0.5, 0]), (40, [0.5, 0.5]), (10, [1, 0.5]), (20, [1, 0.5, 0]), (10, [1, 0, 0])]
    assert real["mean_cpu_variance"] == pytest.approx(sum(s * np.var(use) for s, use in held) / 100.0)
    assert (real["arrived"], real["bound"], real["departed"]) == (3.0, 3.0, 2.0)


def test_waiting_is_measured_from_the_recorded_bind():
    window = windows(*life("p", 10, 30, "a", 60)).window(0)
    metrics = recorded_metrics(window)
    assert metrics["waiting_mean_s"] == 20.0
    assert metrics["mean_pending_pods"] == pytest.approx(0.2)


def test_a_pod_keeps_its_lifetime_when_another_places_it_later():
    """Both ask for a whole node. b is away until 50 s, so the second pod waits: it runs its 10 s from then on."""
    small = [NODES[0]]
    window = windows(*life("p", 0, 0, "a", None, 1000), *life("q", 20, 55, "b", 65, 1000),
                     NodeSeen(at=50.0, node=NODES[1]), nodes=small).window(0)  # fmt: skip
    cluster = cluster_of(window)
    play(cluster, make_policy("first-fit"))
    assert cluster.metrics()["departed"] == 1.0
    assert cluster.metrics()["waiting_max_s"] == 30.0
    assert cluster.metrics()["mean_cpu_mean"] == pytest.approx(0.5 * 1.0 + 0.1 * 1.0 + 0.4 * 0.5)


def test_a_node_that_was_removed_takes_its_pods_along_and_another_policys_pods_wait_again():
    events = (*life("p", 10, 10, "b", 42), NodeGone(at=40.0, name="b"), *life("p2", 41, 41, "a", None))
    window = windows(*events).window(0)
    as_recorded = cluster_of(window)
    play(as_recorded, Onto({"p": "b", "p2": "a"}))
    assert as_recorded.metrics()["evicted"] == 0.0
    other = cluster_of(window)
    play(other, Onto({"p": "a", "p2": "a"}))
    assert other.metrics()["departed"] == 1.0


def write(folder, *events, **more):
    with TraceWriter(folder) as writer:
        for event in recorded(*events, **more):
            writer.write(event)
    return str(folder)


def busy(count=100):
    return [event for i in range(count) for event in life(f"p{i}", i, i, "ab"[i % 2], i + 0.5)]


def test_seeds_of_judging_training_and_validation_are_different_windows(tmp_path):
    """Twenty windows of 5 s: 14 to 19 are the holdout, every fifth of the others is for validation."""
    task = find_task(write(tmp_path / "t", *busy()))
    assert task.episodes == (14, 15, 16, 17, 18, 19)

    def first(seed):
        return next(iter(task.build(seed).workload)).name

    assert [first(seed) for seed in task.episodes] == ["p70", "p75", "p80", "p85", "p90", "p95"]
    assert {first((1 << 30) + i) for i in range(50)} == {"p20", "p45"}
    trained = {first((1 << 31) + i) for i in range(50)}
    assert trained == {f"p{5 * window}" for window in range(14) if window not in (4, 9)}
    with pytest.raises(UserError, match="seeds: 3 is not accepted; expected windows of the trace's holdout: 14, 15"):
        task.build(3)


def test_a_trace_is_a_task_like_any_other(tmp_path):
    folder = write(tmp_path / "t", *busy())
    results = evaluate(["first-fit", "least-allocated"], folder, progress=False)
    assert sorted(set(results.runs["seed"])) == [14, 15, 16, 17, 18, 19]
    assert set(results.runs["nodes"]) == {2}
    said = str(results.compare("first-fit"))
    assert "6 windows" in said
    assert "equal on all windows" in said, "one pod at a time: both leave as much variance"
    packed = find_task(f"compress@{folder}")
    assert (packed.metric, packed.reward, packed.episodes) == ("mean_empty_fraction", "compress", task_episodes(folder))
    with pytest.raises(UserError, match="nodes: 5 is not accepted"):
        evaluate("first-fit", folder, nodes=5, progress=False)
    with pytest.raises(UserError, match="holds no trace; expected a folder"):
        find_task(str(tmp_path))


def task_episodes(folder):
    return find_task(folder).episodes


def test_what_if_has_the_recorded_run_the_simulated_kube_scheduler_and_the_policies_on_the_same_windows(tmp_path):
    """Everything was recorded on a: half of the cluster stays empty, as under first-fit; kube-scheduler spreads."""
    events = [event for i in range(100) for event in life(f"p{i}", i, i, "a", min(i + 3.5, 100.0), 200)]
    task = find_trace_task(write(tmp_path / "t", *events))
    results = what_if(task, [PolicyEntry("first-fit")], progress=False)
    mean = results.runs.groupby("policy")["mean_empty_fraction"].mean()
    assert mean["recorded"] == mean["first-fit"] == pytest.approx(0.5)
    assert mean["kube-scheduler"] < 0.1
    ranking = next(iter(results.compare(metric="mean_empty_fraction")))
    assert ", 2 nodes: mean_empty_fraction" in ranking.title
    assert "t: mean_empty_fraction" in replace(ranking, nodes=0).title, "it began before its nodes were listed"
    verdicts = {line.policy: line.against and line.against.verdict for line in ranking.lines}
    assert verdicts == {"recorded": "better", "first-fit": "better", "kube-scheduler": None}
    with pytest.raises(UserError, match="recorded"):
        what_if(task, [PolicyEntry("first-fit", "recorded")], progress=False)
    for other in (
        PolicyEntry("first-fit", "kube-scheduler"),
        PolicyEntry("kube-scheduler", "kube-scheduler", "learned"),
    ):
        with pytest.raises(UserError, match="'kube-scheduler' is not accepted; expected another label"):
            what_if(task, [other], progress=False)


def test_the_command_compares_policies_by_window(tmp_path, capsys):
    folder = write(tmp_path / "t", *busy())
    out = tmp_path / "out"
    assert command("replay", [f"compress@{folder}", "--policy", "first-fit", "random", f"--out={out}"]) == 0
    said = capsys.readouterr().out
    assert (
        "6 windows of 5 s (holdout), paired by window: of the trace's 100 pods 30 arrive in them, 0 have a node "
        "already, 70 are in none of them"
    ) in said
    assert "Caution" not in said
    assert "mean_empty_fraction (higher is better), 6 windows" in said
    for name in ("recorded", "first-fit", "random", "kube-scheduler"):
        assert name in said
    assert (out / "windows.csv").read_text().splitlines()[1] == "14,70,75,5,0,0"
    assert len((out / "results.csv").read_text().splitlines()) == 1 + 4 * 6
    page = (out / "report.html").read_text()
    assert "default-scheduler: 100 decisions; the simulated kube-scheduler reproduces" in page
    assert "30 arrive in them" in page
    waits = said[said.index("waiting_mean_s (lower") :].split("\n\n")[0]
    assert "equal on all windows" in waits, "nobody waits: that is not better in half of the windows"
    assert "recorded" not in waits, "the time of a bind is nothing that a policy did"
    assert (
        "waiting_mean_s on a real cluster, with what a bind takes, which the simulator leaves out: recorded 0" in said
    )
    assert command("replay", [folder, "--policy", "models/x.pth", "--windows=all", f"--out={out}"]) == 2
    assert f"may have seen some of them. Where none learned from this trace: aaml trace split {folder} --holdout 1" in (
        capsys.readouterr().err
    )


def test_the_command_warns_of_windows_that_are_few_and_short(tmp_path, capsys):
    """Pods of 4 s in eleven windows of 2 s, of which four are judged."""
    folder = write(tmp_path / "t", *(event for at in range(20) for event in life(f"p{at}", at, at, "a", at + 4.0, 100)),
                   until=20.0)  # fmt: skip
    assert command("trace", ["split", folder, "--window-s=2", "--holdout=0.3"]) == 0
    split = capsys.readouterr().out
    assert command("replay", [folder, "--policy", "first-fit", f"--out={tmp_path / 'out'}"]) == 0
    said = capsys.readouterr().out
    for caution in ("4 windows are too few for a verdict", "windows of 2 s are short"):
        assert f"Caution: {caution}" in said
        assert caution in split
        assert caution in (tmp_path / "out" / "report.html").read_text()
    assert not re.search(r"\b(better|worse|level)\b *($|\d)", said, re.MULTILINE), "four windows give no verdict"
    assert said.count("undecided") >= 3
    assert FEWEST == LEAST_SEEDS, "the caution says what the verdict takes"


def test_a_training_knows_which_traces_can_be_played_in_compiled_episodes(tmp_path):
    """What runs when a window begins is not compiled; a log that only says when jobs came and for how long is."""
    config = TrainConfig(task=write(tmp_path / "recorded", *busy(), *life("long", 1, 1, "a", 90)))
    assert config.resolved_method == "rewards"
    assert "empty cluster" in config.why_no_group
    pods = [PodSeen(at=at, pod=Pod(f"p{at}", requests={CPU: 100}, created_s=at, lifetime_s=2.0)) for at in range(100)]
    ends = [PodEnded(at=at + 3.0, uid=f"default/p{at}") for at in range(97)]
    assert TrainConfig(task=write(tmp_path / "log", *pods, *ends)).resolved_method == "group"
    assert TrainConfig(task="compress@traces/a week/").label == "compress@traces-a-week"


@pytest.mark.slow
def test_the_commands_train_on_a_trace_by_a_reward_of_ones_own_and_judge_the_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def spare(context, row):\n    return -float(context.state.requested[row, 0])\n")
    write(tmp_path / "a trace", *busy(), *life("long", 1, 1, "a", 90))
    few = ["--steps", "32", "--teacher-steps", "16", "--teacher-passes", "1", "--validation-episodes", "1"]
    assert command("train", ["--agent", "dqn", "--task", "a trace/", "--reward", "mine.py:spare", *few]) == 0
    assert "best validation score" in (said := capsys.readouterr().out)
    assert "of least-variance's" in said  # whose goal is that of balance, and who is imitated first
    judged = ["--task=a trace/", "--models=runs/dqn-a-trace-s0", "--policies=kube-scheduler", "--out=judged"]
    assert command("evaluate", judged) == 0
    assert "dqn-a-trace-s0" in capsys.readouterr().out
    assert {path.suffix for path in (tmp_path / "judged").iterdir()} >= {".html", ".png", ".svg", ".csv"}


def test_an_agent_trains_on_the_windows_before_the_holdout(tmp_path):
    """A stream of training plays whole windows, none of which begins at 70 s or later."""
    folder = write(tmp_path / "t", *busy())
    factory = EnvFactory(EnvConfig(folder, (2,)))
    stream = Stream(factory, seed=3, index=0)
    played = set()
    for _ in range(40):
        played |= {pod.name for pod in stream.cluster.workload}
        stream.step(make_policy("first-fit"))
    judged = {f"p{number}" for number in range(70, 100)}
    validated = {f"p{number}" for window in (4, 9) for number in range(5 * window, 5 * window + 5)}
    assert len(played) > 5
    assert not played & (judged | validated)
    assert factory.play(make_policy("first-fit"), VALIDATION_SEEDS, 2)["arrived"] == 5.0


def test_a_trace_is_a_bill_with_nodes_that_an_autoscaler_buys(tmp_path):
    lives = [life(f"p{i}", 25.0 * i, 25.0 * i, "ab"[i % 2], 25.0 * i + 60.0) for i in range(40)]
    task = find_task(f"bill@{write(tmp_path / 'trace', *(event for each in lives for event in each), until=1000.0)}")
    assert (task.metric, task.unit) == ("cost", "window")
    for number in task.episodes:
        cluster, window = task.build(number, invariants=True), task.window(number)
        assert not len(cluster.state), "the trace's own nodes are left aside"
        play(cluster, make_policy("kube-scheduler"))
        told = cluster.metrics()
        assert (
            told["arrived"]
            == len(window.running) + len(window.arrivals)
            == told["departed"] + told["pending"] + len(cluster.state.placements)
        )
        assert told["bound"] > 0 < told["bill"]
    with pytest.raises(UserError, match="windows of the trace's holdout"):
        task.build(10_000)


def bought(name, price):
    return Node(name, {CPU: 1000, MEMORY: 1 << 30, PODS: 10}, {TYPE_LABEL: "m1", PRICE_LABEL: str(price)})


def test_recorded_nodes_cost_their_price_while_they_were_there():
    """An hour: a at a dollar throughout, b at two for its first half, c at four from three quarters on."""
    nodes = [bought("a", 1.0), bought("b", 2.0)]
    events = [NodeGone(at=1800.0, name="b"), NodeSeen(at=2700.0, node=bought("c", 4.0)), *life("p", 0, 0, "a", 1800.0)]
    window = windows(*events, nodes=nodes, length=3600.0, until=4000.0).window(0)
    told, unpriced = recorded_dollars(window, PriceList(()))
    # Half a core for half an hour is a quarter of a core-hour.
    assert told == {"bill": 3.0, "bill_per_core_hour": 12.0, "mean_nodes": 1.75}
    assert not unpriced
    bare = windows(*life("p", 0, 0, "a", 50.0)).window(0)
    told, unpriced = recorded_dollars(bare, PriceList(()))
    assert np.isnan(told["bill"])
    assert unpriced == {"no instance type": 2}


def test_pods_that_come_with_a_node_are_not_bought_for(tmp_path):
    """A DaemonSet of a core and a place for a pod on both nodes: no pod of it waits, and each type offers less.

    Types of one core have none left, and are not bought.
    """
    daemon = [
        event
        for node in "ab"
        for event in (
            PodSeen(at=0.0, pod=Pod(f"d-{node}", requests={CPU: 1000}, owner="DaemonSet/d")),
            PodBound(at=0.0, uid=f"default/d-{node}", node_name=node),
        )
    ]
    folder = write(tmp_path / "t", *daemon, *busy())
    task = find_task(f"bill@{folder}")
    cluster = task.build(14)
    assert {pod.owner for pod in cluster.workload} == {""}
    plain = [dict(each.allocatable) for each in shipped_catalogue().types if not each.name.endswith("-1")]
    there = [dict(each.allocatable) for each in task.catalogue.types]
    assert len(there) == len(plain) == len(shipped_catalogue()) - 3
    for less, whole in zip(there, plain, strict=True):
        assert whole == {**less, CPU: less[CPU] + 1000, PODS: less[PODS] + 1}
    small = Catalogue(tuple(each for each in shipped_catalogue().types if each.name.endswith("-1")))
    with pytest.raises(UserError, match=r"none has room for pods beside the trace's DaemonSets, which ask for 1 cores"):
        provisioned_from(task, small)


def test_a_recording_with_zones_spread_and_anti_affinity_is_played_on_nodes_that_karpenter_buys(tmp_path, capsys):
    """Six replicas apart, two in each zone; a database whose disk is in b; two pods with one host port."""
    web = LabelSelector((Requirement("app", "In", ("web",)),))
    alone = Affinity(required_anti_pods=(PodAffinityTerm(HOSTNAME_LABEL, web, frozenset({"default"})),))
    disk = NodeSelectorTerm((Requirement("topology.ebs.csi.aws.com/zone", "In", ("b",)),))
    pods = [
        *(Pod(f"web{number}", requests={CPU: 500}, labels={"app": "web"}, affinity=alone, created_s=10.0,
              spread=(TopologySpread(1, ZONE_LABEL, web),)) for number in range(6)),
        Pod("db", requests={CPU: 1000}, volumes=VolumeNeeds(((disk,),), frozenset({("ebs", "v")})), created_s=20.0),
        *(Pod(f"port{number}", requests={CPU: 100}, host_ports=(HostPort(80),), created_s=20.0) for number in range(2)),
    ]  # fmt: skip
    events = [PodSeen(at=each.created_s, pod=each) for each in pods]
    events += [PodBound(at=each.created_s, uid=each.uid, node_name="a") for each in pods]
    folder = write(tmp_path / "t", *events, until=400.0)
    (tmp_path / "t" / "split.json").write_text('{"window_s": 200.0, "holdout_from_s": 0.0}')
    types = tmp_path / "types.json"
    types.write_text(written_catalogue(
        replace(each, offerings=tuple(Offering(each.cheapest.price * dearer, "on-demand", zone)
                                      for zone, dearer in (("a", 1.0), ("b", 1.1), ("c", 1.2))))
        for each in shipped_catalogue().types
    ))  # fmt: skip
    task = find_task(f"bill@{folder}")
    cluster = provisioned_from(task, read_catalogue(types)).build(0, invariants=True)
    play(cluster, make_policy("kube-scheduler"))
    nodes = {node.name: node for node in cluster.state.nodes}
    where = {each.pod.name: nodes[each.node_name] for each in cluster.state.placements.values()}
    assert len(where) == 9, "nobody waits"
    webs = [where[f"web{number}"] for number in range(6)]
    assert len({node.name for node in webs}) == 6
    assert sorted(node.labels[ZONE_LABEL] for node in webs) == list("aabbcc")
    assert where["db"].labels[ZONE_LABEL] == "b"
    assert where["port0"] != where["port1"]
    arguments = [folder, "--policy=most-allocated", "--autoscaler=karpenter", f"--instance-types={types}"]
    assert command("replay", [*arguments, "--windows=all", f"--out={tmp_path / 'out'}"]) == 0
    assert "  most-allocated: $" in capsys.readouterr().out
    alone = [f"--task=bill@{folder}", "--policies", "--bound", "--limit-s=0.1"]
    assert command("evaluate", [*alone, f"--out={tmp_path / 'bound'}"]) == 0
    assert (
        "9 of 9 pods ask for zones, other pods, ports or volumes, too, which is not heeded" in capsys.readouterr().out
    )


def test_the_command_says_what_the_windows_would_have_cost(tmp_path, capsys):
    nodes = [bought("a", 1.0), bought("b", 2.0)]
    lives = [life(f"p{i}", 25.0 * i, 25.0 * i, "ab"[i % 2], 25.0 * i + 60.0) for i in range(80)]
    folder = write(tmp_path / "t", *(event for each in lives for event in each), nodes=nodes, until=2000.0)
    out = tmp_path / "out"
    arguments = [folder, "--policy", "kube-scheduler-packing", "--autoscaler", "karpenter", f"--out={out}"]
    assert command("replay", arguments) == 0
    said = capsys.readouterr().out
    assert f"bill@{folder}" in said
    assert "bill (lower is better)" in said
    rows = pd.read_csv(out / "results.csv")
    mean = rows.groupby("policy")["bill"].mean()
    assert mean["recorded"] == pytest.approx(3.0), "a dollar and two dollars an hour, throughout"
    assert mean["kube-scheduler-packing"] > 0.0
    hours = rows["seed"].nunique() * 180.0 / 3600.0  # windows of whole minutes, below a tenth of the trace
    assert f"What these windows ({hours:.3g} h together) would have cost:" in said
    assert f"  recorded: ${3.0 * hours:.4g}, by the prices of its nodes' types" in said
    hour = rows.pivot_table(index="seed", columns="policy", values="bill_per_core_hour").dropna()
    ratio = math.exp(np.log(hour["kube-scheduler-packing"] / hour["kube-scheduler"]).mean())
    (line,) = (line for line in said.splitlines() if line.startswith("  kube-scheduler-packing: $"))
    assert f", {ratio:.3f} [" in line
    assert line.endswith("] of kube-scheduler's for a requested core-hour")
    types = tmp_path / "types.json"
    types.write_text(written_catalogue(replace(each, name=f"own-{each.name}") for each in shipped_catalogue().types))
    assert command("replay", [*arguments, "--instance-types", str(types)]) == 0
    assert "What these windows" in capsys.readouterr().out
    (again,) = playable(out)
    replay = again.spec.replay("kube-scheduler-packing", again.seeds[0])
    assert {node.labels[TYPE_LABEL][:4] for node in replay.nodes} == {"own-"}, "the lab plays it with these types, too"
    for wrong, message in (
        (["--autoscaler=karpenter", "--on=aaml"], "nothing with --autoscaler"),
        (["--instance-types", str(types)], "with --autoscaler only"),
    ):
        assert command("replay", [folder, "--policy", "random", *wrong]) == 2
        assert message in capsys.readouterr().err
    assert command("replay", [f"compress@{folder}", "--autoscaler=karpenter"]) == 2
    assert "a folder alone" in capsys.readouterr().err


def test_a_type_that_fits_no_pod_is_told(tmp_path, capsys):
    lives = [
        life(f"p{i}", 25.0 * i, 25.0 * i, "a", 25.0 * i + 60.0, cpu=500_000 if i == 70 else 500) for i in range(80)
    ]
    folder = write(tmp_path / "t", *(event for each in lives for event in each), until=2000.0)
    assert command("replay", [folder, "--policy", "random", "--autoscaler=karpenter", f"--out={tmp_path / 'out'}"]) == 0
    said = capsys.readouterr().out
    assert "1 of the windows'" in said
    assert "fit no instance type" in said
    assert "what the recorded nodes cost is not known; without a price: no instance type" in said
