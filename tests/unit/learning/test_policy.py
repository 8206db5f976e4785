"""A policy acts without what learning needs; shipped models are read to act and to learn."""

from pathlib import Path

import pytest
import torch

from aaml.evaluation.policies import load
from aaml.learning.agents import load_agent
from aaml.learning.networks import Network
from aaml.learning.policy import NetworkPolicy, load_network_policy

MODELS = sorted((Path(__file__).parents[3] / "models").glob("*.pth"))


def test_a_model_is_loaded_to_act_without_an_optimiser_or_a_second_network(monkeypatch):
    made = []
    usual = Network.__init__
    monkeypatch.setattr(Network, "__init__", lambda self, spec: made.append(spec) or usual(self, spec))

    def never(*_, **__):
        raise AssertionError("who only acts needs no optimiser")

    monkeypatch.setattr(torch.optim.Optimizer, "__init__", never)
    for path in MODELS[:4]:
        made.clear()
        policy = load(path)
        assert isinstance(policy, NetworkPolicy)
        assert len(made) == 1
        assert not hasattr(policy, "replay")


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_shipped_model_is_the_same_policy_to_act_and_to_learn(path):
    """Its header has settings by their names of before."""
    policy, agent = load_network_policy(path), load_agent(path)
    assert agent.name == policy.name
    if not path.name.startswith("Critic"):
        for one, other in zip(policy.network.parameters(), agent.network.parameters(), strict=True):
            assert torch.equal(one, other)
    assert agent.config.learning_rate > 0.0
