"""kube-scheduler spreads the pods of an owner by default: whoever plays it on such pods plays that, and rows tell."""

import random
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aaml.cli import run as command
from aaml.cluster.objects import HOSTNAME_LABEL, Node, Pod
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.commands.table import COMMANDS, module_of
from aaml.episodes import kube_flow
from aaml.episodes.kube_flow import KubeFlow
from aaml.episodes.ports import Beginning
from aaml.episodes.spreading import Spreading
from aaml.evaluation import identity as identity_module
from aaml.evaluation import program
from aaml.evaluation.identity import identity, inputs
from aaml.evaluation.policies import load_policy
from aaml.evaluation.run_spec import RunSpec
from aaml.evolve.search import inputs_of as formula_inputs
from aaml.evolve.settings import EvolveConfig
from aaml.insight.replay import Replay
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.kube_scores import KubeScheduler, KubeSchedulerConfig, topology
from aaml.policies.kube_scores.siblings import owner_selector
from aaml.policies.kube_scores.topology import soft_constraints
from aaml.policies.registry import POLICIES, make_policy
from aaml.scheduling.observation import Context
from aaml.scheduling.play import play
from aaml.scheduling.ports import Decision
from aaml.settings import Settings
from aaml.sim.cluster import SimCluster
from aaml.sim.recorded_bill import bill_of
from aaml.sim.tasks import find_task
from aaml.training.run import inputs_of as training_inputs
from aaml.training.settings import TrainConfig
from aaml.tuning.bill import BillTuning
from aaml.tuning.bill_space import Setup, evaluate_setups
from aaml.tuning.episodes import evaluate_configurations
from aaml.tuning.kube_scheduler import KubeSchedulerTuning
from aaml.tuning.nodes import NodePolicyTuning, evaluate_nodes
from aaml.workload.trace.events import Began, Listed, NodeSeen, PodBound, PodEnded, PodSeen, Watched
from aaml.workload.trace.store import TraceWriter

UNTIL_S = 400.0
NAMES = ("a", "b", "c")
GIB = 1 << 30
PROFILE = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def of_web(name: str, **fields: object) -> Pod:
    """A pod of one Deployment."""
    return Pod(
        name, uid=name, requests={CPU: 200, MEMORY: GIB}, owner="ReplicaSet/web-5d4f",
        labels={"pod-template-hash": "5d4f"}, **fields,
    )  # fmt: skip


def node(name: str, cores: int) -> Node:
    return Node(name, {CPU: 1000 * cores, MEMORY: 8 * cores * GIB, PODS: 110}, {HOSTNAME_LABEL: name})


