"""Group rollouts: what is compared, stars without edges, what is drawn, and what each agent's update does."""

import dataclasses

import numpy as np
import pytest
import torch

from aaml.learning.agents import make_agent
from aaml.learning.algorithms.imitation import Demonstration, fit_temperature, init_from
from aaml.learning.algorithms.ppo import Rollout
from aaml.learning.buffers import LastRounds, Transitions
from aaml.learning.collate import Batch, collate, joined
from aaml.learning.config import AGENTS
from aaml.learning.group_rollouts import best, choose
from aaml.learning.losses import discounted_sums, entropy, relative_to_group, select
from aaml.learning.networks import NetworkSpec, make_network
from aaml.learning.policy import load_network_policy, single_threaded
from aaml.scheduling.observation import NODE_FEATURES, PAIR_FEATURES, Observation

ALL = ("dqn", "gnn", "acdqn", "acgnn")
single_threaded()


def group_agent(name, **settings):
    """An agent that learns by group rollouts."""
    return make_agent(dataclasses.replace(AGENTS[name], **settings).resolved("group"), seed=1, averaged=True)


def stars(observations):
    """A batch of stars that is told the number of their nodes instead of their edges."""
    plain = collate(observations, graphs=False)
    return dataclasses.replace(plain, counts=torch.tensor([len(each.mask) for each in observations]))


def test_rewards_are_summed_up_from_each_step_on():
    reward = torch.tensor([[1.0, 0.0], [2.0, 4.0], [4.0, 8.0]])
    torch.testing.assert_close(discounted_sums(reward, 0.5), torch.tensor([[3.0, 4.0], [4.0, 8.0], [4.0, 8.0]]))
    torch.testing.assert_close(discounted_sums(reward, 0.5, 2), torch.tensor([[2.0, 2.0], [4.0, 8.0], [4.0, 8.0]]))
    torch.testing.assert_close(discounted_sums(reward, 0.5, 9), discounted_sums(reward, 0.5))


def test_what_all_members_of_a_group_get_drops_out():
    values = torch.tensor([[1.0, 3.0, 10.0, 10.0], [0.0, 0.0, 5.0, 7.0]])
    torch.testing.assert_close(
        relative_to_group(values, 2), torch.tensor([[-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.0]])
    )
    torch.testing.assert_close(
        relative_to_group(values + torch.tensor([[7.0, 7.0, -2.0, -2.0]]), 2), relative_to_group(values, 2)
    )


@pytest.mark.parametrize("head", ["q", "actor", "critic"])
def test_a_star_without_edges_is_the_star_with_them(make, head):
    network = make_network(NetworkSpec(encoder="gnn", head=head), seed=1)
    observations = [make.random(n, n) for n in (3, 7, 5)]
    with torch.inference_mode():
        for group in (observations, observations[:1]):
            expected, seen = network(collate(group)), network(stars(group))
            where = torch.ones_like(expected, dtype=torch.bool) if head == "critic" else collate(group).mask
            torch.testing.assert_close(seen[where], expected[where], rtol=1e-5, atol=1e-6)


def test_parts_of_a_batch_put_together_are_the_batch(make):
    batch = stars([make.random(4, seed) for seed in range(5)])
    again = joined([batch.take(torch.tensor([0, 1])), batch.take(torch.tensor([False, False, True, True, True]))])
    for name in ("nodes", "pairs", "pod", "mask", "counts"):
        torch.testing.assert_close(getattr(again, name), getattr(batch, name))


