"""The program of a result is named by what it plays: only what changes a result changes the name."""

import pytest

from aaml.evaluation import program
from aaml.evaluation.leaderboard.protocol import PROTOCOL
from aaml.nodes.file import WORDS
from aaml.policies.heuristics import ScorePolicy, scores
from aaml.policies.registry import POLICIES
from aaml.sim.bill import BILL_TASKS
from aaml.sim.metrics import METRICS
from aaml.sim.tasks import TASKS, find_task

SHORT = (("seedc", 3, 30, ("least-variance", "random")),)


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch):
    """Return a function that names the program anew, by two short episodes."""
    monkeypatch.setattr(program, "_PLAYED", SHORT)
    return program.played_sha256


def with_rule(monkeypatch: pytest.MonkeyPatch, score) -> None:
    monkeypatch.setitem(POLICIES._made, "least-variance", lambda options: ScorePolicy("least-variance", score, options))


def test_a_rule_that_is_written_otherwise_and_plays_the_same_keeps_the_name(monkeypatch, name) -> None:
    def rewritten(context):
        """Say something new."""
        return 2.0 * scores.least_variance(context)

    before = name()
    with_rule(monkeypatch, rewritten)
    assert name() == before
    with_rule(monkeypatch, scores.most_allocated)
    assert name() != before


def test_the_name_is_kept_for_the_files_that_the_program_is_made_of(tmp_path, monkeypatch, name) -> None:
    monkeypatch.setenv("AAML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(program, "_PACKAGE", tmp_path / "package")
    (tmp_path / "package").mkdir()
    source = tmp_path / "package" / "rule.py"
    source.write_text("a = 1\n")
    played = []
    monkeypatch.setattr(program, "played_sha256", lambda: played.append(0) or name())
    named = program.program_sha256.__wrapped__
    assert named() == named() == name()
    assert len(played) == 1
    (kept,) = (tmp_path / "cache" / "programs").iterdir()
    kept.write_text("no name")
    assert named() == name()
    assert len(played) == 2, "what is no name is not taken"
    source.write_text("a = 2\n")
    assert named() == name()
    assert len(played) == 3


def test_the_last_bits_of_a_metric_are_the_machine_s_own(monkeypatch, name) -> None:
    original, factor = program.run_episode, 1.0

    def played(*job):
        row = original(*job)
        return row | {"mean_variance": row["mean_variance"] * factor}

    before = name()
    monkeypatch.setattr(program, "run_episode", played)
    factor = 1.0 + 2e-15
    assert name() == before
    factor = 1.0 + 1e-6
    assert name() != before


def test_each_task_policy_and_buyer_of_nodes_that_is_known_by_a_name_is_played() -> None:
    tasks = {task.partition("@")[0] for task, *_ in program._PLAYED}
    assert {*TASKS, *BILL_TASKS, *(each.task.partition("@")[0] for each in PROTOCOL.rounds)} - tasks == set()
    specs = [spec.partition("+") for *_, specs in program._PLAYED for spec in specs]
    others = (name for name in POLICIES.names() if ".py:" not in name)  # other tests register their own
    built_in = {name for name in others if not POLICIES.find(name)[2]}
    assert built_in - {policy for policy, *_ in specs} - {*program.WITH_GANGS} == set()
    assert set(WORDS) - {bought_by for *_, bought_by in specs} == set()


@pytest.mark.parametrize("metric", sorted({*METRICS} - {"latency_p50_ms", "latency_p99_ms"}))
def test_another_value_of_any_metric_is_another_program(metric, monkeypatch, name) -> None:
    row = dict.fromkeys(METRICS, 1.0)
    monkeypatch.setattr(program, "run_episode", lambda *_job: row)
    before = name()
    row |= {"latency_p50_ms": 2.0, "latency_p99_ms": 2.0}
    assert name() == before, "times of this machine do not count"
    row[metric] = 1.1
    assert name() != before


def test_the_descheduler_is_seen_to_evict() -> None:
    task = find_task("bill-when-empty")
    evicted = [
        program.run_episode(program.PolicyEntry("kube-scheduler-packing", nodes=nodes), task, program._SEED, 5, 90)
        for nodes in ("", "high-node-utilization")
    ]
    assert evicted[0]["evicted"] == 0.0 < evicted[1]["evicted"]
