"""Evaluation: paired episodes, files that survive a cut, and clear words for mistakes."""

import copy
import json
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import aaml
from aaml.cli import run
from aaml.errors import UserError
from aaml.evaluation import entries as entered
from aaml.evaluation import evaluate as evaluation
from aaml.evaluation.entries import Expected
from aaml.evaluation.evaluate import evaluate, parse_seeds
from aaml.evaluation.identity import IDENTITY, identity
from aaml.evaluation.policies import load, load_policy
from aaml.evaluation.results import ResultFile, Results
from aaml.learning.agents import make_agent
from aaml.learning.config import LIVE
from aaml.learning.linear import save_linear
from aaml.learning.qtable import QTableAgent
from aaml.live.run import SchedulerRun
from aaml.policies.heuristics.linear import LinearPolicy
from aaml.policies.registry import make_reward
from aaml.sim.tasks import find_task
from aaml.training.linear import start_weights
from support import make
from support.policies import Turns, emptiest

POLICIES = ("least-variance", "random")


def small(policies=POLICIES, seeds: tuple[int, ...] = (1, 2), **options: object):
    return evaluate(policies, "balance", seeds, 3, pods=30, progress=False, **options).frame()  # type: ignore[arg-type]


def test_a_hash_that_looks_like_a_number_stays_text(tmp_path):
    file = tmp_path / "results.csv"
    for digest in ("348e03769402", "004217860035", "1d030a22df41"):
        file.write_text(f"task,nodes,policy,seed,cost,policy_sha256\nbill,4,mine,7,1.5,{digest}\n", encoding="utf-8")
        (row,) = Results.read(file).runs.itertuples()
        assert row.policy_sha256 == digest


