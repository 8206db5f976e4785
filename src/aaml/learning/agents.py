"""The four agents with a network: built with fresh weights, or from a model file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aaml.errors import UserError
from aaml.learning.actor_critic_agent import ActorCriticAgent
from aaml.learning.agent import NeuralAgent
from aaml.learning.algorithms.dqn import QLearning
from aaml.learning.algorithms.ppo import Ppo
from aaml.learning.checkpoint import load_checkpoint
from aaml.learning.config import ActorCritic, Dqn, NetworkAgent, read_agent
from aaml.learning.dqn_agent import DqnAgent
from aaml.learning.networks import NetworkSpec
from aaml.learning.policy import NetworkPolicy, network_spec
from aaml.scheduling.observation import PLAIN, ObservationSpec
from aaml.scheduling.ports import Policy, Transition


def make_agent(
    config: NetworkAgent,
    *,
    observation_spec: ObservationSpec = PLAIN,
    seed: int = 0,
    guide: Policy | None = None,
    like: NetworkSpec = NetworkSpec(),  # noqa: B008  (frozen)
    averaged: bool = False,
) -> NeuralAgent:
    """Build an agent with fresh weights, which sees the features that `like` sees; what is left unset is as live.

    With `averaged` a DQN acts by a running average of its weights.
    """
    config = config.resolved("live")
    spec = network_spec(config, observation_spec, like)
    if isinstance(config, Dqn):
        learner = QLearning(config, spec, seed, averaged=averaged)
        return DqnAgent(config, learner, observation_spec=observation_spec, seed=seed, guide=guide)
    if isinstance(config, ActorCritic):
        return ActorCriticAgent(config, Ppo(config, spec, seed), observation_spec=observation_spec, seed=seed)
    raise TypeError(f"{type(config).__name__} is no agent with a network")


def load_agent(
    path: str | Path,
    config: NetworkAgent | None = None,
    *,
    seed: int = 0,
    guide: Policy | None = None,
    observation_spec: ObservationSpec | None = None,
    averaged: bool = False,
) -> NeuralAgent:
    """Build the agent that a model file holds (either file of an actor and its critic) and go on from it.

    `config` None takes the file's settings; else its kind and width have to be the file's. `observation_spec` None
    takes the file's; else it has to show as many pods ahead. Raises UserError when the file is missing, corrupt,
    foreign, of another kind or size.
    """
    path = Path(path)
    checkpoint = load_checkpoint(path)
    if config is not None and config.name != checkpoint.kind:
        raise UserError(f"model {path}: is a {checkpoint.kind!r} model; expected {config.name}")
    try:
        config = config or read_agent(checkpoint.kind, checkpoint.fields["config"])
    except (KeyError, TypeError, UserError) as error:
        raise UserError(f"model {path}: its settings are damaged ({error})") from error
    if observation_spec is not None and observation_spec.lookahead != checkpoint.observation_spec.lookahead:
        seen = f"{checkpoint.observation_spec.lookahead} pods ahead"
        raise UserError(
            f"model {path}: was trained to look {seen}; expected {observation_spec.lookahead}, as the task has it"
        )
    agent = make_agent(
        config, observation_spec=observation_spec or checkpoint.observation_spec, seed=seed, guide=guide,
        like=checkpoint.spec, averaged=averaged,
    )  # fmt: skip
    agent.load(path)
    return agent


def first_agent(
    config: NetworkAgent, start: Path | None, *, observation_spec: ObservationSpec, seed: int, averaged: bool = False
) -> NeuralAgent:
    """Build the agent that a training begins with: a fresh one, or that of a model file to go on from.

    Raises UserError as `load_agent` does.
    """
    if start is None:
        return make_agent(config, observation_spec=observation_spec, seed=seed, averaged=averaged)
    return load_agent(start, config, observation_spec=observation_spec, seed=seed, averaged=averaged)


def agreement(policy: NetworkPolicy, steps: Sequence[Transition]) -> float:
    """Return the share of steps in which the policy's best choice is the one that was made."""
    return float(np.mean([policy.greedy(step.observation) == step.action for step in steps]))
