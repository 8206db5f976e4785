"""The program of a result is named by what it plays: only what changes a result changes the name."""

import pytest

from aaml.evaluation import program
from aaml.evaluation.leaderboard.protocol import PROTOCOL
from aaml.policies.heuristics import ScorePolicy, scores
from aaml.policies.registry import POLICIES

SHORT = (("seedc", 3, 30, ("least-variance", "random")),)


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch):
    """Return a function that names the program anew, by two short episodes."""
    monkeypatch.setattr(program, "_PLAYED", SHORT)
    return program.program_sha256.__wrapped__


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


def test_each_kind_of_task_and_each_policy_of_the_leaderboard_is_played() -> None:
    tasks = {task.partition("@")[0] for task, *_ in program._PLAYED}
    assert {each.task.partition("@")[0] for each in PROTOCOL.rounds} <= tasks
    policies = {spec.partition("+")[0] for *_, specs in program._PLAYED for spec in specs}
    others = (name for name in POLICIES.names() if ".py:" not in name)  # other tests register their own
    built_in = {name for name in others if not POLICIES.find(name)[2]}
    assert built_in - policies == set()