@pytest.mark.parametrize("name", ALL)
def test_a_model_from_before_features_were_added_sees_those_that_it_knows(make, name, tmp_path):
    """The file says which: its choices do not depend on features that came later."""
    old = NetworkSpec(node_features=NODE_FEATURES[:16], pair_features=PAIR_FEATURES[:16])
    agent = make_agent(AGENTS[name], like=old, seed=3)
    agent.save(str(tmp_path), "old")
    observation = make.random(6, 1)
    before = agent.preferences(observation)
    pairs, nodes = observation.pairs.copy(), observation.nodes.copy()
    pairs[:, 16:], nodes[:, 16:] = 9.0, 9.0
    other = dataclasses.replace(observation, pairs=pairs, nodes=nodes)
    file = next(path for path in sorted(tmp_path.iterdir()) if "Critic" not in path.name)
    loaded = load_network_policy(file)
    np.testing.assert_array_equal(loaded.preferences(other), before)
    with torch.inference_mode():
        twin = loaded.network(collate([other]))[0].numpy()
    np.testing.assert_allclose(twin, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_a_share_of_the_choices_is_sampled_and_none_is_infeasible(make, name):
    batch = stars([make.random(6, seed, feasible=0.5) for seed in range(400)])
    network = group_agent(name).network
    choice = choose(network, batch, 0.25, torch.Generator().manual_seed(0))
    rows = torch.arange(len(batch))
    assert batch.mask[rows, choice.action].all()
    # Within four standard deviations of a quarter of 400.
    assert 100 - 4 * 8.7 < int(choice.sampled.sum()) < 100 + 4 * 8.7
    assert (choice.action == best(network, batch))[~choice.sampled].all()
    assert (choice.action != best(network, batch))[choice.sampled].any()
    again = choose(network, batch, 0.25, torch.Generator().manual_seed(0))
    assert (choice.action == again.action).all()


def agreed(agent, batch, teacher):
    """The share of choices that are the teacher's."""
    return float((best(agent.network, batch) == teacher).float().mean())


@pytest.mark.parametrize("name", ALL)
def test_an_imitator_chooses_as_its_teacher_and_an_actor_stays_open(make, name):
    batch = stars([make.random(5, seed) for seed in range(600)])
    teacher = batch.pairs[:, :, 1].masked_fill(~batch.mask, 9.0).argmin(dim=1)  # the least CPU afterwards
    agent, shown = group_agent(name), [Demonstration(batch, teacher)]
    before = agreed(agent, batch, teacher)
    agent.imitate(shown, 40)
    assert agreed(agent, batch, teacher) > max(before, 0.9)
    if name.startswith("ac"):
        fit_temperature(agent.network, shown)
        assert agreed(agent, batch, teacher) > 0.9
        with torch.inference_mode():
            logits = agent.network(batch)
        assert entropy(logits, batch.mask).mean() / batch.mask.sum(dim=1).log().mean() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_an_imitator_of_one_cluster_size_does_not_forget_another(make, name):
    small = stars([make.random(5, seed) for seed in range(400)])
    large = stars([make.random(12, seed) for seed in range(400)])
    small.pod[:, 0], large.pod[:, 0] = 0.0, 2.0
    shown = [
        (small, small.pairs[:, :, 1].masked_fill(~small.mask, 9.0).argmin(dim=1)),
        (large, large.pairs[:, :, 2].masked_fill(~large.mask, 9.0).argmin(dim=1)),  # another rule: memory
    ]
    agent = group_agent(name)
    agent.imitate([Demonstration(*each) for each in shown], 80)
    # learned one size after the other, a third or less of the first is left
    assert min(agreed(agent, *each) for each in shown) > 0.6


@pytest.mark.parametrize("name", ["acdqn", "acgnn"])
def test_an_actor_may_begin_as_a_heuristic_exactly(make, name):
    batch = stars([make.random(5, seed) for seed in range(200)])
    rule = (batch.pairs[:, :, 1] + batch.pairs[:, :, 2]).masked_fill(~batch.mask, 9.0).argmin(dim=1)
    network = group_agent(name).network
    init_from(network, {"cpu_after": -1.0, "memory_after": -1.0})
    fit_temperature(network, [Demonstration(batch, rule)])
    assert (best(network, batch) == rule).all()
    assert (choose(network, batch, 0.1, torch.Generator().manual_seed(0)).action != rule).any()


class Bandit:
    """A problem without a future: the reward of a choice is how little CPU its node has afterwards."""

    def __init__(self, agent, batch):
        self.agent, self.batch = agent, batch
        self.generator = torch.Generator().manual_seed(0)
        self.rounds = LastRounds(0, prioritized=getattr(agent.config, "prioritized", False))

    def played(self):
        """A round of which every choice is sampled."""
        choice = choose(self.agent.network, self.batch, 1.0, self.generator)
        worth = -self.batch.pairs[torch.arange(len(self.batch)), choice.action, 1]
        if self.agent.name.startswith("ac"):
            log_prob = select(choice.log_prob, choice.action)
            return Rollout(self.batch, choice.action, log_prob, worth - worth.mean(), worth)
        none = torch.zeros(len(self.batch), dtype=torch.bool)
        return Transitions(
            self.batch, choice.action, worth - worth.mean(), none.float(), none, log_prob=choice.log_prob
        )

    def learn(self, follow=1.0):
        algorithm, played = self.agent.algorithm, self.played()
        if isinstance(played, Rollout):
            algorithm.update(played, self.generator)
            return
        self.rounds.add(played)
        size = self.agent.config.batch_size
        steps = self.agent.config.n_epochs * len(self.batch) // size
        algorithm.learn(self.rounds, size, steps, self.generator, follow=follow / steps)

    def worth(self):
        """What the best choices are worth on average, and what is the most."""
        taken = best(self.agent.network, self.batch)
        most = self.batch.pairs[:, :, 1].masked_fill(~self.batch.mask, 9.0).min(dim=1).values
        return float(-self.batch.pairs[torch.arange(len(taken)), taken, 1].mean()), float(-most.mean())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), [*((name, {}) for name in ALL), ("dqn", {"prioritized": True})])