def test_labels_that_look_like_numbers_or_nothing_stay_names(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    labels = ("1", "01", "NA", "nan", "true", '"', "a,b", "\u00fc \u2603")
    specs = [f"{label}={spec}" for label, spec in zip(labels, ("random", "first-fit") * 4, strict=True)]
    flags = ("--nodes", "3", "--pods", "10", "--workers", "1", "--seeds", "1..2", "--out", "out")
    assert run("evaluate", ["--policies", *specs, *flags]) == 0
    frame = Results.read("out").frame()
    assert sorted(frame["policy"]) == sorted(2 * labels)
    before = (tmp_path / "out" / "results.csv").read_bytes()
    assert run("evaluate", ["--policies", *specs, *flags, "--resume"]) == 0
    assert (tmp_path / "out" / "results.csv").read_bytes() == before, "nothing is run again"
    (tmp_path / "out" / "results.csv").write_bytes(before + b"balance,3\n")
    assert run("evaluate", ["--policies", specs[0], *flags]) == 2
    assert "out/results.csv: row 17 has not as many cells as the first line" in capsys.readouterr().err


def test_seeds_are_ranges_and_numbers() -> None:
    assert parse_seeds("42..44,7") == (42, 43, 44, 7)
    for text in ("", "a", "3..", "1,1", "5..4", "5..4,7"):
        with pytest.raises(UserError, match="seeds"):
            parse_seeds(text)


def test_every_policy_meets_the_same_episodes() -> None:
    frame = small()
    assert frame.groupby("seed")["arrived"].nunique().eq(1).all()
    assert set(frame["policy"]) == set(POLICIES)
    assert (frame[frame.policy == "least-variance"]["mean_variance"].to_numpy()
            < frame[frame.policy == "random"]["mean_variance"].to_numpy()).all()  # fmt: skip


@pytest.mark.slow
def test_one_or_several_processes_give_the_same_numbers() -> None:
    timing = ["latency_p50_ms", "latency_p99_ms"]
    one, two = small(workers=1).drop(columns=timing), small(workers=2).drop(columns=timing)
    assert one.equals(two)


def test_a_policy_of_ones_own_is_found_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def emptiest(context):\n    return -context.state.requested[:, 0]\n")
    frame = small((f"{file}:emptiest", "mine=least-allocated"), seeds=(1,))
    assert list(frame["policy"]) == [f"{file}:emptiest", "mine"]


REGISTERED = """
from aaml.policies.registry import register_policy, register_reward

@register_policy("mine")
def score(context):
    return {sign}context.state.requested[:, 0]

@register_reward("mine")
def value(context, row):
    return {sign}1.0
"""


@pytest.fixture
def two_files(tmp_path: Path) -> dict[str, str]:
    """Two files with policies and rewards of the same names: v1 spreads the pods, v2 packs them."""
    for name, sign in (("v1", "-"), ("v2", "+")):
        (tmp_path / f"{name}.py").write_text(REGISTERED.format(sign=sign))
    return {name: f"{tmp_path / name}.py:mine" for name in ("v1", "v2")}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_policies_of_one_name_in_two_files_are_two_policies(two_files: dict[str, str], workers: int) -> None:
    both = small(two_files, workers=workers).set_index(["policy", "seed"])["mean_variance"]
    assert (both["v1"] < both["v2"]).all()
    for name, spec in two_files.items():
        assert small({name: spec}, seeds=(1,))["mean_variance"].item() == both[name, 1]


def test_a_file_that_registers_nothing_gets_nothing_of_another_one(two_files: dict[str, str], tmp_path: Path) -> None:
    small(two_files, seeds=(1,))
    (tmp_path / "v3.py").write_text("mine = None")
    with pytest.raises(UserError, match=r"policy: .*v3.py:mine' is not accepted"):
        small({"v3": f"{tmp_path / 'v3.py'}:mine"})
    (tmp_path / "v4.py").write_text("")
    with pytest.raises(UserError, match=r"policy in .*v4.py: 'mine' is not accepted"):
        small({"v4": f"{tmp_path / 'v4.py'}:mine"})


def test_rewards_of_one_name_in_two_files_are_two_rewards(two_files: dict[str, str]) -> None:
    context = make.context(make.cluster(make.nodes(1)), make.pod(), [1])
    order = ("v1", "v2", "v1")
    assert [make_reward(two_files[name]).after(context, 0) for name in order] == [-1.0, 1.0, -1.0]


def test_a_file_that_has_changed_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    numbers = []
    for sign in "-+":  # both texts are of the same second and length
        file.write_text(f"def score(context):\n    return {sign}context.state.requested[:, 0]\n")
        numbers.append(small((f"{file}:score",), seeds=(1,))["mean_variance"].item())
    assert numbers[0] < numbers[1]


def test_results_are_appended_read_back_and_compared(tmp_path: Path) -> None:
    small(on_row=ResultFile(tmp_path).append)
    small(seeds=(2, 3), on_row=ResultFile(tmp_path).append)  # goes on in the same file; seed 2 once more
    results = Results.read(tmp_path)
    assert sorted(results.where(policies=["random"]).frame()["seed"]) == [1, 2, 3]
    text = str(results.compare("random")).splitlines()
    assert text[0] == "balance, 3 nodes, 30 pods: mean_variance (lower is better), 3 seeds"
    assert text[3].startswith("least-variance")
    with pytest.raises(UserError, match="metric: 'nothing' is not accepted"):
        results.compare("random", "nothing")
    with pytest.raises(UserError, match="nodes: 4 is not accepted; expected one of 3"):
        results.where(nodes=4)


def evaluated(folder: Path, *policies: str, seeds: str = "1..2", more: tuple[str, ...] = ()) -> int:
    """Run `aaml evaluate` on three nodes; returns the exit status."""
    flags = ["--seeds", seeds, "--nodes", "3", "--pods", "30", "--workers", "1", "--out", str(folder), *more]
    return run("evaluate", ["--policies", *policies, *flags])


def test_a_policy_judged_again_counts_once_and_everything_shows_the_same(tmp_path: Path, capsys) -> None:
    evaluated(tmp_path, "random", "mine=random")
    evaluated(tmp_path, "mine=least-variance")
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 1 + 2 * 2
    capsys.readouterr()
    run("report compare", [str(tmp_path), "--reference", "random"])
    assert "100% of seeds" in capsys.readouterr().out  # mine is the better policy now
    page = (tmp_path / "report.html").read_text()
    assert "random" in page, "the report has what the folder has"


def test_a_report_says_why_it_leaves_out_what_cannot_be_compared(tmp_path: Path, capsys) -> None:
    evaluated(tmp_path, "random")
    evaluated(tmp_path, "least-variance", seeds="5..6")
    assert f"the report has this evaluation alone: {tmp_path} holds others too, and" in capsys.readouterr().out


def test_an_evaluation_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch, capsys) -> None:
    whole, cut, played = tmp_path / "whole", tmp_path / "cut", []
    evaluated(whole, *POLICIES)

    def play_one(entry, task, seed, *size):
        if len(played) == 3:
            raise KeyboardInterrupt
        played.append((entry.name, seed))
        return original(entry, task, seed, *size)

    original = evaluation.run_episode
    monkeypatch.setattr(evaluation, "run_episode", play_one)
    assert evaluated(cut, *POLICIES) == 0
    assert f"3 runs are in {cut}; go on with: the same command and --resume" in capsys.readouterr().err
    played.clear()
    assert evaluated(cut, *POLICIES, more=("--resume",)) == 0
    assert played == [("random", 2)]
    columns = ["policy", "seed", "mean_variance"]
    assert Results.read(cut).frame()[columns].equals(Results.read(whole).frame()[columns])


