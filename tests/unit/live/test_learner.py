"""An agent that learns in a process of its own: the same learning, and nothing lost with a learner."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from aaml.errors import UserError
from aaml.evaluation.policies import frozen
from aaml.learning.agents import make_agent
from aaml.learning.config import LIVE
from aaml.learning.networks import NetworkSpec
from aaml.live.agents import AgentRun
from aaml.live.learner import AsynchronousLearner, apart, waits
from aaml.live.learner_process import (
    AUTOGROUP,
    NICENESS,
    SHARE,
    AgentSetup,
    ExperienceBatch,
    LearnerProcess,
    LearnerWorker,
    Pace,
    Update,
    rehearse,
)
from aaml.live.scheduler_replica import SchedulerReplica
from aaml.live.settings import Folders, LearnerSettings
from aaml.parallel.worker import Desk, open_answer
from aaml.policies.registry import make_reward
from aaml.scheduling.node_sampling import NodeSampling
from aaml.scheduling.observation import PLAIN
from aaml.scheduling.observation_log import WHOLE_EVERY
from aaml.scheduling.play import play
from aaml.scheduling.ports import Observer, Transition
from aaml.sim.cluster import SimCluster
from support import make
from support.kwok import until
from support.learners import InThisProcess, small, unpaced

WAIT_S = 300.0  # a process that imports torch takes a minute on a machine that does much else


def vector(weights):
    """All parameters of a network that acts, one after the other."""
    return np.concatenate([each.reshape(-1) for each in weights["network"].values()])


def acting_weights(agent):
    """The parameters that an agent acts by."""
    return vector(agent.weights())


def workload(count=60):
    """Three nodes, and pods of deployments of six that fit on them."""
    return SimCluster(
        make.nodes(3), [make.pod(f"p{i}", 60 + 10 * (i % 3), 1 << 26, owner=f"w{i // 6}") for i in range(count)]
    )


def roomy(count):
    """Three nodes on which all of so many pods find room."""
    return SimCluster(
        make.nodes(3, cpu=1_000_000, memory=1 << 45, pods=1000),
        [make.pod(f"p{i}", 60 + 10 * (i % 3), 1 << 26, owner=f"w{i // 6}") for i in range(count)],
    )


class Twin:
    """Learns as its agent does, and lets a worker at the far end take the first `told` steps too, a batch each."""

    learning = True

    def __init__(self, agent, told=60):
        self.agent, self.name, self.far, self.told = agent, agent.name, LearnerWorker(unpaced()), told
        self.kept = AsynchronousLearner(agent)
        self.backlog = self.kept.backlog
        self.taught, self.numbers, self.steps = [], {}, 0
        self.tell(self.backlog.first())

    def tell(self, batch):
        self.taught.append(self.far(batch))
        self.backlog.answered(self.taught[-1])

    def act(self, context):
        with frozen(self.agent):  # so that only learning draws random numbers
            return self.agent.act(context)

    def observation_of(self, context):
        seen = self.agent.observation_of(context)
        self.numbers[id(seen)] = (self.kept.observation_of(context), seen)
        return seen

    def observe(self, step):
        self.steps += 1
        self.agent.observe(step)
        after = step.next_observation
        self.backlog.add(
            replace(
                step,
                observation=self.numbers[id(step.observation)][0],
                next_observation=None if after is None else self.numbers[id(after)][0],
            )
        )

    def learn(self):
        if self.backlog.waiting and self.steps <= self.told:
            self.tell(self.backlog.next())
        return self.agent.learn()

    def save(self, directory, stem):
        return ()


class TwoNodes(NodeSampling):
    """Scores two nodes, however few there are."""

    def enough(self, _nodes):
        return 2


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sampling"), [("dqn", None), ("acdqn", None), ("acdqn", TwoNodes(0))])
def test_what_is_learned_apart_is_what_would_be_learned_here_to_the_last_bit(kind, sampling):
    agent = make_agent(small(kind), seed=3)
    agent.score_some(sampling)
    twin = Twin(agent)
    play(workload(), twin, make_reward("balance"), learn=True)
    updates = [each for each in twin.taught if each.weights is not None]
    assert updates[-1].updates == agent.updates
    assert len(updates) >= 3
    assert np.array_equal(vector(updates[-1].weights), acting_weights(agent))


def test_a_learner_after_a_lost_one_holds_all_that_was_gathered_and_counts_it_once():
    agent = make_agent(small("dqn"), seed=3)
    twin = Twin(agent, told=53)  # of 60 steps, with an update at each fifth
    play(workload(), twin, make_reward("balance"), learn=True)
    second = LearnerWorker(unpaced())
    counted = second(twin.backlog.first())
    assert counted.memory == agent.memory
    theirs, ours = second.agent.replay.items, agent.replay.items
    assert [(item.action, item.reward) for item in theirs] == [(item.action, item.reward) for item in ours]
    assert all(np.array_equal(a.observation.pairs, b.observation.pairs) for a, b in zip(theirs, ours, strict=True))
    assert second.agent.decisions == 50 + 7  # by the latest update, and those that had been told to nobody


class Killer(Observer):
    """Kills the learner with SIGKILL at the decision `at`, and waits at the end until another one knows all steps."""

    def __init__(self, learner, at, count):
        self.learner, self.at, self.count, self.killed, self.decisions = learner, at, count, 0, 0

    def on_decision(self, context, decision, outcome):
        self.decisions += 1
        if self.decisions == self.at:
            until(lambda: self.learner.waiting == 0, "a learner that knows all steps", WAIT_S)
            self.killed = self.learner.pid
            assert self.killed, "the learner has ended by itself"  # 0 is this process and its group
            os.kill(self.killed, signal.SIGKILL)
        if self.decisions == self.count:
            until(lambda: self.learner.pid not in {0, self.killed}, "another learner", WAIT_S)
            until(lambda: self.learner.waiting == 0, "a learner that knows all steps", WAIT_S)


@pytest.mark.slow
def test_a_learner_that_is_killed_is_followed_by_one_that_goes_on(tmp_path):
    agent = make_agent(small("dqn"), seed=3)
    before = acting_weights(agent)
    with AsynchronousLearner(agent) as learner:
        killer = Killer(learner, at=30, count=60)
        play(workload(), learner, make_reward("balance"), learn=True, observers=[killer])
        last = learner.pid
    assert learner.restarts == 1
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)
    assert agent.decisions == 60
    assert agent.updates > 0
    assert not np.array_equal(acting_weights(agent), before)
    (path,) = learner.save(str(tmp_path), "apart")
    model = torch.load(path, weights_only=True)
    assert model["fields"]["decisions"] == 60
    assert model["states"]["optimizer"]["state"]  # what Adam has gathered came back too


class Pausing(AsynchronousLearner):
    """Takes each second step for the last one before a pause, and waits until its learner knows a step."""

    def observe(self, transition):
        if self.agent.decisions % 2:
            transition = replace(transition, next_observation=None, truncated=True)
        super().observe(transition)
        until(lambda: not self.waiting, "a learner that knows all steps", WAIT_S)


@pytest.mark.slow
def test_an_agent_goes_on_learning_where_pods_come_with_pauses_for_longer_than_its_buffer_reaches(monkeypatch):
    monkeypatch.setattr("aaml.live.learner.LearnerProcess", InThisProcess)
    agent = make_agent(replace(small("dqn"), buffer_size=24))
    with Pausing(agent) as learner:
        play(workload(), learner, make_reward("balance"), learn=True)
        list(learner.catch_up())
    assert agent.decisions == 60
    assert agent.updates == 12  # one in five decisions, to the end


class Silent:
    """A learner that answers nothing, as one does that still loads on a busy machine."""

    pid = 1

    def __init__(self, *, awaited):
        self.killed = threading.Event()

    def teach(self, batch):
        self.killed.wait(WAIT_S)
        raise EOFError

    def hurry(self):
        """Hear nothing."""

    def kill(self):
        self.killed.set()

    def close(self):
        return -9


class Clock:
    """A time that passes as somebody sleeps."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def test_who_is_stopped_while_its_learner_loads_neither_waits_for_it_nor_asks_it_for_anything(monkeypatch, caplog):
    monkeypatch.setattr("aaml.live.learner.LearnerProcess", Silent)
    learner = AsynchronousLearner(make_agent(small("dqn")))
    learner.start()
    learner.await_start(lambda: True)
    assert list(learner.catch_up()) == []
    learner.stop()
    assert not caplog.records


