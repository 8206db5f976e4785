"""Learners on problems whose values are known."""

import dataclasses

import numpy as np
import pytest
import torch

from aaml.learning.agents import agreement, make_agent
from aaml.learning.algorithms.dqn import QLearning
from aaml.learning.buffers import Experience, Replay
from aaml.learning.collate import collate
from aaml.learning.config import LIVE
from aaml.learning.losses import log_policy
from aaml.learning.networks import NetworkSpec
from aaml.scheduling.ports import Transition

DQN = dataclasses.replace(LIVE["dqn"], scale_rewards=False, learning_rate=0.01)
ACTOR_CRITIC = dataclasses.replace(
    LIVE["acdqn"], scale_rewards=False, gamma=0.99, learning_rate=0.01, critic_learning_rate=0.01
)


@pytest.mark.parametrize("encoder", ["mlp", "gnn"])
def test_dqn_finds_the_values_of_a_two_state_problem(make, encoder):
    """State 0: node 0 leads to state 1 for nothing, node 1 ends for 1. State 1: node 0 ends for 2, node 1 for 0.

    Node 2 is never feasible; were it counted in the bootstrap, its value would not be known at all. With discount 0.9:
    Q(0, .) = 1.8, 1 and Q(1, .) = 2, 0.
    """
    mask = [True, True, False]
    first, second = make.state(0, 3, mask), make.state(1, 3, mask)
    replay = Replay(4)
    for item in (
        Experience(first, 0, 0.0, 0.9, second),
        Experience(first, 1, 1.0, 0.0, None),
        Experience(second, 0, 2.0, 0.0, None),
        Experience(second, 1, 0.0, 0.0, None),
    ):
        replay.add(item)
    learner, generator = QLearning(DQN, NetworkSpec(encoder=encoder), seed=0), torch.Generator().manual_seed(0)
    for _ in range(20):
        learner.learn(replay, 16, 20, generator)
        learner.sync_target()
    q = learner.network(collate([first, second])).detach()
    torch.testing.assert_close(q[:, :2], torch.tensor([[1.8, 1.0], [2.0, 0.0]]), rtol=0.0, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["mlp", "gnn"])
@pytest.mark.parametrize("epochs", [1, 4])
def test_actor_critic_prefers_the_better_feasible_node_and_knows_its_value(make, encoder, epochs):
    """Rewards 1, 3 and 100 for nodes 0, 1 and 2, where node 2 is not feasible; every episode is one step."""
    observation = make.state(0, 3, [True, True, False])
    config = dataclasses.replace(ACTOR_CRITIC, n_epochs=epochs, ent_coef=0.0)
    agent, rng = make_agent(dataclasses.replace(config, encoder=encoder, update_steps=16)), np.random.default_rng(0)
    learner = agent.algorithm
    batch = collate([observation])
    for _ in range(120):
        chance = log_policy(learner.actor(batch).detach(), batch.mask).exp()[0].double().numpy()
        assert chance[2] == 0.0
        actions = rng.choice(3, size=16, p=chance / chance.sum())
        for action in actions:
            agent.observe(Transition(observation, int(action), [1.0, 3.0][action], None, terminated=True))
        agent.learn()
    assert log_policy(learner.actor(batch), batch.mask).exp()[0, 1] > 0.95
    assert float(learner.critic(batch)[0].detach()) == pytest.approx(3.0, abs=0.15)


def test_the_critic_finds_the_value_of_a_truncated_walk(make):
    """A reward of 1 for ever, seen in pieces of two steps: the value is 1 / (1 - 0.5) = 2 in every state."""
    states = [make.state(0), make.state(1)]
    walk = [
        Transition(states[0], 0, 1.0, states[1]),
        Transition(states[1], 0, 1.0, states[0], truncated=True),
    ]
    agent = make_agent(dataclasses.replace(ACTOR_CRITIC, gamma=0.5, update_steps=2))
    for _ in range(200):
        for step in walk:
            agent.observe(step)
        agent.learn()
    values = agent.algorithm.critic(collate(states)).detach()
    torch.testing.assert_close(values, torch.full((2,), 2.0), rtol=0.0, atol=0.1)


@pytest.mark.slow
def test_imitation_finds_the_teachers_rule(make):
    rng = np.random.default_rng(0)
    pieces = []
    for episode in range(6):
        seen = [make.random(int(rng.integers(3, 12)), 100 * episode + i) for i in range(60)]
        best = [int(np.where(o.mask, o.pairs[:, 3], 2.0).argmin()) for o in seen]
        pieces.append([Transition(o, a, 1.0, n) for o, a, n in zip(seen, best, seen[1:], strict=False)])
    unseen = [Transition(o, int(np.where(o.mask, o.pairs[:, 3], 2.0).argmin()), 1.0, None) for o in
              (make.random(20, 9000 + i) for i in range(100))]  # fmt: skip
    for config in (DQN, dataclasses.replace(ACTOR_CRITIC, encoder="gnn")):
        agent = make_agent(dataclasses.replace(config, batch_size=32, gamma=0.0), seed=0)
        assert agreement(agent, unseen) < 0.5
        agent.follow(pieces, passes=30)
        assert agreement(agent, unseen) > 0.55


def test_an_update_ends_early_beyond_the_target_kl(make):
    """The first step starts at a divergence of 0; after it any is above a target of 1e-12, so one step is all."""
    observation = make.state(0, 3, [True, True, True])

    def weights(**settings):
        agent = make_agent(dataclasses.replace(ACTOR_CRITIC, update_steps=4, **settings), seed=3)
        for action in (0, 1, 2, 1):
            agent.observe(Transition(observation, action, float(action), None, terminated=True))
        curves = agent.learn()
        return list(agent.algorithm.actor.parameters()), curves

    one, _ = weights(n_epochs=1)
    ended, curves = weights(n_epochs=5, target_kl=1e-12)
    five, _ = weights(n_epochs=5)
    assert all(torch.equal(a, b) for a, b in zip(one, ended, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, five, strict=True))
    assert curves["train/approx_kl"] > 0.0
