"""The one scheduler: what those who look on are told, and what it leaves as it was."""

import numpy as np
import pytest

from aaml.errors import UserError
from aaml.live.explaining import logged
from aaml.live.in_process import in_process_cluster
from aaml.live.observers.autosave import Autosave
from aaml.live.run import SchedulerRun
from aaml.live.scheduler import Scheduler, learns
from aaml.live.settings import Folders, SchedulerSettings
from aaml.live.source import PolicySource
from aaml.policies.registry import make_policy
from aaml.scheduling.ports import Decision, Observer
from aaml.sim.threaded import ThreadedCluster
from support import make


class Told(Observer):
    def __init__(self):
        self.said = []
        self.turns = 0

    def on_turn(self):
        self.turns += 1

    def on_attempt(self, attempt):
        self.said.append(("attempt", attempt.pod.name, attempt.outcome.kind))

    def on_decision(self, context, decision, outcome):
        self.said.append(("decision", context.pod.name, outcome.node_name))

    def on_result(self, result):
        self.said.append(("result", result.pod.name, result.status))

    def on_learned(self, scalars, step):
        self.said.append(("learned", dict(scalars), step))


class Learner:
    """Takes the first feasible node and learns at every decision."""

    name = "learner"

    def __init__(self):
        self.experience = []

    def observation_of(self, context):
        return context.observation

    def act(self, context):
        return Decision(int(context.mask.argmax()))

    def observe(self, transition):
        self.experience.append(transition)

    def learn(self):
        return {"loss": 0.5}

    def save(self, directory, stem):
        return ()


def cluster_with(*pods):
    """Two nodes of 4 cores, and pods that wait."""
    cluster = ThreadedCluster(make.nodes(2))
    cluster.do(lambda sim: sim.submit(pods))
    cluster.end()
    return cluster


def folders(root):
    return Folders(*(root / name for name in ("tlogs", "models", "logs", "data", "deployment_data")))


def test_observers_are_told_of_every_attempt_decision_bind_and_update():
    cluster, told, learner = cluster_with(make.pod("a"), make.pod("huge", cpu=9000)), Told(), Learner()
    stats = Scheduler(cluster, learner, [told]).run()
    assert told.said[:3] == [("attempt", "a", "assumed"), ("decision", "a", "n0"), ("learned", {"loss": 0.5}, 1)]
    assert ("result", "a", "bound") in told.said
    assert ("attempt", "huge", "unschedulable") in told.said
    assert ("decision", "huge", "") not in told.said
    assert told.turns >= 2
    assert len(learner.experience) == 1
    assert (stats.decisions, stats.binds["bound"]) == (1, 1)


def test_a_frozen_agent_does_not_learn():
    learner = Learner()
    learner.learning = False
    assert not learns(learner)
    Scheduler(cluster_with(make.pod("a")), learner).run()
    assert learner.experience == []
    assert not learns(make_policy("least-allocated"))


def test_a_model_is_saved_now_and_then(monkeypatch):
    saved, clock = [], [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    autosave = Autosave(lambda: saved.append(clock[0]), every_s=60.0)
    for clock[0] in (1.0, 61.0, 62.0, 130.0):
        autosave.on_decision(None, None, None)
    assert saved == [61.0, 130.0]


def test_a_disk_that_is_full_for_a_while_ends_nothing(monkeypatch, caplog):
    clock, disk, saved = [0.0], ["full"], []

    def save():
        if disk:
            raise UserError("model m.pth: cannot be written: No space left on device")
        saved.append(clock[0])

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    autosave = Autosave(save, every_s=60.0)
    clock[0] = 61.0
    autosave.on_decision(None, None, None)
    assert "No space left on device; trying again in 60 s" in caplog.text
    disk.clear()
    clock[0] = 130.0
    autosave.on_decision(None, None, None)
    assert saved == [130.0]


def test_a_run_keeps_records_only_where_it_is_told_to(tmp_path):
    for records, left in ((False, []), (True, ["logs", "tlogs"])):
        settings = SchedulerSettings(records=records)
        run = SchedulerRun(
            PolicySource(lambda: make_policy("least-allocated")),
            settings,
            cluster=cluster_with(make.pod("a")),
            folders=folders(tmp_path),
        )
        assert run.run().binds["bound"] == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == left
    (log,) = (tmp_path / "logs").glob("least-allocated_*.log")
    assert "decision 0: default/a -> n0" in log.read_text()
    page = log.with_suffix(".html").read_text()
    for words in ("least-allocated for custom-scheduler", "1 assumed", "1 bound", "time of a bind", "git revision"):
        assert words in page, words
    beside = {path.suffix for path in log.parent.glob(f"{log.stem}-curves.*")}
    assert beside == {".png", ".svg", ".csv"}
    assert run.report == log.with_suffix(".html")


class Nonsense:
    """Chooses no node that there is, and has no scores."""

    name = "nonsense"

    def __init__(self, node_index):
        self._node_index = node_index

    def act(self, context):
        if self._node_index is None:
            raise ZeroDivisionError("no answer")
        return Decision(self._node_index)

    def scores(self, context):
        raise ZeroDivisionError("no scores")


@pytest.mark.parametrize("node_index", [float("nan"), np.float64("nan"), 7, None])
def test_a_policy_that_answers_nonsense_is_replaced_from_the_first_pod_on_and_what_is_explained_says_so(
    node_index, tmp_path
):
    run = SchedulerRun(
        PolicySource(lambda: Nonsense(node_index)),
        SchedulerSettings(explain=True, records=False),
        cluster=cluster_with(make.pod("a")),
        folders=folders(tmp_path),
    )
    assert run.run().binds["bound"] == 1
    (log,) = (tmp_path / "logs").glob("*.explained.jsonl")  # without being asked for records too
    notes = " ".join(logged(log, "a").notes)
    assert "kube-scheduler chose the node in the place of nonsense" in notes
    assert "nonsense fails when it is asked for its scores (ZeroDivisionError: no scores)" in notes


@pytest.mark.parametrize("setting", ["dry_run", "leader_elect"])
def test_what_needs_another_scheduler_is_refused_in_process(setting):
    settings = SchedulerSettings(**{setting: True})
    with pytest.raises(UserError, match=setting.replace("_", "-")):
        SchedulerRun(PolicySource(lambda: make_policy("least-allocated")), settings, cluster=in_process_cluster(2))


def test_a_shadow_log_without_a_dry_run_is_refused_before_a_pod_is_placed():
    settings = SchedulerSettings(scheduler_name="default-scheduler", shadow_log="shadow.jsonl", records=False)
    with pytest.raises(UserError, match=r"^shadow-log: is of a dry run, .* add --dry-run$"):
        SchedulerRun(PolicySource(lambda: make_policy("least-allocated")), settings)