def write_trace(folder: Path, *, siblings: bool) -> Path:
    """Write a trace of 400 s: pods that run for 3 to 60 s on three nodes, of which the first is the largest by far."""
    rng, events = random.Random(5), []
    for number in range(60):
        at = round(rng.uniform(0, UNTIL_S - 10), 3)
        pod = of_web(f"p{number}", created_s=at)
        pod = pod if siblings else replace(pod, owner="")
        events += [PodSeen(at=at, pod=pod), PodBound(at=at, uid=pod.uid, node_name=rng.choice(NAMES))]
        if (end := round(at + rng.uniform(3, 60), 3)) < UNTIL_S:
            events.append(PodEnded(at=end, uid=pod.uid))
    nodes = [node(name, cores) for name, cores in zip(NAMES, (64, 8, 8), strict=True)]
    with TraceWriter(folder) as writer:
        for event in (Began(at=0.0), *(NodeSeen(at=0.0, node=each) for each in nodes), Listed(at=0.0)):
            writer.write(event)
        for event in sorted(events, key=lambda each: each.at):
            writer.write(event)
        writer.write(Watched(at=UNTIL_S))
    return folder


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A trace of pods with siblings, in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "default.yaml").write_text(PROFILE, "utf-8")
    write_trace(tmp_path / "trace", siblings=True)
    return "trace"


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether siblings were spread, for each decision of a kube-scheduler on a pod that has some.

    Of a compiled episode with such pods it is one entry.
    """
    found: list[bool] = []
    compiled: list[KubeFlow] = []
    scorers: list[Spreading] = []
    act, play_flow, make = KubeScheduler.act, KubeFlow.play, kube_flow.spreading_of
    of = KubeFlow.of.__func__  # type: ignore[attr-defined]

    def acted(self: KubeScheduler, context: Context) -> Decision:
        if owner_selector(context.pod) is not None:
            found.append(bool(soft_constraints(context.pod, self.config)[0]))
        return act(self, context)

    def taken_over(cls: type[KubeFlow], cluster: Beginning) -> KubeFlow:
        flow: KubeFlow = of(cls, cluster)
        if any(owner_selector(pod) is not None for pod in cluster.workload.pods):
            compiled.append(flow)
        return flow

    def made(*given: Any) -> Spreading:
        scorers.append(make(*given))
        return scorers[-1]

    def played(self: KubeFlow, *given: Any) -> Mapping[str, float]:
        before = len(scorers)
        metrics = play_flow(self, *given)
        if self in compiled:
            found.append(len(scorers) > before)
        return metrics

    monkeypatch.setattr(KubeScheduler, "act", acted)
    monkeypatch.setattr(KubeFlow, "of", classmethod(taken_over))
    monkeypatch.setattr(KubeFlow, "play", played)
    monkeypatch.setattr(kube_flow, "spreading_of", made)
    return found


# ---- every command ---------------------------------------------------------------------------------------------------

SHORT = ("--generations", "1", "--population", "4", "--episodes", "1", "--workers", "1")
PLAYED: dict[str, tuple[tuple[str, ...], ...]] = {
    "evaluate": (
        ("--task", "trace", "--policies", "kube-scheduler", "kube-scheduler-packing", "kube-scheduler:default.yaml",
         "--workers", "1"),
        ("--task", "bill@trace", "--policies", "kube-scheduler", "--workers", "1"),
    ),
    "replay": (
        ("trace", "--policy", "kube-scheduler-packing"),
        ("trace", "--policy", "kube-scheduler:default.yaml", "--autoscaler", "karpenter"),
    ),
    "explain": (("0", "--run", "of-trace", "--policy", "kube-scheduler"),),
    "lab": (("of-trace", "--export", "page.html", "--decisions", "3"),),
    "search scheduler": (("--task", "trace", "--out", "tuned.yaml", *SHORT),),
    "search bill": (("--task", "bill@trace", "--out", "bill", *SHORT),),
    "search nodes": (
        ("--task", "bill@trace", "--out", "nodes.yaml", *SHORT),
        ("--task", "bill@trace", "--out", "more.yaml", "--policy", "kube-scheduler", *SHORT),
    ),
    "search formula": (
        ("--task", "bill@trace", "--reference", "kube-scheduler", "--out", "formulas", "--islands", "1", "--tuned", "0",
         "--validation-episodes", "1", *SHORT),
    ),
    "train": (
        ("--agent", "dqn", "--task", "trace", "--steps", "60", "--teacher", "kube-scheduler", "--out", "trained"),
    ),
}  # fmt: skip
ELSEWHERE = {
    "search training": "trainings, as train",
    "search network": "a network and formulas",
    "bench leaderboard": "tasks of ours",
    "demo": "tasks of ours",
    "report leaderboard": "nothing: it reads",
    "cluster simulate": "a workload of its own",
    "bench chaos": "real clusters",
    "bench soak": "real clusters",
}
"""Commands that have a task or runs, and what they play in place of kube-scheduler on a trace."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argv"), [(name, argv) for name, each in PLAYED.items() for argv in each])
def test_whoever_plays_kube_scheduler_on_a_trace_spreads_the_pods_of_an_owner(
    name: str, argv: tuple[str, ...], trace: str, spread: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    if "of-trace" in argv:
        evaluated = ["--task", trace, "--policies", "kube-scheduler", "--out", "of-trace", "--workers", "1"]
        assert command("evaluate", evaluated) == 0
        spread.clear()
    assert command(name, list(argv)) == 0, capsys.readouterr().err
    assert spread
    assert all(spread)


def settings_of(args: type[Settings]) -> set[str]:
    """The names of a command's settings, those of its parts too."""
    found = {each.name for each in fields(args)}
    return found.union(*(settings_of(type(each.default)) for each in fields(args) if is_dataclass(each.default)))


def test_every_command_that_plays_a_task_or_a_run_is_here() -> None:
    playing = {name for name in COMMANDS if {"task", "run", "runs", "sim_policy"} & settings_of(module_of(name).Args)}
    assert {*PLAYED, *ELSEWHERE} == {*playing, "replay"}  # which has a trace, as commands have that only read one


@pytest.mark.parametrize("spec", ["kube-scheduler", "kube-scheduler-packing", "kube-scheduler:default.yaml"])
def test_every_kube_scheduler_spreads_pods_that_have_siblings_and_no_others(spec: str, trace: str) -> None:
    config = load_policy(spec).config  # type: ignore[attr-defined]
    assert soft_constraints(of_web("w"), config)[0]
    assert not soft_constraints(replace(of_web("w"), owner=""), config)[0]


# ---- what searches play is what an evaluation plays ------------------------------------------------------------------


@pytest.mark.parametrize("goal", ["", "bill@"])
def test_a_search_has_the_metrics_that_an_evaluation_has_of_the_same_window(goal: str, trace: str) -> None:
    task = find_task(goal + trace)
    metric = "bill" if goal else "mean_variance"
    seed = task.episodes[0]
    cluster = task.build(seed)
    play(cluster, make_policy("kube-scheduler", PolicyOptions(seed=seed)))
    whole = cluster.metrics()[metric]
    assert evaluate_configurations(task, seed, None, [KubeSchedulerConfig()], [metric]).tolist() == [[whole]]
    if goal:
        assert evaluate_nodes(task, seed, None, [("kube-scheduler", None)], [metric]).tolist() == [[whole]]
        setup = Setup(KubeSchedulerConfig(), bill_of(task).autoscaler)
        assert evaluate_setups(task, seed, None, [setup], [metric]).tolist() == [[whole]]


@pytest.mark.parametrize("siblings", [False, True])
def test_compiled_episodes_spread_pods_by_default_as_the_simulator_does(
    siblings: bool, tmp_path: Path, spread: list[bool]
) -> None:
    config, task = KubeSchedulerConfig(ties="fixed"), find_task(f"bill@{write_trace(tmp_path, siblings=siblings)}")
    cluster = task.build(task.episodes[0])
    play(cluster, KubeScheduler(np.random.default_rng(0), config))
    spread.clear()
    assert KubeFlow.of(task.build(task.episodes[0])).play(config) == pytest.approx(
        cluster.metrics(), rel=1e-12, nan_ok=True
    )
    assert spread == [True] * siblings


def test_the_live_view_explains_by_a_kube_scheduler_that_spreads() -> None:
    """The lab looks at a live cluster under a task of ours, whose own pods have no siblings."""
    spec = RunSpec(find_task("balance"), {"cluster": "kube-scheduler"})
    cluster = SimCluster([node("a", 64), node("b", 8)], [of_web("w1"), of_web("w2")])
    replay = Replay.of(cluster, make_policy("kube-scheduler"))
    play(cluster, make_policy("kube-scheduler"), observers=[replay])
    explained = spec.explain(replay, replay.decisions[1], "cluster")
    assert "PodTopologySpread" in str(explained)


# ---- and rows tell it ------------------------------------------------------------------------------------------------

KUBE_SCHEDULERS = {"kube-scheduler", "kube-scheduler-packing"}


def test_every_kube_scheduler_has_another_identity_on_a_trace_with_siblings_and_no_other_policy(
    trace: str, tmp_path: Path
) -> None:
    lone = find_task(str(write_trace(tmp_path / "lone", siblings=False)))
    told = {}
    ours = [name for name in POLICIES.names() if ".py:" not in name]  # other tests load files of their own
    for name in ours:
        told[name] = identity(find_task(trace), None, name, name)["policy_sha256"]
        assert identity(lone, None, name, name)["policy_sha256"] == ""
        assert identity(find_task("balance"), None, name, name)["policy_sha256"] == ""
    assert {name for name, digest in told.items() if digest} == KUBE_SCHEDULERS
    made = {name for name in ours if isinstance(make_policy(name), KubeScheduler)}
    assert made == KUBE_SCHEDULERS
    spec = "kube-scheduler:default.yaml"
    assert identity(find_task(trace), None, spec)["policy_sha256"] != identity(lone, None, spec)["policy_sha256"]


OWN = """
from dataclasses import replace
from aaml.cluster.objects import Pod
from aaml.sim.tasks import TASKS
from aaml.workload.model import Workload
def draw(nodes, pods, rng):
    labels = {"pod-template-hash": "a"}
    return Workload.of([Pod(str(n), requests={"cpu": 100}, labels=labels, owner="ReplicaSet/a") for n in range(pods)])
siblings = replace(TASKS["balance"], draw=draw)
strangers = replace(TASKS["balance"], nodes=4)
"""


def test_a_task_of_ones_own_tells_it_where_its_pods_have_siblings(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    tasks = [find_task(f"{file}:{name}") for name in ("siblings", "strangers")]
    found = [identity(task, None, "kube-scheduler", "kube-scheduler")["policy_sha256"] for task in tasks]
    assert found[0]
    assert not found[1]


def test_the_name_of_default_spreading_changes_with_what_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    named = program.spreading_sha256.__wrapped__
    before = named()
    assert named() == before
    monkeypatch.setattr(topology, "soft_constraints", lambda pod, config: ([], False))
    assert named() != before


def test_rows_of_another_spreading_are_not_gone_on_with(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--task", trace, "--policies", "kube-scheduler", "first-fit", "--out", "out", "--workers", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(identity_module, "_spreading", lambda _spec, _task: "")
        assert command("evaluate", argv) == 0
    capsys.readouterr()
    assert command("evaluate", [*argv, "--resume"]) == 2
    assert "has runs of policy kube-scheduler as it was before (policy_sha256 none" in capsys.readouterr().err
    assert command("explain", ["0", "--run", "out"]) == 2
    assert "policy: kube-scheduler is not what it was in this run" in capsys.readouterr().err


SEARCHES: dict[str, Callable[[str], dict[str, str]]] = {
    "scheduler": lambda trace: KubeSchedulerTuning(find_task(trace), Path("out.yaml")).inputs(),
    "bill": lambda trace: BillTuning(find_task(f"bill@{trace}"), Path("out")).inputs(),
    "nodes": lambda trace: NodePolicyTuning(find_task(f"bill@{trace}"), Path("out.yaml")).inputs(),
    "formula": lambda trace: formula_inputs(EvolveConfig(task=(trace,), reference="kube-scheduler")),
    "training": lambda trace: training_inputs(TrainConfig(task=trace, teacher="kube-scheduler")),
}


@pytest.mark.parametrize("search", SEARCHES)
def test_default_spreading_is_an_input_of_what_plays_kube_scheduler_on_siblings(
    search: str, trace: str, tmp_path: Path
) -> None:
    assert SEARCHES[search](trace)["default spreading"] == program.spreading_sha256()
    assert "default spreading" not in SEARCHES[search](str(write_trace(tmp_path / "lone", siblings=False)))
    assert "default spreading" not in inputs([find_task(trace)], {"reference": "first-fit"})
