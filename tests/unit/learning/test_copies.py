"""Learning from copies: what is compared, stars without edges, what is drawn, and what each agent's update does."""

import dataclasses

import numpy as np
import pytest
import torch

from aaml.learning.agent import load_agent, make_agent, single_threaded
from aaml.learning.collate import Batch, collate, joined
from aaml.learning.config import AGENTS, CopiesConfig
from aaml.learning.copies import Compared, LastRounds, in_copies
from aaml.learning.losses import discounted_sums, entropy, relative_to_copies
from aaml.learning.networks import NetworkSpec, make_network
from aaml.scheduling.observation import NODE_FEATURES, PAIR_FEATURES, Observation

ALL = ("dqn", "gnn", "acdqn", "acgnn")
single_threaded()


def copying(name, **settings):
    """An agent that learns from copies."""
    return dataclasses.replace(AGENTS[name], **settings).settled("copies")


def stars(observations):
    """A batch of stars that is told the number of their nodes instead of their edges."""
    plain = collate(observations, graphs=False)
    return dataclasses.replace(plain, counts=torch.tensor([len(each.mask) for each in observations]))


def test_rewards_are_summed_up_from_each_step_on():
    reward = torch.tensor([[1.0, 0.0], [2.0, 4.0], [4.0, 8.0]])
    torch.testing.assert_close(discounted_sums(reward, 0.5), torch.tensor([[3.0, 4.0], [4.0, 8.0], [4.0, 8.0]]))
    torch.testing.assert_close(discounted_sums(reward, 0.5, 2), torch.tensor([[2.0, 2.0], [4.0, 8.0], [4.0, 8.0]]))
    torch.testing.assert_close(discounted_sums(reward, 0.5, 9), discounted_sums(reward, 0.5))