def test_a_last_batch_that_nobody_answers_is_waited_for_twenty_seconds_in_all(monkeypatch, caplog):
    clock = Clock()
    monkeypatch.setattr("aaml.live.learner.LearnerProcess", Silent)
    monkeypatch.setattr("aaml.live.learner.time", clock)
    learner = AsynchronousLearner(make_agent(small("dqn")))
    learner.start()
    learner.observe(Transition(0, 0, 1.0, None))
    assert list(learner.catch_up()) == []
    learner.stop()
    assert clock.now_s == pytest.approx(20.0, abs=0.1)
    assert caplog.messages == ["learner process 1 does not answer: its last batch is lost"]


def test_an_error_in_learning_is_raised_where_decisions_are_made(monkeypatch):
    monkeypatch.setattr("aaml.live.learner.LearnerProcess", InThisProcess)
    with AsynchronousLearner(make_agent(small("dqn"))) as learner:
        learner.backlog.add(Transition(0, 0, "no number", None))
        with pytest.raises(TypeError, match="must be real number"):
            until(lambda: bool(learner.learn()), "the error", WAIT_S)


def test_an_error_in_learning_from_the_last_batch_is_raised_although_no_decision_follows(monkeypatch):
    monkeypatch.setattr("aaml.live.learner.LearnerProcess", InThisProcess)
    with AsynchronousLearner(make_agent(small("dqn"))) as learner:
        learner.backlog.add(Transition(0, 0, "no number", None))
        with pytest.raises(TypeError, match="must be real number"):
            list(learner.catch_up())


