"""n-step returns by hand, the ring buffer, priorities, and the buffer on disk."""

import numpy as np
import pytest
import torch

from aaml.learning.buffers import Experience, NStep, Replay, RewardScale
from aaml.scheduling.ports import Transition


def steps(make, rewards, **last):
    seen = [make.state(i) for i in range(len(rewards) + 1)]
    result = [Transition(seen[i], 0, reward, seen[i + 1]) for i, reward in enumerate(rewards)]
    if last:
        end = result[-1]
        result[-1] = Transition(
            end.observation, 0, end.reward, None if last.get("unseen") else end.next_observation,
            terminated=last.get("terminated", False), truncated=last.get("truncated", False),
        )  # fmt: skip
    return seen, result


def returns(chain, transitions):
    return [item for step in transitions for item in chain.push(step)]


def test_two_step_returns_of_a_terminated_episode(make):
    seen, transitions = steps(make, [1.0, 2.0, 4.0], terminated=True)
    items = returns(NStep(2, 0.5), transitions)
    # 1 + 0.5*2 bootstrapping at gamma^2 from s2; then 2 + 0.5*4 and 4, both without.
    assert [(item.reward, item.discount) for item in items] == [(2.0, 0.25), (4.0, 0.0), (4.0, 0.0)]
    assert items[0].next_observation is seen[2]
    assert items[1].next_observation is None


def test_a_truncated_episode_bootstraps_from_where_it_was_cut(make):
    seen, transitions = steps(make, [1.0, 2.0], truncated=True)
    items = returns(NStep(3, 0.5), transitions)
    assert [(item.reward, item.discount) for item in items] == [(2.0, 0.25), (2.0, 0.5)]
    assert all(item.next_observation is seen[2] for item in items)


def test_a_step_whose_continuation_nobody_saw_is_left_out(make):
    seen, transitions = steps(make, [1.0, 2.0, 9.0], truncated=True, unseen=True)
    items = returns(NStep(5, 0.5), transitions)
    assert [(item.reward, item.discount) for item in items] == [(2.0, 0.25), (2.0, 0.5)]
    assert all(item.next_observation is seen[2] for item in items)


def test_the_buffer_forgets_the_oldest(make):
    replay = Replay(3)
    for number in range(5):
        replay.add(Experience(make.state(0), 0, float(number), 0.0, None))
    assert sorted(item.reward for item in replay.items) == [2.0, 3.0, 4.0]


def test_the_buffer_lets_go_of_its_oldest_items_and_fills_again(make):
    """Six into four places leave 2 to 5; without those below 4 there is room for two more."""
    replay = Replay(4, prioritized=True)

    def add(*numbers):
        for number in numbers:
            replay.add(Experience(make.state(0), 0, float(number), 0.0, None))

    add(*range(6))
    replay.forget(lambda item: item.reward < 4.0)
    assert [item.reward for item in replay.items] == [4.0, 5.0]
    add(6, 7, 8)
    assert sorted(item.reward for item in replay.items) == [5.0, 6.0, 7.0, 8.0]
    assert set(replay.sample(64, torch.Generator().manual_seed(0)).reward.tolist()) == {5.0, 6.0, 7.0, 8.0}


def test_priorities_decide_how_often_an_item_is_drawn(make):
    replay = Replay(4, prioritized=True)
    for number in range(4):
        replay.add(Experience(make.state(0), 0, float(number), 0.0, None))
    generator = torch.Generator().manual_seed(0)
    drawn = replay.sample(64, generator)
    replay.reprioritize(torch.where(drawn.reward == 3.0, 100.0, 0.0))
    drawn = replay.sample(2000, generator)
    often = drawn.reward == 3.0
    chance = 100.001**0.6 / (100.001**0.6 + 3 * 0.001**0.6)
    assert float(often.float().mean()) == pytest.approx(chance, abs=0.01)
    assert drawn.weight[~often].numpy().min(initial=1.0) == 1.0  # the rare ones weigh most
    assert float(drawn.weight[often].max()) < 0.1


def test_a_buffer_comes_back_from_its_state_with_what_its_items_share(make):
    replay = Replay(10)
    graph = make.two_racks(6)
    seen = [make.random(6, 1, graph), make.random(6, 2, graph), make.random(4, 3)]
    replay.add(Experience(seen[0], 2, 1.5, 0.9, seen[1]))
    replay.add(Experience(seen[1], 1, -2.5, 0.9, seen[2]))
    replay.add(Experience(seen[2], 3, 0.25, 0.0, None))
    other = Replay(10)
    other.restore(replay.state())
    for mine, theirs in zip(replay.items, other.items, strict=True):
        assert (mine.action, mine.reward, mine.discount) == (theirs.action, theirs.reward, theirs.discount)
        for name in ("nodes", "pairs", "pod", "mask"):
            np.testing.assert_array_equal(getattr(mine.observation, name), getattr(theirs.observation, name))
        np.testing.assert_array_equal(mine.observation.graph.edge_index, theirs.observation.graph.edge_index)
    assert other.items[0].next_observation is other.items[1].observation
    assert other.items[2].next_observation is None


def test_rewards_are_scaled_by_their_root_mean_square():
    scale = RewardScale()
    assert scale.divisor == 1.0
    for reward in (3.0, 4.0, 0.0, 0.0):
        scale.add(reward)
    assert scale.divisor == 2.5
