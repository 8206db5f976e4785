"""A learner hears of kube-scheduler's cluster and its choices over a socket, and of nothing else."""

import threading
from contextlib import closing

import numpy as np
import pytest

from aaml.cluster import audit
from aaml.errors import UserError
from aaml.plugin.cluster import PluginCluster
from aaml.plugin.messages import Explore
from aaml.scheduling.play import play
from support import make
from support.scripted_plugin import ScriptedPlugin

GIB = 1 << 30


@pytest.fixture
def cluster(tmp_path):
    with closing(PluginCluster(tmp_path / "learn.sock")) as made:
        yield made


def talk(cluster):
    return ScriptedPlugin(cluster.where)


class Follows:
    """Takes the choice that was told."""

    name = "told"

    def __init__(self, cluster):
        self.cluster = cluster

    def act(self, _context):
        return self.cluster.decision


def places(cluster):
    return {uid: placement.node_name for uid, placement in cluster.state.placements.items()}


def chosen(cluster):
    return cluster.state.names[cluster.decision.node_index]


def test_a_choice_comes_with_the_state_that_it_was_made_from(cluster):
    plugin = talk(cluster).hello(make.nodes(3), [make.pod("old", 1000, GIB, node_name="n2")])
    plugin.choose(make.pod("a", 500, GIB), "n1", ["n0", "n1"], pending=7)
    pod = cluster.next_pod(10.0)
    assert (pod.key, pod.node_name, pod.requests["cpu"]) == ("default/a", "", 500)
    assert chosen(cluster) == "n1"
    assert cluster.feasible(pod).tolist() == [True, True, False]
    assert cluster.pending_count() == 7
    assert cluster.state.requested[:, 0].tolist() == [0, 0, 1000]
    assert cluster.bind(pod, 1) == "n1"
    assert cluster.state.requested[:, 0].tolist() == [0, 500, 1000]
    plugin.bound(pod)
    assert cluster.next_pod(0.2) is None
    assert [(each.pod.uid, each.status, each.node_name) for each in cluster.results()] == [("default/a", "bound", "n1")]
    audit.check(cluster.state)


def test_a_bind_that_failed_leaves_the_room_as_it_was(cluster):
    plugin = talk(cluster).hello(make.nodes(2))
    pod = make.pod("a")
    plugin.choose(pod, "n0")
    cluster.bind(cluster.next_pod(10.0), 0)
    plugin.bound(pod, failed="a webhook said no")
    plugin.choose(pod, "n1", by="kube-scheduler")
    assert cluster.next_pod(10.0).uid == pod.uid
    assert [(each.status, each.message) for each in cluster.results()] == [("failed", "a webhook said no")]
    assert places(cluster) == {}
    assert (chosen(cluster), cluster.decision.by) == ("n1", "kube-scheduler")


def test_what_changed_between_two_choices_is_known_at_the_second(cluster):
    plugin = talk(cluster).hello(make.nodes(3), [make.pod("old", 1000, GIB, node_name="n2")])
    plugin.choose(make.pod("a"), "n0")
    cluster.bind(cluster.next_pod(10.0), 0)
    grown = make.node("n1", cpu=8000)
    plugin.changes([grown, make.node("n9")], [make.pod("theirs", 300, GIB, node_name="n1")], ["n2"], ["default/old"])
    plugin.choose(make.pod("b"), "n9")  # which has the number of n2 now
    pod = cluster.next_pod(10.0)
    assert cluster.state.names == ["n0", "n1", "n9"]
    assert cluster.state.allocatable[1, 0] == 8000
    assert places(cluster) == {"default/a": "n0", "default/theirs": "n1"}
    assert (chosen(cluster), cluster.feasible(pod).tolist()) == ("n9", [True, True, True])
    audit.check(cluster.state)


def test_a_plugin_that_is_back_begins_anew_and_open_binds_end_as_it_found_them(cluster):
    plugin = talk(cluster).hello(make.nodes(3))
    for name, node in (("a", "n0"), ("b", "n1")):
        plugin.choose(make.pod(name), node)
        cluster.bind(cluster.next_pod(10.0), cluster.state.index[node])
    plugin.close()
    again = None

    def come_back():
        nonlocal again
        again = talk(cluster).hello([make.node("n0"), make.node("n2")], [make.pod("a", node_name="n0")])
        again.choose(make.pod("c"), "n2")

    assert cluster.next_pod(0.2) is None
    come_back()
    pod = cluster.next_pod(10.0)
    assert pod.name == "c"
    assert {each.pod.name: each.status for each in cluster.results()} == {"a": "bound", "b": "failed"}
    assert cluster.state.names == ["n0", "n2"]
    assert places(cluster) == {"default/a": "n0"}
    assert cluster.feasible(pod).tolist() == [True, True]
    audit.check(cluster.state)


def test_an_episode_ends_where_choices_could_not_be_told(cluster):
    plugin = talk(cluster).hello(make.nodes(2))
    one, two, three = (make.pod(name, owner="ReplicaSet/web") for name in "abc")
    endings = []

    def ending(pod, following):
        endings.append((pod.name, following and following.name, cluster.ending(pod, following)))
        return endings[-1][-1]

    plugin.choose(one, "n0")
    plugin.choose(two, "n1")
    plugin.choose(three, "n1", lost=5)
    plugin.bound(one, two, three)
    play(cluster, Follows(cluster), max_decisions=3, episodes=ending)
    # `make.pod` has no controller in its API object, so each pod is a deployment of its own unless it follows.
    assert [(each[0], each[1]) for each in endings] == [("a", "b"), ("b", "c"), ("c", None)]
    assert endings[1][2] == "truncated"
    assert cluster.lost == 5