def test_a_run_on_a_live_cluster_learns_apart_and_saves_what_came_back(monkeypatch, tmp_path):
    monkeypatch.setattr("aaml.live.learner.LearnerProcess", InThisProcess)
    monkeypatch.setattr("aaml.live.learner.waits", lambda _cluster: False)
    ready = []
    monkeypatch.setattr(SchedulerReplica, "follow", lambda replica, _learner: ready.append(replica.ready()))
    folders = Folders(*(tmp_path / name for name in ("tlogs", "models", "logs", "data", "deployment_data")))
    settings = LearnerSettings(agent=small("dqn"), tensorboard_name="apart")
    run = AgentRun(settings, cluster=workload(), folders=folders)
    before = acting_weights(run.agent)
    assert run.run().binds["bound"] == 60
    assert ready == ["what decides is not ready yet"]  # before its learner has started
    assert run.report is not None
    assert run.apart.waiting == 0  # the last batch was taken before the model was saved
    model = torch.load(tmp_path / "models/DQN_Model_apart.pth", weights_only=True)
    assert model["fields"]["decisions"] == 60
    assert model["states"]["optimizer"]["state"]
    assert not np.array_equal(acting_weights(run.agent), before)


def connects(*_, **__):
    raise ConnectionError


@pytest.mark.parametrize("blocked", ["models", "tlogs", "logs"])
@pytest.mark.parametrize(("learns", "records"), [(True, False), (False, True), (False, False)])
def test_a_folder_that_cannot_be_written_is_told_before_the_run_connects(
    monkeypatch, tmp_path, learns, records, blocked
):
    monkeypatch.setattr("aaml.live.run.KubeCluster.connect", connects)
    monkeypatch.setattr("aaml.live.learner.LearnerProcess", InThisProcess)
    (tmp_path / blocked).write_text("a file")
    folders = Folders(*(tmp_path / name for name in ("tlogs", "models", "logs")))
    run = AgentRun(LearnerSettings(agent=small("dqn"), no_learn=not learns, records=records), folders=folders)
    needed = learns if blocked == "models" else records
    told = f"^folder {tmp_path / blocked}: cannot be written: " if needed else None
    with pytest.raises(UserError if needed else ConnectionError, match=told):
        run.run()
    assert [each.name for each in tmp_path.iterdir()] == [blocked], "nothing is left behind"


def test_who_stands_by_has_a_learner_already_and_ends_it(monkeypatch):
    monkeypatch.setattr("aaml.live.learner.LearnerProcess", InThisProcess)
    monkeypatch.setattr("aaml.live.learner.waits", lambda _cluster: False)
    run = AgentRun(LearnerSettings(agent=small("dqn"), records=False), cluster=workload())
    stood_by = []

    def never_leads(_duty, _stopped):
        assert run.apart.wait(WAIT_S)
        stood_by.append(run.apart.pid)
        return False

    monkeypatch.setattr(SchedulerReplica, "acquire", never_leads)
    assert run.run().decisions == 0
    assert (stood_by, run.apart.pid) == ([1], 0)


