"""What a play counts: never what depends on how fast the scheduler was."""

from aaml.perf.operations import DeletePods
from aaml.perf.player import ScenarioPlayer
from aaml.perf.tally import PodTally, TrackedPod


class StubCluster:
    """Deletes nothing."""

    def delete(self, path):
        pass


def player_of(*pods):
    player = ScenarioPlayer(StubCluster(), lambda: None, 1.0)
    player._tally = PodTally(None, {pod.name: pod for pod in pods})
    player._tally.wait = lambda met, _wait_s, _alive: met()
    return player


def pod(name, kind=""):
    return TrackedPod(name, "space", {"type": kind}, node="node", bound_s=1.0)


def test_pods_deleted_before_anybody_waited_for_them_are_left_out_even_where_they_are_bound():
    player = player_of(pod("quick"))
    player._delete_pods(DeletePods(namespace="space"))
    outcome = player._outcome("")
    assert (outcome.all.bound, outcome.sure.bound) == (1, 0)


def test_pods_that_were_waited_for_count_though_others_of_their_namespace_were_not():
    player = player_of(pod("waited for", "blocker"), pod("created since", "blocked"))
    player._wait_bound("space", 1, {"type": "blocker"})
    player._delete_pods(DeletePods(namespace="space", label_selector={"type": "blocker"}))
    assert player._outcome("").sure.bound == 2