def test_what_all_copies_of_a_group_get_drops_out():
    values = torch.tensor([[1.0, 3.0, 10.0, 10.0], [0.0, 0.0, 5.0, 7.0]])
    torch.testing.assert_close(
        relative_to_copies(values, 2), torch.tensor([[-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.0]])
    )
    torch.testing.assert_close(
        relative_to_copies(values + torch.tensor([[7.0, 7.0, -2.0, -2.0]]), 2), relative_to_copies(values, 2)
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
    loaded = load_agent(file, learn=False)
    np.testing.assert_array_equal(loaded.preferences(other), before)
    with torch.inference_mode():
        twin = loaded.scorer(collate([other]))[0].numpy()
    np.testing.assert_allclose(twin, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_a_share_of_the_choices_is_drawn_and_none_is_infeasible(make, name):
    batch = stars([make.random(6, seed, feasible=0.5) for seed in range(400)])
    agent = in_copies(make_agent(copying(name), seed=1), CopiesConfig(sampled=0.25))
    choice = agent.choose(batch, torch.Generator().manual_seed(0))
    rows = torch.arange(len(batch))
    assert batch.mask[rows, choice.action].all()
    # Within four standard deviations of a quarter of 400.
    assert 100 - 4 * 8.7 < int(choice.drawn.sum()) < 100 + 4 * 8.7
    assert (choice.action == agent.best(batch))[~choice.drawn].all()
    assert (choice.action != agent.best(batch))[choice.drawn].any()
    again = agent.choose(batch, torch.Generator().manual_seed(0))
    assert (choice.action == again.action).all()


@pytest.mark.parametrize("name", ALL)
def test_an_imitator_chooses_as_its_teacher_and_an_actor_stays_open(make, name):
    batch = stars([make.random(5, seed) for seed in range(600)])
    teacher = batch.pairs[:, :, 1].masked_fill(~batch.mask, 9.0).argmin(dim=1)  # the least CPU afterwards
    agent = make_agent(copying(name), seed=1)
    learner = in_copies(agent, CopiesConfig())
    before = float((learner.best(batch) == teacher).float().mean())
    learner.imitate([(batch, teacher)], 40, torch.Generator().manual_seed(0))
    assert float((learner.best(batch) == teacher).float().mean()) > max(before, 0.9)
    if name.startswith("ac"):
        with torch.inference_mode():
            share = entropy(agent.scorer(batch), batch.mask).mean() / batch.mask.sum(dim=1).log().mean()
        assert share > 0.5


@pytest.mark.parametrize("name", ALL)
def test_an_imitator_of_one_cluster_size_does_not_forget_another(make, name):
    small = stars([make.random(5, seed) for seed in range(400)])
    large = stars([make.random(12, seed) for seed in range(400)])
    small.pod[:, 0], large.pod[:, 0] = 0.0, 2.0
    shown = [
        (small, small.pairs[:, :, 1].masked_fill(~small.mask, 9.0).argmin(dim=1)),
        (large, large.pairs[:, :, 2].masked_fill(~large.mask, 9.0).argmin(dim=1)),  # another rule: memory
    ]
    learner = in_copies(make_agent(copying(name), seed=1), CopiesConfig())
    learner.imitate(shown, 80, torch.Generator().manual_seed(0))
    agreed = [float((learner.best(batch) == teacher).float().mean()) for batch, teacher in shown]
    assert min(agreed) > 0.6  # learned one size after the other, a third or less of the first is left


@pytest.mark.parametrize("name", ["acdqn", "acgnn"])
def test_an_actor_may_begin_as_a_heuristic_exactly(make, name):
    batch = stars([make.random(5, seed) for seed in range(200)])
    heuristic = {"cpu_after": -1.0, "memory_after": -1.0}
    rule = (batch.pairs[:, :, 1] + batch.pairs[:, :, 2]).masked_fill(~batch.mask, 9.0).argmin(dim=1)
    learner = in_copies(make_agent(copying(name), seed=1), CopiesConfig())
    learner.begin_as(heuristic, [batch])
    assert (learner.best(batch) == rule).all()
    assert (learner.choose(batch, torch.Generator().manual_seed(0)).action != rule).any()


def bandit(batch, agent, generator):
    """A round of a problem without a future: the reward of a choice is how little CPU its node has afterwards."""
    choice = agent.choose(batch, generator)
    worth = -batch.pairs[torch.arange(len(batch)), choice.action, 1]
    advantage = worth - worth.mean()
    kept = choice.drawn
    none = torch.zeros_like(kept)
    return Compared(
        batch.take(kept), choice.action[kept], choice.log_prob[kept], advantage[kept], worth[kept],
        advantage[kept], None, none[kept], 0.0,
    )  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_every_agent_learns_which_choices_beat_the_others(make, name):
    batch = stars([make.random(5, seed) for seed in range(500)])
    agent = in_copies(make_agent(copying(name, batch_size=128, learning_rate=3e-3), seed=1), CopiesConfig(sampled=1.0))
    generator = torch.Generator().manual_seed(0)

    def worth():
        return float(-batch.pairs[torch.arange(len(batch)), agent.best(batch), 1].mean())

    best = float((-batch.pairs[:, :, 1]).masked_fill(~batch.mask, -9.0).max(dim=1).values.mean())
    before = worth()
    for _ in range(25):
        agent.learn(bandit(batch, agent, generator), 1.0, generator)
    assert worth() > before + 0.8 * (best - before)


@pytest.mark.parametrize(("rounds", "least", "most"), [(0, 0.3, 1.0), (891, 0.001, 0.02)])
def test_a_dqn_acts_by_the_average_of_the_last_ninth_of_its_rounds(make, rounds, least, most):
    """The first round is averaged over itself, the 892nd moves the average by a hundredth of what it moves by."""
    batch = stars([make.random(5, seed) for seed in range(200)])
    agent = make_agent(copying("dqn", batch_size=32), seed=1)
    agent.updates = rounds
    learner, generator = in_copies(agent, CopiesConfig(sampled=1.0)), torch.Generator().manual_seed(0)

    def weights(network):
        return torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone()

    before = weights(agent.scorer)
    learner.learn(bandit(batch, learner, generator), 1.0, generator)
    average, latest = weights(agent.scorer), weights(agent.learner.target)
    assert least < float((average - before).norm() / (latest - before).norm()) < most


def test_rounds_of_a_cluster_size_are_remembered_however_many_of_others_come(make):
    """Where a GNN that learned from three sizes remembered the last four rounds of all, it forgot a size at times."""
    generator, rounds = torch.Generator().manual_seed(0), LastRounds(80)
    learner = in_copies(make_agent(copying("dqn"), seed=1), CopiesConfig(sampled=1.0))
    small, *large = (bandit(stars([make.random(size, 0)] * 40), learner, generator) for size in (3, 5, 5, 5, 5))
    for each in (small, *large):
        rounds.add(each)
    drawn = [rounds.draw(generator) for _ in range(60)]
    assert {id(each.compared) for each in drawn} == {id(small), id(large[-2]), id(large[-1])}
    rounds.forget()
    rounds.add(small)
    assert rounds.draw(generator).compared is small


def test_decisions_are_drawn_by_their_error_and_count_the_less_the_more_often(make):
    """Schaul et al. 2016: P(i) ~ priority^0.6, weights (M P(i))^-0.4 over their maximum; errors of 1 and 32."""
    generator, rounds = torch.Generator().manual_seed(0), LastRounds(1)
    learner = in_copies(make_agent(copying("dqn"), seed=1), CopiesConfig(sampled=1.0))
    rounds.add(bandit(stars([make.random(3, 0)] * 2), learner, generator))
    drawn = rounds.draw(generator)
    rows, weight = drawn.sample(4_000, generator, prioritized=True)
    assert 0.47 < float((rows == 0).float().mean()) < 0.53  # nothing is known: as likely as each other
    assert set(weight.tolist()) == {1.0}
    drawn.reprioritize(torch.tensor([0, 1]), torch.tensor([1.0, -32.0]))
    rows, weight = drawn.sample(4_000, generator, prioritized=True)
    share = 32**0.6 / (1 + 32**0.6)  # 0.889
    assert abs(float((rows == 1).float().mean()) - share) < 0.02
    assert float(weight[rows == 0].mean()) == pytest.approx(1.0)
    assert float(weight[rows == 1].mean()) == pytest.approx((32**0.6) ** -0.4, rel=1e-3)
    rows, weight = drawn.sample(4_000, generator, prioritized=False)
    assert weight is None
    assert 0.47 < float((rows == 0).float().mean()) < 0.53


def test_a_dqn_learns_from_decisions_drawn_by_their_error(make):
    batch = stars([make.random(5, seed) for seed in range(500)])
    prioritized = copying("dqn", prioritized=True, batch_size=128, learning_rate=3e-3)
    agent = in_copies(make_agent(prioritized, seed=1), CopiesConfig(sampled=1.0))
    generator = torch.Generator().manual_seed(0)
    best = float(-batch.pairs[:, :, 1].masked_fill(~batch.mask, 9.0).min(dim=1).values.mean())
    for _ in range(12):
        agent.learn(bandit(batch, agent, generator), 1.0, generator)
    worth = float(-batch.pairs[torch.arange(len(batch)), agent.best(batch), 1].mean())
    assert worth > best - 0.05


def test_a_dqn_believes_its_own_estimate_of_what_follows(make):
    """Two states: the first earns nothing and leads to the second, which earns 1: both are worth gamma^0 and gamma."""
    first, second = make.state(0), make.state(1)
    seen = stars([first, first, second, second])
    compared = Compared(
        seen, torch.tensor([0, 1, 0, 1]), torch.full((4, 2), 0.5).log(), torch.zeros(4), torch.zeros(4),
        torch.tensor([0.0, 0.0, 1.0, 1.0]), stars([second, second]), torch.tensor([True, True, False, False]), 0.5,
    )  # fmt: skip
    agent = make_agent(copying("dqn", batch_size=32, n_epochs=400, learning_rate=3e-3), seed=1)
    learner = in_copies(agent, CopiesConfig())
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        learner.learn(compared, 1.0, generator)
    with torch.inference_mode():
        q = agent.scorer(stars([first, second]))
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
