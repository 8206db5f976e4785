"""What is played is known by contents: a changed byte of an input is another input, in every command that goes on."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from aaml.chaos.runs import ChaosRun, append, read
from aaml.chaos.settings import ChaosSettings
from aaml.cli import run
from aaml.commands.table import COMMANDS, module_of
from aaml.errors import UserError
from aaml.evaluation import program
from aaml.evaluation import results as results_module
from aaml.evaluation.entries import policy_entries
from aaml.evaluation.evaluate import evaluate, same_runs
from aaml.evaluation.identity import VERSION, identity, inputs, same_inputs
from aaml.evaluation.leaderboard.entry import Who
from aaml.evaluation.program import source_sha256
from aaml.evaluation.results import Results
from aaml.evolve import search as evolve_search
from aaml.evolve.distil import distil
from aaml.evolve.distil_settings import DistilConfig
from aaml.evolve.settings import EvolveConfig
from aaml.lab.runs import playable
from aaml.learning.linear import save_linear
from aaml.openb.tune import STAGES, ScorerTuning
from aaml.parallel.pool import open_pool
from aaml.policies.gpu.scorer_file import ScorerModel, save_scorer
from aaml.policies.gpu_names import FEATURES, GROUPS
from aaml.policies.heuristics.linear import LinearPolicy
from aaml.policies.kube_scores.profile import PREFIX
from aaml.policies.registry import make_reward, reward_terms
from aaml.settings import plain
from aaml.sim.tasks import find_task
from aaml.spot.search import SpotSearch
from aaml.study import study as study_module
from aaml.study.samplers import CmaEs
from aaml.study.study import Study
from aaml.study.trial import Trial
from aaml.training import run as training_run
from aaml.training.linear import start_weights
from aaml.training.settings import TrainConfig
from aaml.training.sweep import inputs_of_study
from aaml.training.sweep import sweep as run_sweep
from aaml.training.sweep_space import SweepConfig
from aaml.tuning.bill import BillTuning
from aaml.tuning.bill import tune as tune_bill_search
from aaml.tuning.kube_scheduler import KubeSchedulerTuning
from aaml.tuning.nodes import NodePolicyTuning
from aaml.workload.traces import NODE_LIST, POD_LIST_PREFIX, PUBLISHED_TRACES

TASK = "from dataclasses import replace\nfrom aaml.sim.tasks import TASKS\nmine = replace(TASKS['balance'], nodes=4)\n"
BILL = TASK.replace("TASKS", "ALL_TASKS").replace("balance", "bill")
REWARD = "def mine(change):\n    return 1.0\n\n\ndef other(change):\n    return 2.0\n"
SCORES = "def a(context):\n    return -context.state.requested[:, 0]\n\n\ndef b(context):\n    return -a(context)\n"
PROFILES = (
    "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n"
    "- schedulerName: p1\n- schedulerName: p2\n"
)
POOL = (
    "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: mine}\n"
    "spec: {disruption: {consolidateAfter: 30s, budgets: [{nodes: '3'}]}}\n"
)
NODES = "apiVersion: aaml.dev/v1\nkind: NodePolicy\nspec: {margin: 0.4}\n"
FORMULA = json.dumps({"format": "aaml-formula", "formula": "pair.variance_after"})


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, which is the working one, with an input of each kind."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    return tmp_path


def write_inputs(folder: Path) -> None:
    """Write an input of each kind into a folder."""
    for name, text in {
        "task.py": TASK, "bill.py": BILL, "reward.py": REWARD, "scores.py": SCORES, "profiles.yaml": PROFILES,
        "pool.yaml": POOL, "start.formula": FORMULA, "nodes.yaml": NODES,
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    save_scorer(ScorerModel(linear=np.ones((len(GROUPS), len(FEATURES)))), folder / "start.npz")
    save_linear(LinearPolicy(start_weights("least-variance")), folder / "start.json")


def change(path: Path) -> None:
    """Change a byte that says nothing."""
    path.write_bytes(path.read_bytes() + b"\n")


def train() -> dict[str, str]:
    rollout, teacher = f"{PREFIX}profiles.yaml#p1", "scores.py:a"
    return training_run.inputs_of(
        TrainConfig(
            task="task.py:mine", reward="reward.py:mine", start=Path("start.json"), rollout=rollout, teacher=teacher
        )
    )


def sweep() -> dict[str, str]:
    training = TrainConfig(task="task.py:mine", reward="reward.py:mine", steps=1000)
    return inputs_of_study(SweepConfig(training=training))


def evolve() -> dict[str, str]:
    return evolve_search.inputs_of(
        EvolveConfig(task=("task.py:mine",), reference="scores.py:a", start=(Path("start.formula"),))
    )


def sweep_of_rewards() -> dict[str, str]:
    space = ("reward=reward.py:mine,reward.py:other,balance",)
    return inputs_of_study(SweepConfig(training=replace(TRAINING, steps=2000), space=space))


def tune_kube_scheduler() -> dict[str, str]:
    return KubeSchedulerTuning(find_task("task.py:mine"), Path("out.yaml"), start=f"{PREFIX}profiles.yaml#p1").inputs()


def tune_bill() -> dict[str, str]:
    scheduler = f"{PREFIX}profiles.yaml#p1"
    return BillTuning(find_task("bill.py:mine"), Path("out"), scheduler=scheduler, nodepool=Path("pool.yaml")).inputs()


def tune_nodes() -> dict[str, str]:
    return NodePolicyTuning(
        find_task("bill.py:mine"), Path("out"), policy=f"{PREFIX}profiles.yaml#p1", start=Path("nodes.yaml")
    ).inputs()


INPUTS: dict[Callable[[], dict[str, str]], dict[str, str]] = {
    train: {
        "task": "task.py", "reward": "reward.py", "start": "start.json", "rollout": "profiles.yaml",
        "teacher": "scores.py",
    },
    sweep: {"task": "task.py", "reward": "reward.py", VERSION: ""},
    sweep_of_rewards: {
        VERSION: "",
        "task": "task.py", "reward reward.py:mine": "reward.py", "reward reward.py:other": "reward.py",
        "reward balance": "",
    },
    evolve: {"task": "task.py", "reference": "scores.py", "start": "start.formula"},
    tune_kube_scheduler: {"task": "task.py", "start": "profiles.yaml"},
    tune_bill: {"task": "bill.py", "scheduler": "profiles.yaml", "nodepool": "pool.yaml"},
    tune_nodes: {"task": "bill.py", "policy": "profiles.yaml", "start": "nodes.yaml"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name", "file"),
    [(command, name, file) for command, named in INPUTS.items() for name, file in named.items() if file],
)
def test_a_changed_byte_of_an_input_is_told_by_the_inputs_name(
    command: Callable[[], dict[str, str]], name: str, file: str, files: Path
) -> None:
    before = command()
    assert before.keys() == INPUTS[command].keys()
    same_inputs(command(), before, Path("out"))
    change(files / file)
    with pytest.raises(UserError, match=rf"^resume: out was begun with another .*{name}[:,]") as error:
        same_inputs(command(), before, Path("out"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "reward", ["balance=1,reward.py:mine=0.5", "reward.py:mine,balance", "balance,reward.py:mine=2"]
)
def test_a_changed_byte_of_a_reward_that_is_part_of_a_sum_is_told(reward: str, files: Path) -> None:
    config = TrainConfig(reward=reward)
    before = training_run.inputs_of(config)
    change(files / "reward.py")
    assert training_run.inputs_of(config)["reward"] != before["reward"]


@pytest.mark.parametrize(
    ("reward", "terms"),
    [
        ("lr=1/reward.py:mine", ["lr=1/reward.py:mine"]), ("lr=1/reward.py:mine=0.5", ["lr=1/reward.py:mine"]),
        ("balance=0.5,lr=1/reward.py:mine", ["balance", "lr=1/reward.py:mine"]),
    ],
)  # fmt: skip
def test_a_path_of_a_reward_may_hold_an_equals_sign(reward: str, terms: list[str], files: Path) -> None:
    assert reward_terms(reward) == terms
    (files / "lr=1").mkdir()
    (files / "lr=1" / "reward.py").write_text(REWARD)
    before = inputs(reward=reward)
    change(files / "lr=1" / "reward.py")
    assert inputs(reward=reward) != before
    assert callable(make_reward(reward).after)


def test_what_was_begun_before_inputs_were_kept_goes_on() -> None:
    same_inputs({"task": "a"}, None, Path("out"))


def test_runs_of_a_scheduler_whose_model_was_changed_are_made_again(files: Path) -> None:
    settings = ChaosSettings(scheduler="start.json")
    append(files / "runs.csv", ChaosRun("kill", 10, 0, 0, 1.0, 0), settings)
    append(files / "runs.csv", ChaosRun("kill", 10, 0, 0, 1.0, 0), replace(settings, scheduler="dqn"))
    assert len(read(files / "runs.csv", settings)) == 1
    change(files / "start.json")
    assert read(files / "runs.csv", settings) == []
    assert len(read(files / "runs.csv")) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"{PREFIX}profiles.yaml#p1", f"{PREFIX}profiles.yaml#p2"), ("scores.py:a", "scores.py:b"),
        ("least-allocated", "most-allocated"), ("first-fit+pool.yaml", "best-fit+pool.yaml"),
        ("first-fit+pool.yaml", "first-fit+learned"), ("first-fit+pool.yaml", "first-fit"),
        ("start.json", "start.json+learned"), ("scores.py:learneda", "scores.py:a+learned"),
        (f"{PREFIX}profiles.yaml#learned", f"{PREFIX}profiles.yaml+learned"),
    ],
)  # fmt: skip
def test_two_policies_of_one_label_are_two(one: str, other: str, files: Path) -> None:
    task = find_task("balance")
    hashes = [identity(task, None, spec, "a")["policy_sha256"] for spec in (one, other, one)]
    assert hashes[0] == hashes[2]
    assert hashes[0] != hashes[1]
    assert inputs(specs={"policy": one}) != inputs(specs={"policy": other})
    assert Who.of(policy_entries([f"a={one}"])[0]) != Who.of(policy_entries([f"a={other}"])[0])


def test_a_file_that_was_moved_is_the_same_and_ours_by_its_own_name_needs_no_hash(files: Path) -> None:
    (files / "elsewhere").mkdir()
    for name in ("scores.py", "task.py"):
        (files / "elsewhere" / name).write_bytes((files / name).read_bytes())
    assert inputs(specs={"policy": "scores.py:a"}) == inputs(specs={"policy": "elsewhere/scores.py:a"})
    assert inputs([find_task("task.py:mine")]) == inputs([find_task("elsewhere/task.py:mine")])
    assert identity(find_task("balance"), None, "best-fit", "best-fit")["policy_sha256"] == ""


def test_a_bill_is_another_with_another_catalogue_that_its_file_reads(files: Path) -> None:
    (files / "price.txt").write_text("1.0")
    (files / "priced.py").write_text(
        "from dataclasses import replace\nfrom pathlib import Path\nfrom aaml.sim.tasks import ALL_TASKS\n"
        "from aaml.nodes.settings import KarpenterSettings\n"
        f"after = float(Path({str(files / 'price.txt')!r}).read_text())\n"
        "mine = replace(ALL_TASKS['bill'], autoscaler=KarpenterSettings(consolidate_after_s=after))\n"
    )
    before = inputs([find_task("priced.py:mine")])
    for folder in ("moved", "copy"):
        (files / folder).mkdir()
        (files / folder / "priced.py").write_bytes((files / "priced.py").read_bytes())
    assert inputs([find_task("moved/priced.py:mine")]) == before
    (files / "price.txt").write_text("2.0")
    assert inputs([find_task("copy/priced.py:mine")]) != before


def test_the_nodes_of_openb_are_an_input_as_its_pods_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AAML_TRACES", str(tmp_path))
    lists = [NODE_LIST, *(f"{POD_LIST_PREFIX}{name}.csv" for name in PUBLISHED_TRACES)]
    for name in lists:
        (tmp_path / name).write_text("as it is\n")

    def found() -> list[dict[str, str]]:
        training = TrainConfig(agent=TrainConfig.agent, task="fragmentation", trace="default")
        search = EvolveConfig(task=("openb",), traces=("default",))
        return [training_run.inputs_of(training), evolve_search.inputs_of(search), ScorerTuning(Path("out")).inputs()]

    before = found()
    assert before == found()
    for name in (NODE_LIST, f"{POD_LIST_PREFIX}default.csv"):
        (tmp_path / name).write_text("another\n")
        after = found()
        assert all(old != new for old, new in zip(before, after, strict=True)), name
        before = after


# ---- the commands refuse it ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resumed:
    """A command as it is gone on with, and what leaves the beginning of its work."""

    begin: Callable[[], object]
    argv: tuple[str, ...]
    file: str
    name: str


def begin_training() -> None:
    with closing(training_run.open_run(TRAINING, Path("out"), resume=False)[1]):
        pass


def begin_tuning(asked: KubeSchedulerTuning | BillTuning | NodePolicyTuning | ScorerTuning | SpotSearch) -> None:
    with Study(asked.folder, asked.to_dict(), asked.inputs()) as study:
        sampler = CmaEs(np.zeros(2), population=4, deviation=1.0, seed=0)
        study.optimize(sampler, lambda asked, *_: [Trial(each, (0.0,)) for each in asked], 1, name="", progress=False)


def begin_sweep() -> None:
    with open_pool() as pool:
        run_sweep(STUDY, Path("out"), pool, train=lambda *_: 1.0, progress=False)


def begin_evolution() -> None:
    config = EvolveConfig(
        task=("task.py:mine",), nodes=(3,), pods=5, episodes=1, validation_episodes=1, population=4, islands=1,
        generations=1,
    )  # fmt: skip
    evolve_search.evolve(config, Path("out"), progress=False)


def begin_distillation() -> None:
    distil(Path("start.json"), DISTILLED, Path("out"), progress=False)


DISTILLED = DistilConfig(
    nodes=(3,), pods=5, states=5, rounds=1, generations=1, population=4, tuned=0, validation_episodes=1
)
TRAINING = TrainConfig(agent=TrainConfig.agent, task="task.py:mine", steps=1000)
STUDY = SweepConfig(training=replace(TRAINING, steps=2000), rungs=1, space=("learning_rate=0.1,0.2",))
RESUMED = {
    "train": Resumed(begin_training, ("--out", "out", "--resume"), "task.py", "task"),
    "search training": Resumed(
        begin_sweep,
        ("--out", "out", "--agent", "gnn", "--task", "task.py:mine", "--steps", "2000", "--rungs", "1", "--space",
         "learning_rate=0.1,0.2", "--resume"),
        "task.py", "task",
    ),
    "search formula": Resumed(
        begin_evolution, ("--out", "out", "--resume", "--task", "task.py:mine"), "task.py", "task"
    ),
    "search scheduler": Resumed(
        lambda: begin_tuning(
            KubeSchedulerTuning(find_task("balance"), Path("out.yaml"), start=f"{PREFIX}profiles.yaml")
        ),
        ("--out", "out.yaml", "--start", "profiles.yaml", "--resume", "--workers", "1"), "profiles.yaml", "start",
    ),
    "search bill": Resumed(
        lambda: begin_tuning(BillTuning(find_task("bill"), Path("out"), nodepool=Path("pool.yaml"))),
        ("--out", "out", "--nodepool", "pool.yaml", "--resume", "--workers", "1"), "pool.yaml", "nodepool",
    ),
    "search nodes": Resumed(
        lambda: begin_tuning(NodePolicyTuning(find_task("bill"), Path("out.yaml"), start=Path("nodes.yaml"))),
        ("--out", "out.yaml", "--start", "nodes.yaml", "--resume", "--workers", "1"), "nodes.yaml", "start",
    ),
    "search gpu": Resumed(
        lambda: begin_tuning(ScorerTuning(Path("out.npz"), STAGES[1:], Path("start.npz"))),
        ("--out", "out.npz", "--start", "start.npz", "--resume", "--workers", "1"), "start.npz", "start",
    ),
    "search spot": Resumed(
        lambda: begin_tuning(SpotSearch(Path("out.json"))), ("--out", "out.json", "--resume"), "", "traces"
    ),
    "search network": Resumed(
        begin_distillation,
        ("start.json", "--out", "out", "--nodes", "3", "--pods", "5", "--states", "5", "--rounds", "1", "--generations",
         "1", "--population", "4", "--tuned", "0", "--validation-episodes", "1", "--resume"),
        "start.json", "model",
    ),
}  # fmt: skip
SEARCHES = [name for name in RESUMED if name.startswith("search")]


def test_every_command_that_goes_on_is_here() -> None:
    going_on = {name for name in COMMANDS if hasattr(module_of(name).Args, "resume")}
    assert {*RESUMED, "evaluate"} == going_on


@pytest.mark.parametrize("command", [name for name, resumed in RESUMED.items() if resumed.file])
def test_a_command_that_goes_on_refuses_another_input_in_a_line(
    command: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resumed = RESUMED[command]
    resumed.begin()
    change(files / resumed.file)
    assert run(command, resumed.argv) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"was begun with another {resumed.name}: what is there now has other contents" in said


@pytest.mark.parametrize("command", SEARCHES)
def test_a_search_does_not_go_on_with_another_version_of_aaml(
    command: str, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = RESUMED[command]
    resumed.begin()
    for module, name in ((study_module, "program_sha256"), (program, "program_sha256")):
        monkeypatch.setattr(module, name, lambda: "another")
    assert run(command, resumed.argv) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "was begun with another version of AAML: what is there now has other contents" in said


def test_another_learner_is_another_version_of_what_trains(tmp_path: Path) -> None:
    package, names = tmp_path / "learning", []
    package.mkdir()
    for source in ('"""Step."""\nRATE = 1  # fast\n', "RATE = 1\n", "RATE = 2\n"):
        (package / "step.py").write_text(source)
        names.append(source_sha256([package]))
    assert names[0] == names[1] != names[2]


def test_a_training_that_goes_on_with_another_version_says_so(
    files: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_training()
    for made_of in ("", "another"):
        if made_of:
            monkeypatch.setattr(training_run, "program_made_of", lambda: "another")
        with closing(training_run.open_run(TRAINING, Path("out"), resume=True)[1]):
            assert ("begun with another version of AAML" in caplog.text) == bool(made_of)


@pytest.mark.parametrize("command", SEARCHES)
def test_a_search_that_is_there_is_not_begun_anew(
    command: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resumed = RESUMED[command]
    resumed.begin()
    before = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
    assert run(command, [each for each in resumed.argv if each != "--resume"]) == 2
    assert "holds a study already; go on with --resume, or choose another --out" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in files.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("command", "argv", "written"),
    [
        ("search scheduler", ("--out", "profiles.yaml"), "profiles.yaml"),
        ("search scheduler", ("--out", "mine.yaml", "--metrics", "mean_variance", "waiting_mean_s"), "mine-2.yaml"),
        ("search nodes", ("--out", "nodes.yaml", "--start", "nodes.yaml"), "nodes.yaml"),
        ("search bill", ("--out", "."), "nodepool.yaml"),
        ("search bill", ("--out", "."), "kube-scheduler.yaml"),
    ],
)
def test_a_search_does_not_write_over_a_file_that_it_did_not_write(
    command: str, argv: tuple[str, ...], written: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / written).write_text("mine")
    assert run(command, [*argv, "--workers", "1"]) == 2
    assert f"out: {written} is there already; choose another --out" in capsys.readouterr().err
    assert (files / written).read_text() == "mine"


def test_a_search_that_goes_on_does_not_write_over_what_it_is_told_by(files: Path) -> None:
    (files / "nodepool.yaml").write_text(POOL)
    asked = BillTuning(find_task("bill"), files, nodepool=files / "nodepool.yaml")
    begin_tuning(asked)
    with pytest.raises(UserError, match=r"nodepool.yaml is there already; choose another --out"):
        tune_bill_search(asked, resume=True)


# ---- evaluations -----------------------------------------------------------------------------------------------------


def evaluated(*policies: str, seeds: str = "1..2", more: tuple[str, ...] = ()) -> int:
    flags = ("--seeds", seeds, "--nodes", "3", "--pods", "20", "--workers", "1", "--out", "out")
    return run("evaluate", ["--policies", *policies, *flags, *more])


def test_an_evaluation_does_not_show_one_policys_runs_as_anothers(
    files: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert evaluated("a=least-allocated") == 0
    assert evaluated("a=most-allocated", more=("--resume",)) == 2
    assert "resume: out has runs of policy a as it was before (policy_sha256 " in capsys.readouterr().err
    assert evaluated("a=least-allocated", "least-allocated", more=("--resume",)) == 0
    assert evaluated("a=most-allocated", "most-allocated", seeds="2..3") == 0
    frame = Results.read("out").frame()
    assert "of several policies that are called a the last one counts" in caplog.text
    mine = frame[frame["policy"] == "a"].sort_values("seed")
    assert mine["seed"].tolist() == [2, 3], "the runs of the label's earlier policy do not count as its own"
    same = frame[frame["policy"] == "most-allocated"].sort_values("seed")
    assert mine["mean_variance"].tolist() == same["mean_variance"].tolist()


def test_a_decision_is_not_explained_by_what_a_file_says_now(
    files: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert evaluated("a=scores.py:a", "least-allocated", seeds="1", more=("--task", "task.py:mine")) == 0
    asked = ["3", "--run", "out", "--policy", "a"]
    capsys.readouterr()
    assert run("explain", asked) == 0
    assert "another version" not in capsys.readouterr().out
    with monkeypatch.context() as patched:
        patched.setattr(results_module, "program_sha256", lambda: "another")
        assert run("explain", asked) == 0
    assert "another version of AAML made this run" in capsys.readouterr().out
    change(files / "scores.py")
    assert run("explain", asked) == 2
    said = capsys.readouterr().err.strip()
    assert "policy: a is not what it was in this run (policy_sha256 " in said
    assert said.endswith("; it would decide otherwise: bring it back, or evaluate it again")
    assert "\n" not in said
    playable(files / "out")
    assert [each.count("what is played is not what was evaluated") for each in caplog.messages].count(1) == 1
    assert run("explain", ["3", "--run", "out", "--policy", "least-allocated"]) == 0
    change(files / "task.py")
    assert run("explain", ["3", "--run", "out", "--policy", "least-allocated"]) == 2
    assert "task: task.py:mine is not what it was in this run (task_sha256 " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pods_per_node", "policy"])
def test_known_runs_of_other_contents_are_refused_and_of_the_same_are_not(name: str, files: Path) -> None:
    entered = policy_entries(["scores.py:a"])
    task = find_task("task.py:mine")
    known = evaluate(entered, task, (1,), 3, pods=10, progress=False)
    same_runs(known, entered, task, 10, Path("out"))
    same_runs(known, entered, task, 11, Path("out"))  # other episodes, which are kept apart
    change(files / ("scores.py" if name == "policy" else "task.py"))
    said = "policy scores.py:a" if name == "policy" else "task"
    with pytest.raises(UserError, match=f"^resume: out has runs of {said} as it was before"):
        same_runs(known, entered, find_task("task.py:mine"), 10, Path("out"))
    assert plain(TRAINING)["task"] == "task.py:mine"
