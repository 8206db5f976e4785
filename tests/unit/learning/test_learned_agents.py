"""The four agents: masks, freezing, model files, going on to the last bit."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from aaml.errors import UserError
from aaml.learning.agents import load_agent, make_agent
from aaml.learning.config import LIVE, Dqn
from aaml.learning.optim import descend, make_optimizer
from aaml.learning.policy import new_policy
from aaml.live.run import SchedulerRun
from aaml.live.settings import SchedulerSettings
from aaml.live.source import PolicySource
from aaml.policies.registry import make_policy
from aaml.scheduling.node_sampling import NodeSampling
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.ports import Agent, Transition
from support.limits import largest_file
from support.training import agent as configured

QUICK = {"batch_size": 16, "update_frequency": 4, "target_update_frequency": 8, "update_steps": 8, "segment": 6}


def context(observation):
    return SimpleNamespace(observation=observation, mask=observation.mask, observation_by=lambda _spec: observation)


def quick(kind, **others):
    return configured(kind, **QUICK, **others)


def train(agent, make, start, stop):
    """Reward the node with the smallest fourth pair feature; returns the actions."""
    actions = []
    for i in range(start, stop):
        now, following = make.random(8, i), make.random(8, i + 1)
        node_index = agent.act(context(now)).node_index
        actions.append(node_index)
        agent.observe(
            Transition(now, node_index, float(1.0 - now.pairs[node_index, 3]), following, truncated=i % 10 == 9)
        )
        agent.learn()
    return actions


@pytest.mark.parametrize("kind", LIVE)
def test_agents_choose_feasible_rows_only_and_are_agents(make, kind):
    agent = make_agent(quick(kind), seed=1)
    assert isinstance(agent, Agent)
    for i in range(60):
        observation = make.random(9, i, feasible=0.2)
        assert observation.mask[agent.act(context(observation)).node_index]


@pytest.mark.parametrize("kind", LIVE)
def test_an_agent_that_scores_some_nodes_takes_the_best_of_them(make, kind):
    agent, observation = new_policy(quick(kind), seed=1), make.random(300, 1, feasible=1.0)
    agent.score_some(NodeSampling(50))
    chosen = [agent.act(context(observation)).node_index for _ in range(2)]
    halves = np.arange(150), np.arange(150, 300)
    best = [half[agent.preferences(observation.of(half)).argmax()] for half in halves]
    assert chosen == best
    agent.score_some(None)
    assert agent.act(context(observation)).node_index == agent.greedy(observation)


@pytest.mark.parametrize("kind", ["acdqn", "acgnn"])
def test_an_actor_learns_from_the_chances_among_the_nodes_that_it_scored(make, kind):
    agent = make_agent(quick(kind), seed=1)
    agent.score_some(NodeSampling(50))
    seen = [make.random(300, number, feasible=1.0) for number in range(4)]
    decisions = [agent.act(context(observation)) for observation in seen[:3]]
    assert [decision.info for decision in decisions] == [{"scored_from": at, "scored": 150} for at in (0, 150, 0)]
    for number, decision in enumerate(decisions):
        agent.observe(Transition(seen[number], decision.node_index, 1.0, seen[number + 1], info=decision.info))
    (steps,) = agent._open.values()
    for step, observation, decision in zip(steps, seen, decisions, strict=False):
        assert len(step.observation.mask) == 150
        assert np.array_equal(step.observation.nodes[step.action], observation.nodes[decision.node_index])
    assert [step.next_observation for step in steps] == [steps[1].observation, steps[2].observation, seen[3]]


def test_an_actor_that_scores_some_nodes_learns_to_take_the_best_of_them(make):
    agent, unseen = make_agent(quick("acdqn"), seed=1), make.random(300, 1_000)
    agent.score_some(NodeSampling(50))
    for number in range(400):
        now, following = make.random(300, number), make.random(300, number + 1)
        decision = agent.act(context(now))
        reward = float(1.0 - now.pairs[decision.node_index, 3])
        agent.observe(
            Transition(now, decision.node_index, reward, following, truncated=number % 10 == 9, info=decision.info)
        )
        agent.learn()
    assert np.corrcoef(agent.preferences(unseen), unseen.pairs[:, 3])[0, 1] < -0.5


def test_who_cannot_score_some_nodes_says_so():
    with pytest.raises(UserError, match="dqn sees racks"):
        make_agent(quick("dqn"), observation_spec=ObservationSpec(racks=True)).score_some(NodeSampling(0))
    settings = SchedulerSettings(percentage_of_nodes_to_score=50)
    with pytest.raises(UserError, match=r"percentage-of-nodes-to-score.*50.*least-allocated is no network"):
        SchedulerRun(PolicySource(lambda: make_policy("least-allocated")), settings).run()


@pytest.mark.parametrize("kind", LIVE)
def test_learning_changes_the_weights_and_a_frozen_agent_stays(make, kind):
    agent = make_agent(quick(kind), seed=1)
    before = [p.clone() for p in agent.network.parameters()]
    train(agent, make, 0, 40)
    assert any(not torch.equal(a, b) for a, b in zip(before, agent.network.parameters(), strict=True))
    assert agent.updates > 0
    frozen = make_agent(quick(kind), seed=1)
    frozen.learning = False
    before = [p.clone() for p in frozen.network.parameters()]
    actions = train(frozen, make, 0, 40)
    assert all(torch.equal(a, b) for a, b in zip(before, frozen.network.parameters(), strict=True))
    assert actions == train(frozen, make, 0, 40)


@pytest.mark.parametrize("kind", LIVE)
def test_the_curves_have_their_names(make, kind):
    agent = make_agent(quick(kind), seed=1)
    names = set()
    for i in range(40):
        now = make.random(8, i)
        agent.observe(
            Transition(now, agent.act(context(now)).node_index, 1.0, make.random(8, i + 1), truncated=i % 10 == 9)
        )
        names |= set(agent.learn())
    expected = {"1. CSR", "2. Loss/Train", "train/grad_norm"} if kind in {"dqn", "gnn"} else {
        "1. CSR", "2. Advantage", "5. Actor Loss", "6. Critic Loss", "train/approx_kl", "train/clip_fraction",
        "train/explained_variance", "train/grad_norm"}  # fmt: skip
    assert expected <= names


@pytest.mark.parametrize("kind", LIVE)
def test_a_saved_agent_comes_back_and_chooses_the_same(make, kind, tmp_path):
    agent = make_agent(quick(kind), seed=1)
    train(agent, make, 0, 40)
    paths = agent.save(str(tmp_path), "x")
    names = {"dqn": {"DQN_Model_x.pth"}, "gnn": {"GNN_Model_x.pth"}}.get(kind, {"Actor_x.pth", "Critic_x.pth"})
    assert {path.name for path in tmp_path.iterdir()} == names
    for path in paths:
        other = load_agent(path)
        assert (other.name, other.decisions, other.updates) == (kind, agent.decisions, agent.updates)
        for i in range(20):
            observation = make.random(15, 500 + i)
            assert other.greedy(observation) == agent.greedy(observation)


@pytest.mark.parametrize("kind", LIVE)
def test_an_agent_goes_on_from_its_state_to_the_last_bit(make, kind):
    whole = make_agent(quick(kind), seed=1)
    train(whole, make, 0, 60)
    whole.cut()
    state = whole.state()
    twin = make_agent(quick(kind), seed=99)
    twin.restore(state)
    assert train(whole, make, 60, 120) == train(twin, make, 60, 120)
    for mine, theirs in zip(whole.network.parameters(), twin.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_exploration_falls_and_follows_the_heuristic_when_asked(make):
    agent = make_agent(quick("dqn", use_heuristic=True, init_epsi=1.0, epsi_decay=0.5, min_epsi=0.125), seed=1)
    observation = make.random(8, 0)
    least = int(np.where(observation.mask, observation.pairs[:, 1] + observation.pairs[:, 2], 9.0).argmin())
    assert agent.act(context(observation)).node_index == least
    for _ in range(10):
        agent.observe(Transition(observation, least, 0.0, observation))
    assert agent.epsilon == 0.125


def test_model_files_that_do_not_fit_are_told_in_one_line(make, tmp_path):
    def refused(path, match, **arguments):
        with pytest.raises(UserError, match=match) as error:
            load_agent(path, **arguments)
        assert "\n" not in str(error.value)

    refused(tmp_path / "DQN_Model_none.pth", "no such file")
    corrupt = tmp_path / "DQN_Model_corrupt.pth"
    corrupt.write_bytes(b"PK\x03\x04 nothing that torch wrote")
    refused(corrupt, "not a model file")
    cut = tmp_path / "DQN_Model_cut.pth"
    whole = make_agent(LIVE["dqn"]).save(str(tmp_path), "whole")[0]
    cut.write_bytes(open(whole, "rb").read()[:-2000])  # noqa: PTH123, SIM115
    refused(cut, "not a model file")
    foreign = tmp_path / "DQN_Model_foreign.pth"
    torch.save({"layer.weight": torch.zeros(2)}, foreign)
    refused(foreign, "not a model file")
    refused(whole, "expected gnn", config=LIVE["gnn"])
    refused(whole, "width 64", config=Dqn(hidden_size=64))
    content = torch.load(whole, weights_only=True)
    content["network"]["node_features"][0] = "something_else"
    torch.save(content, foreign)
    refused(foreign, "node_features differ.*something_else")
    content["version"] = 99
    torch.save(content, foreign)
    refused(foreign, "version 99")


def test_a_model_file_that_runs_code_is_refused_without_running_it(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    path = tmp_path / "DQN_Model_evil.pth"
    torch.save({"format": "aaml-model", "payload": Evil()}, path, pickle_module=pickle)
    with pytest.raises(UserError, match="not a model file"):
        load_agent(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("field", "value"), [("gamma", 1.5), ("batch_size", 0), ("learning_rate", -1.0), ("optimizer", "Sgd")]
)
def test_settings_out_of_range_are_named(field, value):
    with pytest.raises(UserError, match=field):
        Dqn(**{field: value})


@pytest.mark.parametrize("kind", LIVE)
@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_no_number_is_refused_and_leaves_the_agent_as_it_was(make, kind, reward):
    agent = make_agent(quick(kind), seed=1)
    train(agent, make, 0, 20)
    before, decisions = [p.clone() for p in agent.network.parameters()], agent.decisions
    with pytest.raises(UserError, match=rf"reward: {reward} is not accepted; expected a finite number"):
        agent.observe(Transition(make.random(8, 1), 0, reward, make.random(8, 2)))
    assert agent.decisions == decisions
    assert all(torch.equal(a, b) for a, b in zip(before, agent.network.parameters(), strict=True))
    train(agent, make, 20, 40)
    assert all(torch.isfinite(p).all() for p in agent.network.parameters())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_takes_no_step(value):
    torch.manual_seed(0)
    network = torch.nn.Linear(2, 1)
    optimizer = make_optimizer("Adam", network, 0.1)
    descend(network(torch.ones(1, 2)).sum() ** 2, network, optimizer, 10.0)
    weights = {name: each.clone() for name, each in network.state_dict().items()}
    moments = [each["exp_avg"].clone() for each in optimizer.state_dict()["state"].values()]
    with pytest.raises(UserError, match=r"training has diverged: the loss is (nan|-?inf).*the weights .* are kept"):
        descend(network(torch.full((1, 2), 3.0)).sum() * value, network, optimizer, 10.0)
    assert all(torch.equal(each, weights[name]) for name, each in network.state_dict().items())
    after = [each["exp_avg"] for each in optimizer.state_dict()["state"].values()]
    assert all(torch.equal(one, other) for one, other in zip(moments, after, strict=True))


@pytest.mark.parametrize("room", [0, 64, 4096])  # at 64 bytes torch's own writer raises no OSError
def test_a_full_disk_leaves_the_model_that_was_there_and_is_told_in_a_line(tmp_path, room):
    agent = make_agent(LIVE["dqn"])
    (path,) = agent.save(str(tmp_path), "kept")
    before = Path(path).read_bytes()
    with largest_file(room), pytest.raises(UserError, match="cannot be written: File too large"):
        agent.save(str(tmp_path), "kept")
    assert Path(path).read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [Path(path).name]