def test_where_time_waits_an_agent_learns_between_its_decisions():
    cluster, agent = workload(), make_agent(small("dqn"))
    assert waits(cluster)
    with apart(agent, cluster) as policy:
        assert policy is agent


def test_a_first_batch_without_an_agent_is_refused():
    with pytest.raises(RuntimeError, match="no setup"):
        LearnerWorker(unpaced())(ExperienceBatch(None, {}, (), ()))
    assert (
        LearnerWorker(unpaced())(
            ExperienceBatch(
                AgentSetup(small("dqn"), make_agent(small("dqn")).observation_spec, NetworkSpec(), ()), {}, (), ()
            )
        ).memory
        == 2003
    )


class Spent:
    """A clock of processor time that the test turns."""

    now_s = 0.0

    def process_time(self):
        return self.now_s


def test_an_update_of_many_steps_rests_between_them_until_there_is_a_hurry(monkeypatch):
    clock, rests = Spent(), []
    monkeypatch.setattr("aaml.live.learner_process.time", clock)
    pace = Pace(lambda seconds: rests.append(seconds) or len(rests) == 2)
    for hurry in (False, True):
        pace.begin(hurry=hurry)
        for seconds in (0.1, 0.2, 0.3, 0.4):
            clock.now_s += seconds
            pace.step()
    each = 1.0 / SHARE - 1.0
    assert rests == pytest.approx([0.1 * each, 0.2 * each])  # each time for the step before; then it was told to hurry
    assert pace.owed_s() == 0.0
    pace.begin(hurry=False)
    clock.now_s += 0.5
    pace.step()
    clock.now_s += 0.1
    assert pace.owed_s() == pytest.approx(0.6 * each)  # for the last step, which is answered for first, and for saving


@pytest.mark.parametrize("kind", ["dqn", "acdqn"])
def test_all_that_an_update_needs_is_loaded_by_a_twin_which_learns_once(kind, monkeypatch):
    update = {"dqn": "dqn_agent.QLearning.learn", "acdqn": "actor_critic_agent.Ppo.update"}[kind]
    updates = []
    monkeypatch.setattr(f"aaml.learning.{update}", lambda *_, **__: updates.append(kind) or {"loss": 0.0})
    rehearse(AgentSetup(LIVE[kind], PLAIN, NetworkSpec(), ()))
    assert updates == [kind]


@pytest.mark.slow
def test_a_learner_with_nothing_to_do_hears_that_there_is_a_hurry_and_goes_on():
    agent = make_agent(small("dqn"))
    kept, process = AsynchronousLearner(agent), LearnerProcess(awaited=True)
    try:
        first: Update = open_answer(process.teach(kept.backlog.first()))
        process.hurry()
        assert open_answer(process.teach(kept.backlog.first())) == first
    finally:
        process.close()


def session_niceness(pid):
    """What a session gets less than others; None for a process that belongs to no group, as in some containers."""
    file = Path(f"/proc/{pid}/autogroup")
    words = file.read_text().split() if file.exists() else []
    return int(words[-1]) if words else None


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no idle class")
def test_a_learner_after_a_lost_one_loads_with_a_tenth_of_a_busy_core_and_learns_on_what_nobody_else_wants():
    """In the idle class it would load for minutes where others want all of the processor."""
    agent = make_agent(small("dqn"))
    kept, process = AsynchronousLearner(agent), LearnerProcess(awaited=False)
    try:
        until(lambda: os.getpriority(os.PRIO_PROCESS, process.pid) == 10, "a learner that loads")
        assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER
        open_answer(process.teach(kept.backlog.first()))
        until(lambda: os.sched_getscheduler(process.pid) == os.SCHED_IDLE, "a learner in the idle class", WAIT_S)
    finally:
        process.close()


@pytest.mark.slow
@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this system does not group processes by session")
def test_a_learner_has_a_session_of_its_own_that_gets_least_once_it_has_loaded():
    ours = AUTOGROUP.read_text()
    agent = make_agent(small("dqn"))
    kept, process = AsynchronousLearner(agent), LearnerProcess(awaited=False)
    try:
        until(lambda: session_niceness(process.pid) == 10, "a session that gets less")
        assert os.getsid(process.pid) == process.pid
        open_answer(process.teach(kept.backlog.first()))
        until(lambda: session_niceness(process.pid) == NICENESS, "a session that gets least", WAIT_S)
    finally:
        process.close()
    assert AUTOGROUP.read_text() == ours