def test_the_plugin_is_told_once_how_to_explore_and_again_when_it_comes_back(cluster):
    plugin = talk(cluster).hello(make.nodes(1))
    cluster.explore(Explore("any", 0.5))  # before it has said hello: it does not hear
    assert cluster.next_pod(0.2) is None
    for _ in range(2):
        cluster.explore(Explore("any", 0.25))
    cluster.explore(Explore("any", 0.125))
    assert [plugin.heard()["chance"] for _ in range(2)] == [0.25, 0.125]
    plugin.close()
    again = talk(cluster)
    assert cluster.next_pod(0.2) is None
    again.hello(make.nodes(1))
    assert cluster.next_pod(0.2) is None
    cluster.explore(Explore("any", 0.125))
    assert again.heard() == {"type": "explore", "by": "any", "chance": 0.125}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('{"type": "choice"', "a message is damaged"),
        ('{"type": "choice", "node": 0}', "missing required field `pod`"),
        ('{"type": "order"}', "Invalid value 'order'"),
        ('{"type": "choice", "pod": {"metadata": {"name": "a"}}, "node": 8}', "makes no sense (8 is not known)"),
        ('{"type": "choice", "pod": {"metadata": {"name": "a"}}, "node": 0, "mask": "/w=="}', "node 2 of a mask"),
        ('{"type": "changes", "goneNodes": [5]}', "makes no sense (5 is not known)"),
        ('{"type": "changes", "nodes": [{"number": -1, "node": {}}]}', "number -1 of a node is negative"),
        ('{"type": "changes", "nodes": [{"number": 3, "node": {"status": {"allocatable": {"cpu": "x"}}}}]}', "cpu"),
        ('{"type": "hello", "version": 2}', "it speaks version 2; expected 1"),
        ("\udcff", "a message is damaged"),
    ],
)
def test_who_makes_no_sense_is_hung_up_on_in_one_line_and_may_begin_anew(cluster, caplog, said, told):
    plugin = talk(cluster).hello(make.nodes(2))
    plugin.socket.sendall(said.encode(errors="surrogateescape") + b"\n")
    assert cluster.next_pod(0.3) is None
    assert plugin.gone()
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told in line
    assert "\n" not in line
    talk(cluster).hello(make.nodes(2)).choose(make.pod("a"), "n1")
    assert cluster.next_pod(10.0).name == "a"


def test_who_does_not_say_hello_is_turned_away_and_a_second_plugin_waits_for_the_first_to_go(cluster, caplog):
    rude = talk(cluster)
    rude.changes(make.nodes(1))
    assert cluster.next_pod(0.2) is None
    assert rude.gone()
    assert "its first message is no hello" in caplog.text
    first = talk(cluster).hello(make.nodes(1))
    assert cluster.next_pod(0.2) is None
    talk(cluster).hello(make.nodes(1)).choose(make.pod("b"), "n0")
    first.choose(make.pod("a"), "n0")
    assert cluster.next_pod(10.0).name == "a"
    assert cluster.next_pod(0.2) is None
    first.close()
    assert cluster.next_pod(10.0).name == "b"


def test_a_message_may_come_in_pieces_and_many_at_once(cluster):
    plugin = talk(cluster)
    sent = []
    plugin.socket, real = type("Kept", (), {"sendall": lambda _self, data: sent.append(data)})(), plugin.socket
    plugin.hello(make.nodes(50))
    for number in range(20):
        plugin.choose(make.pod(f"p{number}", 10, 1 << 20), f"n{number}")
    data = b"".join(sent)

    def drip():
        for start in range(0, len(data), 997):
            real.sendall(data[start : start + 997])

    thread = threading.Thread(target=drip)
    thread.start()
    got = []
    while len(got) < 20:
        pod = cluster.next_pod(10.0)
        cluster.bind(pod, cluster.decision.node_index)
        got.append((pod.name, chosen(cluster)))
    thread.join()
    assert got == [(f"p{number}", f"n{number}") for number in range(20)]


def test_a_socket_that_a_killed_learner_left_is_taken_over_and_one_in_use_is_not(tmp_path):
    path = tmp_path / "sub" / "learn.sock"
    killed = PluginCluster(path)
    with pytest.raises(UserError, match="another process listens there"):
        PluginCluster(path)
    killed._listener._listener.close()  # as the system does
    with closing(PluginCluster(path)):
        assert path.stat().st_mode & 0o777 == 0o660
    assert not path.exists()
    with pytest.raises(UserError, match="expected a path for a Unix socket"):
        PluginCluster(tmp_path / ("x" * 120))


def test_rows_of_a_mask_follow_the_nodes_wherever_their_rows_are(cluster):
    plugin = talk(cluster).hello(make.nodes(40))
    plugin.choose(make.pod("a"), "n39", ["n3", "n39"])
    assert np.flatnonzero(cluster.feasible(cluster.next_pod(10.0))).tolist() == [3, 39]
    plugin.changes(gone_nodes=["n0", "n5"])
    plugin.choose(make.pod("a"), "n39", ["n3", "n39"])  # again: it was not bound
    pod = cluster.next_pod(10.0)
    assert [cluster.state.names[node_index] for node_index in np.flatnonzero(cluster.feasible(pod))] == ["n3", "n39"]
