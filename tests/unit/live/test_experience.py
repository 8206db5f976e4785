"""A recording gives back what the agent would have seen: the same features, action, reward and end of episode."""

import itertools

import numpy as np
import pandas as pd
import pytest

from aaml.cluster.filters import feasible
from aaml.cluster.objects import CONTROL_PLANE_LABEL, Node, Pod, Taint
from aaml.cluster.state import ClusterState
from aaml.errors import UserError
from aaml.learning.agents import make_agent
from aaml.learning.config import LIVE, Dqn
from aaml.live.experience import fill_replay, transitions
from aaml.live.record import SchedulerRecord
from aaml.scheduling.observation import PLAIN
from aaml.telemetry.recording import RecordingWriter, nodes_path, read_recording

GIB = 1024**3
# (pod, deployment, CPU, memory, node): the second deployment has one pod, the third starts on a part-filled cluster
PLACEMENTS = [
    ("a-0", "a", 1500, 2 * GIB, "n1"),
    ("a-1", "a", 1500, 2 * GIB, "n0"),
    ("b-0", "b", 4000, 1 * GIB, "n2"),
    ("c-0", "c", 250, 3 * GIB, "n1"),
    ("c-1", "c", 250, 3 * GIB, "n1"),
]


@pytest.fixture
def recorded(tmp_path):
    """A recording of `PLACEMENTS` and the observations at each, of workers alone as a recording has them."""
    workers = [Node(f"n{i}", {"cpu": 4000 * (i + 1), "memory": 16 * GIB, "pods": 10}) for i in range(3)]
    control = Node(
        "ctl", {"cpu": 4000, "memory": GIB, "pods": 10}, {CONTROL_PLANE_LABEL: ""}, (Taint(CONTROL_PLANE_LABEL),)
    )
    state, seen = ClusterState([control, *workers]), []
    twin = ClusterState(workers)
    writer = RecordingWriter(tmp_path / "sched_test.csv")
    for number, (name, owner, cpu, memory, node) in enumerate(PLACEMENTS):
        pod = Pod(name, requests={"cpu": cpu, "memory": memory}, owner=f"ReplicaSet/{owner}")
        alone = Pod(name, requests={"cpu": cpu, "memory": memory})
        seen.append(PLAIN.observe(twin, alone, feasible(twin, alone).mask))
        twin.assume(alone, node)
        state.assume(pod, node)
        writer.placed(state, pod, node, reward=0.5 - number)
    writer.close()
    return writer.path, seen


def test_features_actions_and_rewards_come_back(recorded):
    path, seen = recorded
    steps = list(transitions(read_recording(path)))
    assert [step.action for step in steps] == [1, 0, 2, 1, 1]
    assert [step.reward for step in steps] == [0.5, -0.5, -1.5, -2.5, -3.5]
    for step, observation in zip(steps, seen, strict=True):
        np.testing.assert_allclose(step.observation.nodes, observation.nodes, atol=1e-4)
        np.testing.assert_allclose(step.observation.pairs, observation.pairs, atol=1e-4)
        np.testing.assert_allclose(step.observation.pod, observation.pod, atol=1e-4)
        np.testing.assert_array_equal(step.observation.mask, observation.mask)


def test_a_deployment_is_an_episode(recorded):
    steps = list(transitions(read_recording(recorded[0])))
    assert [step.truncated for step in steps] == [False, True, True, False, True]
    assert all(step.next_observation is following.observation for step, following in itertools.pairwise(steps))
    assert steps[-1].next_observation is None


def test_the_control_plane_is_not_in_it(recorded):
    table = read_recording(recorded[0])
    assert [name for name in table.columns if name.startswith("cpu_n")] == ["cpu_n0", "cpu_n1", "cpu_n2"]
    assert not any("ctl" in name for name in table.columns)
    assert table.attrs["nodes"]["n2"] == {"cpu": 12_000, "memory": 16 * GIB, "pods": 10}


def test_a_replay_buffer_fills_and_can_be_learned_from(recorded):
    agent = make_agent(Dqn(batch_size=8, n_step=1), seed=1)
    added = fill_replay(agent, recorded[0])
    assert added == len(agent.replay) == 4  # nobody saw what followed the last step
    assert agent.algorithm.learn(agent.replay, 8, 1, agent.generator)["2. Loss/Train"] >= 0.0
    assert agent.decisions == 0  # they were not its own


def test_a_table_from_a_notebook_is_taken_with_standard_nodes(recorded):
    steps = list(transitions(pd.read_csv(recorded[0])))
    assert len(steps) == 5
    assert [step.action for step in steps] == [1, 0, 2, 1, 1]


def test_an_actor_has_no_buffer_to_fill(recorded):
    with pytest.raises(UserError, match="acdqn: has no replay buffer"):
        fill_replay(make_agent(LIVE["acdqn"]), recorded[0])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("default/a-1,0,", "default/a-1,7,", ["line 3", "column action", "7", "0 to 2"]),
        ("default/a-1,0,", "default/a-1,-1,", ["line 3", "column action", "'-1'"]),
        (",-0.5,", ",lots,", ["line 3", "column reward", "'lots'"]),
        ("1500m", "fast", ["line 2", "column cpu_request", "'fast'"]),
        ("cpu_request", "cpu_wish", ["line 1", "'cpu_request'", "missing"]),
    ],
)
def test_a_damaged_recording_is_told(recorded, old, new, words):
    path, _ = recorded
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError) as error:
        read_recording(path)
    for word in ("sched_test.csv", *words):
        assert word in str(error.value)


def test_a_table_that_is_no_recording_is_refused():
    with pytest.raises(UserError, match="'pod_name' is missing"):
        list(transitions(pd.DataFrame({"x": [1]})))


def test_nothing_placed_leaves_no_file(tmp_path):
    writer = RecordingWriter(tmp_path / "sched_none.csv")
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_placements_on_later_nodes_are_counted_and_left_out(tmp_path):
    state = ClusterState([Node("n0", {"cpu": 1000, "memory": GIB, "pods": 10})])
    writer = RecordingWriter(tmp_path / "sched_x.csv")
    for number in range(2):
        pod = Pod(f"p{number}", requests={"cpu": 1})
        state.upsert_node(Node(f"n{number}", {"cpu": 1000, "memory": GIB, "pods": 10}))
        state.assume(pod, f"n{number}")
        writer.placed(state, pod, f"n{number}", 0.0)
    writer.close()
    assert (writer.written, writer.skipped) == (1, 1)
    assert nodes_path(writer.path).read_text() == "name,cpu,memory,pods\nn0,1,1Gi,10\n"


def test_a_table_that_is_there_is_not_begun_anew(recorded):
    """Hours of placements: the first one of the next recording would have replaced them."""
    path = recorded[0]
    before = path.read_bytes()
    with pytest.raises(UserError, match=rf"out: {path} is there already; choose another --out"):
        SchedulerRecord(path=path).run()
    assert path.read_bytes() == before
