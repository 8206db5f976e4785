"""Expert iteration: an agent learns what a search chooses; same seed, same curve; killed and resumed, the same."""

import pytest

from aaml.errors import UserError
from aaml.learning.agents import agreement, load_agent, make_agent
from aaml.learning.config import AGENTS
from aaml.scheduling.observation import ObservationSpec
from aaml.settings import changed
from aaml.sim.search_config import SearchConfig
from aaml.training.collectors import LocalCollector
from aaml.training.rewards import Apprentice
from aaml.training.rollouts import EnvFactory, demonstrate
from aaml.training.settings import TrainConfig
from support.training import agent as make
from support.training import assert_equal, train

QUICK = {"batch_size": 32, "hidden_size": 16}


def small(agent="acdqn", **others):
    return TrainConfig(
        agent=make(agent, **QUICK), task="seedc", pods=20, envs=2, steps=36, teacher_steps=40, teacher_passes=4,
        validate_every=16, validation_episodes=1, seed=3, method="expert", search=SearchConfig(2, 2, 4), **others,
    )  # fmt: skip


@pytest.mark.parametrize("agent", ["acdqn", "dqn"])
def test_a_killed_run_goes_on_to_the_same_curve_and_weights(agent, tmp_path):
    whole, curve = train(small(agent), tmp_path / "whole")
    assert {"Expert/Agreed before", "Validation/Score", "2. Loss/Train"} <= {name for name, _, _ in curve}

    class KilledError(Exception):
        pass

    checks = []

    def kill():
        checks.append(0)
        if len(checks) == 13:  # beyond the first round, whose state is what is left
            raise KilledError
        return False

    with pytest.raises(KilledError):
        train(small(agent), tmp_path / "cut", stop=kill)
    resumed, other = train(small(agent), tmp_path / "cut", resume=True)
    assert other == curve
    assert_equal(whole.weights, resumed.weights)
    assert load_agent(whole.folder.model_path()).name == agent


@pytest.mark.parametrize("agent", ["dqn", "acdqn"])
def test_an_apprentice_comes_to_choose_as_the_expert_does(agent):
    config = small(agent)
    apprentice = Apprentice(make_agent(config.network, observation_spec=ObservationSpec(2), seed=0), passes=40)
    pieces = demonstrate(EnvFactory(config.env_config), "least-variance", seed=0, steps=120)
    shown = [step for piece in pieces for step in piece]
    for step in shown:
        apprentice.observe(step)
    before = agreement(apprentice.agent, shown)
    facts = apprentice.flush()
    assert facts["Expert/Agreed before"] == before < 0.8
    assert facts["Expert/Agreed after"] == agreement(apprentice.agent, shown) > 0.85
    assert apprentice.flush() == {}  # nothing new


def test_the_agent_itself_may_go_on_after_a_candidate():
    config = small(rollout="agent")
    assert config.actor.rollout == ""
    assert small().actor.rollout == "least-variance"
    collector = LocalCollector(config.env_config, config.actor, 0, range(1))
    weights = make_agent(config.network, observation_spec=ObservationSpec(2), seed=0).weights()
    steps = collector.collect(weights, 6)
    again = LocalCollector(config.env_config, config.actor, 0, range(1)).collect(weights, 6)
    assert [step.action for _, step in steps] == [step.action for _, step in again]


def test_the_expert_is_for_agents_with_networks_and_its_numbers_are_checked():
    with pytest.raises(UserError, match="agent"):
        TrainConfig(agent=AGENTS["qtable"], task="seedc", method="expert")
    with pytest.raises(UserError, match="samples"):
        changed(small(), {"samples": 0})
    with pytest.raises(UserError, match="method"):
        TrainConfig(method="magic")