PRIORITIES = """
import os
from aaml.live.learner_process import AUTOGROUP, lower_priority
tell = lambda: print(os.getpriority(os.PRIO_PROCESS, 0), AUTOGROUP.read_text().split()[-1])
lower_priority(10); tell()
os.setsid(); lower_priority(19); tell()
"""


@pytest.mark.slow
@pytest.mark.skipif(session_niceness("self") is None, reason="this system does not group processes by session")
def test_who_leads_a_session_lowers_its_priority_and_who_shares_one_leaves_the_others_theirs():
    theirs = str(session_niceness("self"))
    told = subprocess.run([sys.executable, "-c", PRIORITIES], check=True, capture_output=True, text=True).stdout
    assert [line.split() for line in told.splitlines()] == [["10", theirs], ["19", "19"]]


class NotStarted:
    """A learner that cannot be started, as where there is no memory for it."""

    def __init__(self, *, awaited):
        raise OSError(12, "Cannot allocate memory")


def test_without_a_learner_what_is_kept_for_one_has_a_bound(monkeypatch):
    monkeypatch.setattr("aaml.live.learner.LearnerProcess", NotStarted)
    monkeypatch.setattr("aaml.live.backlog.MOST_STEPS", 50)
    agent = make_agent(replace(small("dqn"), buffer_size=24))
    learner = AsynchronousLearner(agent)
    learner.start()
    play(roomy(600), learner, make_reward("balance"), learn=True)
    assert agent.decisions == 600
    assert len(learner.backlog) <= agent.memory + 50
    assert learner.backlog.observations <= agent.memory + 50 + 2 * WHOLE_EVERY
    learner.stop()


def test_decisions_that_lead_to_no_step_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr("aaml.live.backlog.MOST_STEPS", 50)
    agent = make_agent(replace(small("dqn"), buffer_size=24))
    learner = AsynchronousLearner(agent)
    state = make.cluster(make.nodes(3))
    first = learner.observation_of(make.context(state, make.pod()))
    for _ in range(600):
        latest = learner.observation_of(make.context(state, make.pod()))
    assert learner.backlog.observations <= 2 * (agent.memory + 50) + WHOLE_EVERY
    learner.observe(Transition(first, 0, 1.0, None))  # what it saw is forgotten: there is nothing to learn of it
    learner.observe(Transition(latest, 0, 1.0, None))
    assert [step.observation for step in learner.backlog.first().steps] == [latest]


class Slow(InThisProcess):
    """A learner that is paused from its second batch on until `go_on`."""

    go_on = threading.Event()
    batches = 0

    def teach(self, batch):
        self.batches += 1
        if self.batches == 2:
            self.go_on.wait(WAIT_S)
        return super().teach(batch)


def test_a_learner_that_was_paused_for_longer_than_is_kept_goes_on_with_what_is_left(monkeypatch):
    monkeypatch.setattr("aaml.live.learner.LearnerProcess", Slow)
    monkeypatch.setattr("aaml.live.backlog.MOST_STEPS", 50)
    agent = make_agent(replace(small("dqn"), buffer_size=24))
    with AsynchronousLearner(agent) as learner:
        play(roomy(600), learner, make_reward("balance"), learn=True)
        assert learner.waiting > 50
        Slow.go_on.set()
        list(learner.catch_up())
        assert learner.waiting == 0
    assert learner.restarts == 0
    assert agent.updates > 0


@pytest.mark.slow
def test_what_comes_back_has_a_bound_where_nothing_is_decided(monkeypatch):
    """Only the latest weights count; nobody takes them while no pod comes."""
    agent, made = make_agent(small("dqn")), []

    class Prompt(InThisProcess):
        """Makes an update of whatever it is told."""

        def __init__(self, *, awaited):
            self.desk = Desk(".", lambda _batch: self.update())

        def update(self):
            made.append(len(made))
            return Update(1, len(made), weights=agent.weights(), scalars={"update": float(len(made))})

    monkeypatch.setattr("aaml.live.learner.LearnerProcess", Prompt)
    with AsynchronousLearner(agent) as learner:
        learner.backlog.hurry.set()
        for number in range(120):
            learner.backlog.add(Transition(0, 0, float(number), None))
            until(lambda: not learner.waiting, "an update", WAIT_S)
        taken = list(iter(learner.learn, {}))
    assert len(made) == 121
    assert len(taken) <= 100
    assert taken[-1] == {"update": 121.0}
