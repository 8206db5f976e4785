"""`aaml replay`: each number beside one that is computed from the trace's own lines by other means."""

import csv
import gzip
import json
import random
from itertools import pairwise

import pandas as pd
import pytest

from aaml.cli import run as command
from aaml.cluster.objects import Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.evaluation.results import Results
from aaml.evaluation.what_if import comparable, paid
from aaml.workload.trace.events import Began, Listed, NodeSeen, PodBound, PodEnded, PodSeen, Watched
from aaml.workload.trace.store import TraceWriter

WINDOW_S, UNTIL_S = 50.0, 500.0
NAMES = ("a", "b", "c")


@pytest.fixture
def trace(tmp_path):
    """500 s of three large nodes: pods that wait for up to 2 s, run for 3 to 60 s, and were put on any node."""
    rng, events = random.Random(5), []
    for number in range(120):
        at = round(rng.uniform(0, UNTIL_S - 10), 3)
        bound, node = round(at + rng.choice([0.0, 0.05, 2.0]), 3), rng.choice(NAMES)
        pod = Pod(f"p{number}", requests={CPU: rng.choice([50, 100, 300])}, created_s=float(int(at)))
        events += [PodSeen(at=at, pod=pod), PodBound(at=bound, uid=pod.uid, node_name=node)]
        if (end := round(bound + rng.uniform(3, 60), 3)) < UNTIL_S:
            events.append(PodEnded(at=end, uid=pod.uid))
    folder = tmp_path / "trace"
    with TraceWriter(folder) as writer:
        nodes = [Node(name, {CPU: 30_000, MEMORY: 1 << 40, PODS: 500}) for name in NAMES]
        for event in (Began(at=0.0), *(NodeSeen(at=0.0, node=node) for node in nodes), Listed(at=0.0)):
            writer.write(event)
        for event in sorted(events, key=lambda each: each.at):
            writer.write(event)
        writer.write(Watched(at=UNTIL_S))
    return folder


@pytest.fixture
def raw(trace):
    """What the lines say of each pod: CPU, created, bound, node, ended."""
    found = {}
    for part in sorted(trace.glob("part-*.gz")):
        for each in map(json.loads, gzip.decompress(part.read_bytes()).splitlines()):
            if each["event"] == "pod":
                name = each["pod"]["name"]
                cpu = each["pod"]["requests"]["cpu"]
                found[f"default/{name}"] = {"cpu": cpu, "created": each["at"], "ended": float("inf")}
            elif each["event"] == "bound":
                found[each["uid"]] |= {"bound": each["at"], "node": each["node_name"]}
            elif each["event"] == "ended":
                found[each["uid"]]["ended"] = each["at"]
    return list(found.values())


def over_time(pods, start_s, value):
    """The mean over a window of a value of the pods that run: asked for between all moments at which any changes."""
    end_s = start_s + WINDOW_S
    moments = sorted({start_s, end_s, *(each[what] for each in pods for what in ("bound", "ended")
                                        if start_s < each[what] < end_s)})  # fmt: skip
    spans = pairwise(moments)
    return (
        sum((b - a) * value([each for each in pods if each["bound"] <= a < each["ended"]]) for a, b in spans) / WINDOW_S
    )


def empty_fraction(running):
    return 1 - len({each["node"] for each in running}) / len(NAMES)


def cpu_variance(running):
    use = [sum(each["cpu"] for each in running if each["node"] == name) / 30_000 for name in NAMES]
    mean = sum(use) / len(use)
    return sum((each - mean) ** 2 for each in use) / len(use)


def first_fit(pods, start_s):
    """The same pods in a window under first-fit, by which all go to a: at once, and for as long as they ran."""
    placed = []
    for each in pods:
        if each["bound"] < start_s:
            placed.append(each)
        elif each["created"] < start_s + WINDOW_S:
            at = max(each["created"], start_s)
            placed.append({**each, "node": "a", "bound": at, "ended": at + each["ended"] - each["bound"]})
    return placed


