"""A policy put to work for one run: what is ready when, and what is kept of it."""

import pytest

from aaml.live.session import LearnerSession


class Learner:
    """Notes what it is asked for."""

    def __init__(self):
        self.asked = []

    def start(self):
        self.asked.append("start")

    def await_start(self, stopped):
        self.asked.append("await")

    def stop(self):
        self.asked.append("stop")


class NoDuty:
    """Tells nobody of a learner."""

    def follow(self, learner):
        """Hear of it."""


def never():
    return False


def session(learner, save_every_s=0.0):
    def save():
        learner.asked.append("save")
        return ("model.pth",)

    return LearnerSession("agent", learner, save, save_every_s)


def test_a_learner_starts_ahead_of_the_lease_and_has_learned_its_last_batch_before_the_model_is_saved():
    learner = Learner()
    one = session(learner)
    with one.ahead():
        assert learner.asked == ["start"]
        with one.at_work(NoDuty(), never) as policy:
            assert policy is learner
            learner.asked.append("decide")
        assert one.models == ("model.pth",)
    assert learner.asked[:5] == ["start", "await", "decide", "stop", "save"]


def test_the_model_of_a_run_that_fails_is_kept():
    learner = Learner()
    one = session(learner)
    with pytest.raises(ConnectionError), one.ahead(), one.at_work(NoDuty(), never):
        raise ConnectionError("the API server is gone")
    assert one.models == ("model.pth",)


def test_who_never_leads_lets_its_learner_go_and_saves_no_model():
    learner = Learner()
    with session(learner).ahead():
        pass
    assert learner.asked == ["start", "stop"]


def test_the_time_between_two_saves_counts_from_the_first_decision_on_and_not_while_another_replica_leads(monkeypatch):
    clock, learner = [0.0], Learner()
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    one = session(learner, save_every_s=60.0)
    clock[0] = 3600.0  # stood by for an hour
    (saver,) = one.observers()
    for clock[0] in (3601.0, 3661.0):
        saver.on_decision(None, None, None)
        assert ("save" in learner.asked) is (clock[0] == 3661.0)
