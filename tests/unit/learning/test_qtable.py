"""The Q-table: known action values, order of nodes, bins, and its file."""

import json
from dataclasses import replace

import pytest

from aaml.errors import UserError
from aaml.learning.config import QTable
from aaml.learning.qtable import BinnedState, QTableAgent, load_qtable
from aaml.scheduling.observation import ObservationSpec
from support import make
from support.make import GIB


def cluster(*free_gib):
    """Nodes of 16 GiB with so much memory free."""
    used = [(row, 100, (16 - free) * GIB) for row, free in enumerate(free_gib) if free < 16]
    return make.cluster(make.nodes(len(free_gib), 8000, 16 * GIB, 9), used)


def pod(gib):
    return make.pod("p", 100, gib * GIB)


def context(free_gib, gib=1, mask=None, upcoming=()):
    return replace(make.context(cluster(*free_gib), pod(gib), mask, upcoming=upcoming), spec=ObservationSpec(2))


def test_it_finds_the_action_values_of_a_chain_with_known_ones():
    """s0 -1-> s1 (reward 0), s1 -1-> end (reward 1); action 0 ends at once with 0.3. With gamma 0.5: Q(s0) = .3, .5."""
    agent = QTableAgent(QTable(gamma=0.5, step=0.5), seed=0)
    first, second = (BinnedState((number,), (0, 1), (0, 1)) for number in range(2))
    for _ in range(300):
        for place in (0, 1):
            agent.update(first, place, 0.3 * (place == 0), second if place else None)
            agent.update(second, place, (0.3, 1.0)[place], None)
    values = {key: {place: entry[0] for place, entry in row.items()} for key, row in agent.table.items()}
    assert values[(0,)] == pytest.approx({0: 0.3, 1: 0.5}, abs=1e-6)
    assert values[(1,)] == pytest.approx({0: 0.3, 1: 1.0}, abs=1e-6)


def test_the_first_step_is_half_of_the_error_and_the_fourth_a_quarter():
    agent, seen = QTableAgent(QTable(step=0.5, gamma=0.0)), BinnedState((0,), (0,), (0,))
    assert agent.update(seen, 0, 8.0, None) == 8.0
    assert agent.table[(0,)][0] == [4.0, 1.0]
    agent.table[(0,)][0] = [4.0, 3.0]
    assert agent.update(seen, 0, 8.0, None) == 4.0
    assert agent.table[(0,)][0] == [5.0, 4.0]


def test_states_that_differ_in_the_order_of_nodes_alone_are_one():
    agent = QTableAgent(QTable(bins=4))
    one, other = agent.observation_of(context((16, 2, 9))), agent.observation_of(context((9, 16, 2)))
    assert one.key == other.key
    # Free 1, 1/8 and 9/16 of the size in 4 bins: 4 (all free), 0 and 2; codes 2 bin + 1 sorted: 1, 5, 9.
    assert one.key[:3] == (1, 5, 9)
    assert (one.places, other.places) == ((2, 0, 1), (1, 2, 0))
    assert agent.observation_of(context((16, 2, 9), mask=[True, False, True])).key[:3] == (0, 5, 9)


def test_nodes_in_one_bin_are_one_choice_and_the_emptiest_takes_the_pod():
    agent = QTableAgent(QTable(bins=4), learn=False)
    now = context((9, 2, 10))
    seen = agent.observation_of(now)
    assert (seen.places, seen.choices) == ((1, 0, 1), (0, 1))
    agent.table[seen.key] = {0: [-1.0, 1.0], 1: [1.0, 1.0]}
    assert agent.act(now).node_index == 2
    agent.table[seen.key] = {0: [1.0, 1.0], 1: [-1.0, 1.0]}
    assert agent.act(now).node_index == 1
    assert agent.act(context((9, 2, 10), mask=[True, False, False])).node_index == 0
    other = QTableAgent(QTable(bins=4, takes="fullest"), learn=False)
    other.table[seen.key] = {0: [-1.0, 1.0], 1: [1.0, 1.0]}
    assert other.act(now).node_index == 0


def test_a_node_that_is_all_free_is_none_that_is_nearly_so():
    agent = QTableAgent(QTable(bins=4))
    assert len(agent.observation_of(context((16, 15, 14))).choices) == 2


def test_demands_are_binned_and_pods_that_follow_are_shown_as_far_as_asked():
    agent = QTableAgent(QTable(bins=4, demand_bins=2), observation_spec=ObservationSpec(2))
    # In units of an eighth of the mean node (2 GiB), at most 2: 1 GiB -> 0, 3 GiB -> 1, 9 GiB -> 2; -1: no such pod.
    assert agent.observation_of(context((16,), gib=1, upcoming=[pod(3)])).key[1:] == (0, 1, -1)
    assert agent.observation_of(context((16,), gib=9, upcoming=[pod(3), pod(1), pod(9)])).key[1:] == (2, 1, 0)


def test_a_frozen_table_does_not_explore_and_a_learning_one_does():
    now = context((16, 2, 9))
    frozen, learning = QTableAgent(learn=False), QTableAgent(QTable(init_epsi=1.0, min_epsi=1.0))
    assert len({frozen.act(now).node_index for _ in range(30)}) == 1
    assert {learning.act(now).node_index for _ in range(60)} == {0, 1, 2}


def test_a_table_comes_back_from_its_file_and_from_its_state(tmp_path):
    agent, now = QTableAgent(QTable(bins=5), observation_spec=ObservationSpec(1), seed=4), context((16, 2, 9))
    for row in range(3):
        agent.update(agent.observation_of(now), row, 0.1 * row, agent.observation_of(context((1, 2, 3))))
    (path,) = agent.save(str(tmp_path), "x")
    other = load_qtable(path)
    assert (other.table, other.config, other.learning) == (agent.table, agent.config, False)
    assert other.act(now).node_index == 0  # the highest value is that of place 2, the emptiest node
    twin = QTableAgent(agent.config)
    twin.restore(json.loads(json.dumps(agent.state())))
    assert (twin.table, twin.epsilon, twin.decisions) == (agent.table, agent.epsilon, 3)
    assert [twin.act(now).node_index for _ in range(20)] == [agent.act(now).node_index for _ in range(20)]


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "3", "{}", '{"format": "aaml-qtable", "version": 99}',
        '{"format": "aaml-qtable", "version": 2, "config": {}, "table": [[1]]}',
        '{"format": "aaml-qtable", "version": 2, "config": {}, "table": [[[1], {"0": ["x", 1]}]]}',
        '{"format": "aaml-qtable", "version": 2, "config": {"bims": 3}, "table": []}',
    ],
)  # fmt: skip
def test_damaged_files_are_told_in_one_line(tmp_path, content):
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"model .*table\.json: is not a Q-table") as error:
        load_qtable(path)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="a file that can be read"):
        load_qtable(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("name", "value"), [("bins", 0), ("demand_bins", -1), ("gamma", 1.5), ("epsi_decay", -0.1), ("takes", "any")]
)
def test_settings_out_of_range_are_named(name, value):
    with pytest.raises(UserError, match=name):
        QTable(**{name: value})


def test_a_reward_that_is_no_number_is_not_learned_from():
    agent, seen = QTableAgent(QTable(), seed=0), BinnedState((0,), (0, 1), (0, 1))
    with pytest.raises(UserError, match="reward: nan is not accepted"):
        agent.update(seen, 0, float("nan"), None)
    assert (agent.table, agent.decisions) == ({}, 0)