def test_a_row_that_was_cut_off_within_its_last_cell_is_run_again(tmp_path: Path) -> None:
    evaluated(tmp_path, "random", "mine=least-variance")
    file = tmp_path / "results.csv"
    whole, before = file.read_bytes(), Results.read(tmp_path).frame()
    for lost in (1, 4, 13):  # the line's end, a part of the policy's hash, all of it
        file.write_bytes(whole[:-lost])
        assert evaluated(tmp_path, "random", "mine=least-variance", more=("--resume",)) == 0
        columns = ["policy", "seed", "mean_variance", "policy_sha256"]
        assert Results.read(tmp_path).frame()[columns].equals(before[columns])


def test_results_show_themselves_and_survive_a_folder(tmp_path: Path) -> None:
    results = evaluate(POLICIES, "balance", (1, 2), 3, pods=30, progress=False)
    assert (
        str(results)
        == repr(results)
        == str(results.compare("least-variance"))
        == str(Results.read(results.save(tmp_path / "new")))
    )
    assert "<table" in results._repr_html_()
    assert results.plot()._repr_png_().startswith(b"\x89PNG")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "results.csv", "recipes.json", "report.html",
        *(f"balance-3-30-pods-mean_variance.{kind}" for kind in ("png", "svg", "csv")),
    }  # fmt: skip
    numbers = results.compare("random").frame().set_index("policy")
    assert numbers.loc["least-variance", "improvement"] == 1.0
    assert numbers.loc["least-variance", "difference"] == pytest.approx(
        numbers.loc["least-variance", "mean"] - numbers.loc["random", "mean"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_an_object_or_a_function_begins_every_episode_anew_and_is_left_as_it_was(workers: int) -> None:
    turns = Turns()
    both = small([turns, emptiest], workers=workers)
    second = small({"turns": turns, "emptiest": emptiest}, seeds=(2,))
    columns = ["policy", "seed", "mean_variance", "waiting_mean_s"]
    assert both[both.seed == 2][columns].reset_index(drop=True).equals(second[columns])
    assert turns.calls == 0


@pytest.mark.slow
def test_what_no_other_process_finds_by_name_travels_too() -> None:
    rows = small(
        {"local": type("Local", (Turns,), {})(), "lambda": lambda context: -context.state.requested[:, 0]}, workers=2
    )
    assert set(rows.policy) >= {"local", "lambda"}


class Locked(Turns):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_what_cannot_travel_is_told_before_anything_runs() -> None:
    with pytest.raises(UserError, match=r"policy local: cannot be sent to another process .* use one worker"):
        small({"local": Locked()}, workers=2)
    with pytest.raises(UserError, match=r"policy: 7 is not accepted; expected a name, FILE.py:NAME, a model file"):
        small([7])


def test_an_agent_that_is_learning_is_judged_as_it_stands_and_goes_on() -> None:
    agent = make_agent(LIVE["dqn"], seed=5)
    assert agent.learning
    before = copy.deepcopy(agent.state())
    first, again = small([agent], seeds=(1,)), small([agent], seeds=(1,))
    assert first["mean_variance"].equals(again["mean_variance"])
    assert agent.learning
    assert str(agent.state()) == str(before)


def test_a_model_is_read_once_and_again_when_its_file_has_changed(tmp_path: Path, monkeypatch) -> None:
    path, read = tmp_path / "linear.json", []
    monkeypatch.setattr(entered, "load", lambda file, **options: read.append(file) or load(file, **options))
    save_linear(LinearPolicy(start_weights("least-variance")), path)
    greedy = small([path])
    assert len(read) == 1
    save_linear(LinearPolicy(start_weights("most-allocated")), path)
    assert not small([path])["mean_variance"].equals(greedy["mean_variance"])
    assert len(read) == 2


def test_expected_pods_are_drawn_for_those_who_look(monkeypatch, caplog) -> None:
    asked = []
    drawn = cache(lambda task: asked.append(task.name) or task.expected())  # as often as the original draws them: once
    monkeypatch.setattr(entered, "_expected", drawn)
    small(("least-variance", "kube-scheduler", "random"), seeds=(1,))
    assert asked == []
    small(("fgd",), seeds=(1,))
    assert asked == ["balance"]
    assert "fgd weighs fragments of GPUs, and no pod of balance asks for one" in caplog.text
    task = find_task("balance")
    assert list(Expected(task)[:2]) == list(task.expected()[:2])


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        (("nobody",), "policy: 'nobody'"),
        (("gone.pth",), "model: 'gone.pth'"),
        (("random", "random"), "a name twice"),
        ((), "none given"),
        (("a\rb=random",), r"policies: 'a\\rb' is not accepted; expected labels of characters that can be printed"),
        (("a\ud800b=random",), "policies: .* characters that can be printed"),
    ],
)
def test_mistakes_are_found_before_anything_runs(policies: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        small(policies)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seeds": 5}, "seeds: 5 is not accepted; expected whole numbers of at least 0, each once"),
        ({"seeds": [-1]}, "seeds: -1 is not accepted"),
        ({"seeds": [1.5]}, "seeds: 1.5 is not accepted"),
        ({"seeds": []}, r"seeds: \[\] is not accepted"),
        ({"seeds": [7] * 5}, "seeds: 7 is not accepted; expected .* each once"),
        ({"nodes": 0}, "nodes: 0 is not accepted"),
        ({"nodes": "many"}, "nodes: 'many' is not accepted"),
        ({"nodes": [3, 4, 3]}, r"nodes: \[3, 4, 3\] is not accepted; expected each size once"),
        ({"pods": 0}, "pods: 0 is not accepted"),
    ],
)
def test_what_makes_no_episode_is_told_in_a_line(options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        evaluate("random", "balance", progress=False, **options)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    frame = evaluate("random", "balance", np.arange(2), np.int64(3), pods=20, progress=False).frame()
    assert (list(frame["seed"]), set(frame["nodes"])) == ([0, 1], {3})


class Nameless:
    def act(self, context):
        return int(context.mask.nonzero()[0][0])


def test_what_is_no_policy_is_told_in_a_line() -> None:
    with pytest.raises(UserError, match=r"policy: .*Nameless object.* has no name; give it a `name`, or a label"):
        small([Nameless()])
    with pytest.raises(
        UserError, match=r"policy: .*Turns.* is not accepted; expected an object, not its class: Turns\("
    ):
        small([Turns])
    with pytest.raises(UserError, match=r"policy Nameless: act\(context\): 0 is not accepted; expected a Decision"):
        small({"mine": Nameless()})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def mine(context):\n    return [0.0] * 2\n", r"the score has shape \(2,\), expected \(3,\)"),
        ("def mine(context):\n    seen = context.stat\n", r"line 2: AttributeError: 'Context' object has no .*'stat'"),
        ("def mine(state, pod):\n    return 0\n", r"mine\(\) missing 1 required positional argument: 'pod'"),
        ("class mine:\n    def act(self, context):\n        return nothing\n", "line 3: NameError: name 'nothing'"),
        ("class mine:\n    def act(self, context):\n        return 3\n", "3 is not accepted; expected a Decision"),
    ],
)
def test_a_policy_of_ones_own_is_tried_before_an_evaluation(tmp_path: Path, monkeypatch, text: str, words: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.setattr(evaluation, "open_pool", None)  # nothing is evaluated
    with pytest.raises(UserError, match=rf"^policy .*mine.*{words}"):
        small(["random", f"{tmp_path}/mine.py:mine"])


OF_TEN = "import numpy as np\n\ndef mine(context):\n    return np.zeros(10) + context.state.capacity\n"


def test_a_policy_for_another_number_of_nodes_is_told_before_an_evaluation(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(OF_TEN)
    monkeypatch.setattr(evaluation, "open_pool", None)  # nothing is evaluated
    with pytest.raises(UserError, match=r"^policy .*mine: line 4: ValueError: .*\(10,\) \(12,\)"):
        evaluation.evaluate([f"{tmp_path}/mine.py:mine"], "balance", nodes=[12, 10])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'mine' is not accepted; expected a name that the file defines"),
        ("def mine(context):\n    return [0.0] * 2\n", "the score has shape (2,), expected (10,)"),
        ("def mine(context):\n    return open('weights.npz')\n", "line 2: FileNotFoundError: "),
        ("def mine(context):\n    return context.stat\n", "line 2: AttributeError: 'Context' object has no"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("flag", ["policy", "fallback"])
def test_a_policy_of_ones_own_is_tried_before_a_scheduler_connects(
    flag: str, text: str, words: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.setattr(SchedulerRun, "run", None)  # nothing connects
    assert run("schedule", ["policy", f"--{flag}", f"{tmp_path}/mine.py:mine"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_policy_for_another_number_of_nodes_than_it_is_tried_on_may_schedule(
    tmp_path: Path, monkeypatch, caplog
) -> None:
    """The number of the cluster's nodes is known once it is connected to."""
    (tmp_path / "mine.py").write_text(OF_TEN.replace("10", "12"))
    monkeypatch.setattr(SchedulerRun, "run", lambda _: None)
    argv = ["policy", "--policy", f"{tmp_path}/mine.py:mine"]
    assert run("schedule", argv) == 0
    assert caplog.messages[0].startswith(f"on 10 nodes, where it was tried: policy {tmp_path}/mine.py:mine: line 4")
    assert run("schedule", [*argv, "--cluster=sim", "--sim-nodes=11"]) == 2


def test_a_policy_prints_as_what_it_is() -> None:
    names = ("least-variance", "random", "kube-scheduler", "nilas", "fgd", "balance-linear", "balance-dqn")
    shown = [repr(load_policy(name)) for name in names]
    assert shown[0] == "ScorePolicy('least-variance')"
    assert shown[-1] == "NetworkPolicy('dqn')"
    assert not [each for each in shown if "object at" in each]


# ---- which results belong together -----------------------------------------------------------------------------------


def test_runs_with_other_pods_are_other_runs(tmp_path: Path, capsys) -> None:
    evaluated(tmp_path, *POLICIES)
    fewer = ("--resume", "--pods", "20", "--json")
    capsys.readouterr()
    evaluated(tmp_path, *POLICIES, more=fewer)
    first = capsys.readouterr().out
    evaluated(tmp_path / "alone", *POLICIES, more=("--pods", "20", "--json"))
    numbers = [
        {row["policy"]: (row["about"], row["mean"]) for row in json.loads(text[: text.index("]") + 1])}
        for text in (first, capsys.readouterr().out)
    ]
    assert numbers[0] == numbers[1]
    assert {about for about, _ in numbers[0].values()} == {"20 pods"}
    run("report compare", [str(tmp_path), "--reference", "random"])
    said = capsys.readouterr().out
    assert "balance, 3 nodes, 20 pods: mean_variance (lower is better), 2 seeds" in said
    assert "balance, 3 nodes, 30 pods: mean_variance (lower is better), 2 seeds" in said


OWN_TASK = """
from dataclasses import replace
from aaml.sim.tasks import TASKS
mine = replace(TASKS["balance"], pods_per_node={pods})
"""


def test_a_task_that_was_changed_is_another_task(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    rows: list[Results] = []
    for pods in (6, 9):
        file.write_text(OWN_TASK.format(pods=pods))
        known = rows[0] if rows else None
        rows.append(evaluate(POLICIES, f"{file}:mine", (1, 2), 3, progress=False, known=known))
    assert set(rows[0].frame()["arrived"]) == {18}
    assert set(rows[1].frame()["arrived"]) == {27}
    both = rows[0].plus(rows[1].frame().to_dict("records"))
    first, second = both.compare("random")
    assert first.about.startswith("task_sha256 ")
    assert first.about != second.about
    same = evaluate(POLICIES, f"{file}:mine", (1, 2), 3, progress=False, known=rows[1])
    assert same.frame().equals(rows[1].frame())


def test_a_task_that_a_program_made_is_not_ours_of_the_same_name() -> None:
    ours = find_task("balance")
    assert identity(ours)["task_sha256"] == identity(aaml.task("balance", nodes=4))["task_sha256"] == ""
    assert identity(aaml.task("balance", pods=7))["pods"] == 7
    changed = [identity(replace(ours, pods_per_node=count))["task_sha256"] for count in (5, 6, 5)]
    assert changed[0] == changed[2]
    assert len({*changed, ""}) == 3


def test_results_of_another_program_are_not_pooled_and_old_files_stay_readable(tmp_path: Path, monkeypatch) -> None:
    results = evaluate(POLICIES, "balance", (1, 2), 3, progress=False, pods=20)
    old = results.frame().drop(columns=list(IDENTITY))
    (tmp_path / "old").mkdir()
    old.to_csv(tmp_path / "old/results.csv", index=False)
    results.save(tmp_path / "new")
    (alone,) = Results.read(tmp_path / "old").compare("random")
    assert alone.title == "balance, 3 nodes: mean_variance (lower is better), 2 seeds"
    unknown, known = Results.read(tmp_path / "old", tmp_path / "new").compare("random")
    assert unknown.about == "code_sha256 unknown"
    assert known.about == f"20 pods, code_sha256 {identity(find_task('balance'))['code_sha256']}"
    played = []
    original = evaluation.run_episode
    monkeypatch.setattr(evaluation, "run_episode", lambda *job: played.append(job) or original(*job))
    for before, count in ((results, 0), (Results.read(tmp_path / "new"), 0), (Results.read(tmp_path / "old"), 4)):
        played.clear()
        evaluate(POLICIES, "balance", (1, 2), 3, progress=False, pods=20, known=before)
        assert len(played) == count


def test_a_model_that_was_trained_on_is_judged_again(tmp_path: Path) -> None:
    save_linear(LinearPolicy(start_weights("least-variance")), tmp_path / "mine.json")
    first = evaluate([tmp_path / "mine.json", "random"], "balance", (1, 2), 3, pods=20, progress=False)
    save_linear(LinearPolicy(start_weights("most-allocated")), tmp_path / "mine.json")
    later = evaluate([tmp_path / "mine.json", "random"], "balance", (1, 2), 3, pods=20, progress=False, known=first)
    values = [each.frame().set_index(["policy", "seed"])["mean_variance"] for each in (first, later)]
    assert values[0]["random"].equals(values[1]["random"])
    assert (values[0]["mine"] < values[1]["mine"]).all()
    mixed = first.where(seed=1).plus(later.where(seed=2).frame().to_dict("records"))
    with pytest.raises(UserError, match="balance, 3 nodes, 20 pods: mine is of several files"):
        mixed.compare("random")


def test_foreign_result_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="column task is missing"):
        Results.read(tmp_path)
    with pytest.raises(UserError, match="other columns than this run"):
        ResultFile(tmp_path).append({"task": "balance"})


def test_linear_scorers_and_q_tables_are_judged_like_networks(tmp_path: Path) -> None:
    save_linear(LinearPolicy(start_weights("least-variance")), tmp_path / "linear.json")
    (table,) = QTableAgent().save(str(tmp_path), "s")
    frame = small((tmp_path / "linear.json", f"table={table}", "least-variance"), seeds=(1,))
    linear, _, greedy = frame["mean_variance"]
    assert linear == pytest.approx(greedy, rel=1e-9)
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(UserError, match="a model file"):
        small((str(tmp_path / "other.json"),))


@pytest.mark.parametrize(
    ("policies", "reference"),
    [(("random", "kube-scheduler"), "kube-scheduler"), (("first-fit", "random"), "first-fit")],
)
def test_others_are_compared_with_kube_scheduler_or_else_with_the_first(policies, reference, tmp_path, capsys):
    flags = ["--seeds", "1..2", "--nodes", "3", "--pods", "20", "--workers", "1", "--out", str(tmp_path)]
    assert run("evaluate", ["--policies", *policies, *flags]) == 0
    assert f"difference from {reference}" in capsys.readouterr().out