@pytest.mark.slow
def test_each_number_is_that_of_the_lines_of_the_trace(trace, raw, tmp_path, capsys):
    assert command("trace", ["split", str(trace), f"--window-s={WINDOW_S:g}", "--holdout=0.5"]) == 0
    capsys.readouterr()
    out = tmp_path / "out"
    metrics = ["mean_empty_fraction", "mean_cpu_variance", "waiting_mean_s"]
    assert command("replay", [str(trace), "--policy", "first-fit", f"--out={out}", "--metric", *metrics]) == 0
    said = capsys.readouterr().out
    rows = {(row["policy"], int(row["seed"])): row for row in csv.DictReader((out / "results.csv").open())}
    told = {int(row["seed"]): row for row in csv.DictReader((out / "windows.csv").open())}
    assert sorted(told) == [5, 6, 7, 8, 9]
    arrive, ran = set(), set()
    for number in told:
        start_s = number * WINDOW_S
        inside = [each for each in raw if each["created"] < start_s + WINDOW_S and each["ended"] > start_s]
        new = [each for each in inside if each["created"] >= start_s]
        waiting = [each for each in inside if each["created"] < start_s <= each["bound"]]
        running = [each for each in inside if each["bound"] < start_s]
        assert [int(told[number][name]) for name in ("arrivals", "waiting_at_start", "running_at_start")] == [
            len(new), len(waiting), len(running),
        ]  # fmt: skip
        arrive |= {id(each) for each in (*new, *waiting)}
        ran |= {id(each) for each in running}
        waits = [min(each["bound"], start_s + WINDOW_S) - max(each["created"], start_s) for each in (*new, *waiting)]
        recorded, played = rows["recorded", number], rows["first-fit", number]
        assert float(recorded["waiting_mean_s"]) == pytest.approx(sum(waits) / len(waits))
        assert float(recorded["arrived"]) == len(waits)
        assert float(recorded["bound"]) == sum(start_s <= each["bound"] <= start_s + WINDOW_S for each in inside)
        assert float(recorded["mean_empty_fraction"]) == pytest.approx(over_time(raw, start_s, empty_fraction))
        assert float(recorded["mean_cpu_variance"]) == pytest.approx(over_time(raw, start_s, cpu_variance))
        simulated = first_fit(inside, start_s)
        assert float(played["mean_empty_fraction"]) == pytest.approx(over_time(simulated, start_s, empty_fraction))
        assert float(played["mean_cpu_variance"]) == pytest.approx(over_time(simulated, start_s, cpu_variance))
        assert float(played["waiting_mean_s"]) == 0.0
    ran -= arrive
    outside = len(raw) - len(arrive) - len(ran)
    assert (
        f"of the trace's {len(raw)} pods {len(arrive)} arrive in them, {len(ran)} have a node already, "
        f"{outside} are in none of them" in said
    )
    for name in ("recorded", "first-fit"):
        means = [float(rows[name, number]["mean_empty_fraction"]) for number in told]
        shown = next(line for line in said.splitlines() if line.startswith(name) and "[" in line)
        assert float(shown.split()[1]) == pytest.approx(sum(means) / len(means), abs=5e-3)


@pytest.mark.slow
def test_a_decision_of_any_window_is_explained_by_who_decided(trace, tmp_path, capsys):
    out = tmp_path / "out"
    assert command("replay", [str(trace), "--policy", "first-fit", "--windows", "all", f"--out={out}"]) == 0
    capsys.readouterr()
    for policy in ("first-fit", "kube-scheduler"):
        assert command("explain", ["0", "--run", str(out), "--policy", policy, "--seed", "1"]) == 0
        assert f"of {policy}" in capsys.readouterr().out
    (spec,) = Results.read(out).run_specs.values()
    assert spec.entry("kube-scheduler").spec == "kube-scheduler"
    assert spec.task.episodes == tuple(range(10))


def test_a_window_in_which_a_metric_has_no_value_for_somebody_is_left_out_and_told():
    nan, metric = float("nan"), "bill_per_core_hour"
    values = {"recorded": [nan, nan, 2.0, 4.0], "kube-scheduler": [nan, 1.0, 3.0, 5.0], "nilas": [nan, 1.0, 3.0, 4.0]}
    rows = [
        {"task": "bill", "nodes": 3, "policy": name, "seed": window, metric: value, "cost": value, "fluid_ratio": nan}
        for name, windows in values.items()
        for window, value in enumerate(windows)
    ]
    results = Results.of([row | {"cost": nan} if row["policy"] == "recorded" else row for row in rows])
    chosen, said = comparable(results, metric, ("kube-scheduler", "nilas"))
    assert said == [f"{metric} is compared in 2 of 4 windows: in the others it has no value"]
    assert chosen.runs.groupby("policy")["seed"].apply(list).to_dict() == {name: [2, 3] for name in values}
    assert str(chosen.compare("kube-scheduler", metric))
    chosen, said = comparable(results, "cost", ("kube-scheduler", "nilas"))  # who has it nowhere is not compared by it
    assert said == ["cost is compared in 3 of 4 windows: in the others it has no value"]
    assert set(chosen.runs["policy"]) == {"kube-scheduler", "nilas"}
    assert comparable(results, "fluid_ratio", ("nilas",))[0].runs.empty


def test_the_recorded_dollars_are_those_of_the_windows_in_which_they_are_known():
    rows = [
        {"task": "bill", "nodes": 1, "policy": policy, "seed": seed, "bill": bill, "bill_per_core_hour": 1.0, "lost": 0}
        for policy, bills in {"recorded": (float("nan"), 2.0, 4.0), "kube-scheduler": (90.0, 3.0, 5.0)}.items()
        for seed, bill in enumerate(bills)
    ]
    results = Results(pd.DataFrame(rows), frozenset())
    told = paid(results, ["kube-scheduler"], 3 * 1800.0)
    assert told[1] == (
        "  recorded: $3, by the prices of its nodes' types, in the 2 of 3 windows in which each has one; "
        "kube-scheduler in these: $4"
    )
    assert told[2].startswith("  kube-scheduler: $49")
    whole = Results(pd.DataFrame(rows).fillna({"bill": 6.0}), frozenset())
    assert paid(whole, ["kube-scheduler"], 3 * 1800.0)[1] == "  recorded: $6, by the prices of its nodes' types"