def test_every_agent_learns_which_choices_beat_the_others(make, name, settings):
    batch = stars([make.random(5, seed) for seed in range(500)])
    bandit = Bandit(group_agent(name, batch_size=128, learning_rate=3e-3, **settings), batch)
    before, most = bandit.worth()
    for number in range(25):
        bandit.learn(follow=9.0 / (9.0 + number))
    assert bandit.worth()[0] > before + 0.8 * (most - before)


def test_a_dqn_acts_by_a_running_average_of_its_weights(make):
    """Three networks: one learns, its average acts and is the target."""
    agent = group_agent("dqn", batch_size=32)
    algorithm = agent.algorithm

    def weights(network):
        return torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone()

    before = weights(algorithm.average)
    assert agent.network is algorithm.average is algorithm.target
    Bandit(agent, stars([make.random(5, seed) for seed in range(200)])).learn(follow=0.01)
    moved, learned = weights(algorithm.average) - before, weights(algorithm.network) - before
    assert 0.001 < float(moved.norm() / learned.norm()) < 0.02


def test_rounds_of_a_cluster_size_are_remembered_however_many_of_others_come(make):
    """Where a GNN that learned from three sizes remembered the last four rounds of all, it forgot a size at times."""
    generator, rounds = torch.Generator().manual_seed(0), LastRounds(80)
    played = [Bandit(group_agent("dqn"), stars([make.random(size, 0)] * 40)).played() for size in (3, 5, 5, 5, 5)]
    for number, each in enumerate(played):
        rounds.add(dataclasses.replace(each, reward=torch.full((40,), float(number))))
    drawn = {float(rounds.sample(8, generator).reward.mean()) for _ in range(60)}
    assert drawn == {0.0, 3.0, 4.0}
    rounds.forget()
    assert len(rounds) == 0


def test_decisions_are_drawn_by_their_error_and_count_the_less_the_more_often(make):
    """Schaul et al. 2016: P(i) ~ priority^0.6, weights (M P(i))^-0.4 over their maximum; errors of 1 and 32."""
    generator, rounds = torch.Generator().manual_seed(0), LastRounds(0, prioritized=True)
    played = Bandit(group_agent("dqn"), stars([make.random(3, 0)] * 2)).played()
    rounds.add(dataclasses.replace(played, reward=torch.tensor([0.0, 1.0])))
    drawn = rounds.sample(4_000, generator)
    assert 0.47 < float((drawn.reward == 0).float().mean()) < 0.53  # nothing is known: as likely as each other
    assert set(drawn.weight.tolist()) == {1.0}
    rounds.reprioritize(torch.where(drawn.reward == 0, 1.0, -32.0))
    drawn = rounds.sample(4_000, generator)
    share = 32**0.6 / (1 + 32**0.6)  # 0.889
    assert abs(float((drawn.reward == 1).float().mean()) - share) < 0.02
    assert float(drawn.weight[drawn.reward == 0].mean()) == pytest.approx(1.0)
    assert float(drawn.weight[drawn.reward == 1].mean()) == pytest.approx((32**0.6) ** -0.4, rel=1e-3)
    plain = LastRounds(0)
    plain.add(played)
    assert plain.sample(8, generator).weight is None


@pytest.mark.slow
def test_a_dqn_believes_its_own_estimate_of_what_follows(make):
    """Two states: the first earns nothing and leads to the second, which earns 1: both are worth gamma^0 and gamma."""
    first, second = make.state(0), make.state(1)
    goes_on = torch.tensor([True, True, False, False])
    rounds = LastRounds(0)
    rounds.add(Transitions(
        stars([first, first, second, second]), torch.tensor([0, 1, 0, 1]), torch.tensor([0.0, 0.0, 1.0, 1.0]),
        torch.full((4,), 0.5), goes_on, stars([second, second]), log_prob=torch.full((4, 2), 0.5).log(),
    ))  # fmt: skip
    agent, generator = group_agent("dqn", learning_rate=3e-3), torch.Generator().manual_seed(0)
    for number in range(10):
        agent.algorithm.learn(rounds, 32, 50, generator, follow=9.0 / (9.0 + number) / 50)
    with torch.inference_mode():
        q = agent.network(stars([first, second]))
    np.testing.assert_allclose(q[0].numpy(), 0.5, atol=0.1)
    np.testing.assert_allclose(q[1].numpy(), 1.0, atol=0.1)


def test_a_batch_takes_the_first_features_alone(make):
    batch = stars([make.random(4, 1)])
    few = batch.first(2, 3)
    assert isinstance(few, Batch)
    assert few.nodes.shape == (1, 4, 2)
    assert few.pairs.shape == (1, 4, 3)
    assert batch.first(batch.nodes.shape[2], batch.pairs.shape[2]) is batch
    assert isinstance(make.random(2, 1), Observation)
