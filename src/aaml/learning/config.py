"""Agents as values: which kind of agent, with its hyperparameters, under the names that the field gives them.

    Dqn(encoder="gnn", learning_rate=3e-4)

The four agents with a network are an encoder {MLP, GNN} times an algorithm {DQN, PPO}; people know them and the two
without by the names in `AGENTS`. A hyperparameter that is left unset takes the default of the method that trains
(`DEFAULTS`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from aaml.errors import bad_value
from aaml.settings import (
    UNSET,
    Count,
    Fraction,
    Named,
    Natural,
    NotNegative,
    Positive,
    Settings,
    Share,
    Unset,
    changed,
    fields,
)

AgentKind = Literal["dqn", "gnn", "acdqn", "acgnn"]
EncoderKind = Literal["mlp", "gnn"]
OptimizerName = Literal["Adam", "AdamW", "RMSprop", "SGD"]
Method = Literal["group", "rewards", "live"]
USUAL_STEPS = 60_000


SCRIPT_NAMES: Mapping[str, str] = {
    "hidden_layers": "hidden_size", "actor_learning_rate": "learning_rate", "replay_buffer_size": "buffer_size",
}  # fmt: skip
"""What the flags of the agents' own scripts call a setting, and the setting."""
_HEADER_NAMES: Mapping[str, str] = {
    **SCRIPT_NAMES, "max_gradient_norm": "max_grad_norm", "entropy_weight": "ent_coef", "clip": "clip_range",
    "value_clip": "clip_range_vf", "epochs": "n_epochs", "horizon": "segment",
}  # fmt: skip
"""What the headers of model files of version 1 call a setting, and the setting."""


class AgentConfig(Named):
    """Everything an agent is built from. Counts are of decisions where nothing else is said."""

    other_names: ClassVar = SCRIPT_NAMES

    @classmethod
    def names(cls) -> Mapping[str, "AgentConfig"]:
        """Return the agents that people choose from."""
        return AGENTS

    def for_steps(self, steps: int) -> Self:
        """Return the agent for a training of so many decisions: what was left unset is chosen by its length."""
        del steps
        return self


@dataclass(frozen=True)
class NetworkAgent(AgentConfig):
    """What the four agents with a network share."""

    implied: ClassVar[tuple[str, ...]] = ("encoder",)

    encoder: EncoderKind = "mlp"
    """network: an MLP that reads each node alone (mlp), or a graph network over all nodes (gnn)"""
    hidden_size: Count = 32
    """width of every hidden layer"""
    learning_rate: Unset[Positive] = UNSET
    """learning rate; of the actor in an actor-critic. With `group` it decays to 0"""
    optimizer: OptimizerName = "Adam"
    """optimizer of PyTorch"""
    max_grad_norm: Unset[Positive] = UNSET
    """gradients are clipped to this norm"""
    batch_size: Unset[Count] = UNSET
    """decisions in a minibatch"""
    n_epochs: Unset[Count] = UNSET
    """epochs over the data of a rollout; at least one gradient step"""
    gamma: Unset[Fraction] = UNSET
    """discount factor, per decision. With `group` it holds for `horizon_nodes`"""
    scale_rewards: bool = True
    """divide rewards by their running root mean square; with `group`, normalise advantages by their standard
    deviation"""
    max_batch_rows: Unset[Count] = UNSET
    """at most this many nodes in a minibatch; on large clusters a minibatch then has fewer decisions"""

    @property
    def name(self) -> AgentKind:
        """The name that people know the agent by, which its model files carry."""
        raise NotImplementedError

    @classmethod
    def usual(cls, name: str) -> str:
        """Return in words what holds for a setting that is left unset, by the method of a training."""
        group, rewards = (DEFAULTS[method][cls].get(name) for method in ("group", "rewards"))
        if group is None and rewards is None:
            return ""
        return f"{'the same' if group is None else group} with group, {rewards} with rewards"

    def resolved(self, method: Method) -> Self:
        """Return the agent with every hyperparameter set: those left unset have the method's default."""
        usual = DEFAULTS[method][type(self)]
        return replace(self, **{name: value for name, value in usual.items() if getattr(self, name) is None})


@dataclass(frozen=True)
class Dqn(NetworkAgent):
    """Double dueling DQN: action values, a replay buffer, a chance to explore."""

    buffer_size: Unset[Natural] = UNSET
    """size of the replay buffer, in decisions; with `group` per cluster size, and 0 keeps the last four rounds"""
    n_step: Unset[Natural] = UNSET
    """steps of the n-step return before bootstrapping; 0: the whole episode. With `group` it holds for
    `horizon_nodes`"""
    prioritized: bool = False
    """prioritized experience replay in place of uniform sampling"""
    update_frequency: Count = 16
    """live and by rewards: decisions between two updates"""
    target_update_frequency: Count = 400
    """live and by rewards: decisions between two updates of the target network"""
    init_epsi: Fraction = 0.1
    """live and by rewards: epsilon of the first decision"""
    min_epsi: Fraction = 0.02
    """live and by rewards: final epsilon"""
    epsi_decay: Fraction | None = None
    """factor on epsilon per decision. Default: epsilon is at its minimum after half of the training"""
    use_heuristic: bool = False
    """explore with the choice of a heuristic in place of a random node"""

    @property
    def name(self) -> AgentKind:
        """The name that people know the agent by, which its model files carry."""
        return "gnn" if self.encoder == "gnn" else "dqn"

    def for_steps(self, steps: int) -> Self:
        """Return the agent with a chance to explore that falls to its least in half of so many decisions."""
        return replace(self, epsi_decay=self.decay(steps))

    def decay(self, steps: int = USUAL_STEPS) -> float:
        """Return the factor on the chance to explore, in a training of so many decisions."""
        if self.epsi_decay is not None:
            return self.epsi_decay
        if self.min_epsi >= self.init_epsi:
            return 1.0
        return float(max(self.min_epsi / self.init_epsi, 0.01) ** (2.0 / max(steps, 1)))


@dataclass(frozen=True)
class ActorCritic(NetworkAgent):
    """PPO (A2C at one epoch): an actor, and a critic whose values are the baseline where there is no group."""

    critic_learning_rate: Unset[Positive | None] = UNSET
    """learning rate of the critic. Default: the actor's"""
    gae_lambda: Fraction = 0.9
    """live and by rewards: lambda of generalized advantage estimation"""
    ent_coef: Unset[NotNegative] = UNSET
    """entropy coefficient of the loss"""
    clip_range: Positive = 0.2
    """clipping range of PPO"""
    target_kl: Positive | None = None
    """an update ends early where `approx_kl` of a minibatch is above 1.5 times this. Default: it does not"""
    clip_range_vf: NotNegative = 0.0
    """live and by rewards: clipping range of the value function, in units of scaled rewards; 0: no clipping"""
    segment: Count = 64
    """live and by rewards: longer episodes are cut into segments of this many decisions"""
    update_steps: Count = 1024
    """live and by rewards: decisions in a rollout, made of whole episodes"""

    @property
    def name(self) -> AgentKind:
        """The name that people know the agent by, which its model files carry."""
        return "acgnn" if self.encoder == "gnn" else "acdqn"


_GROUP = {
    "learning_rate": 1e-3, "max_grad_norm": 0.5, "batch_size": 1024, "n_epochs": 4, "gamma": 0.99,
    "max_batch_rows": 262_144,
}  # fmt: skip
# The rewards of most tasks say of each placement what it was worth: a small discount is less noise.
_REWARDS = {"learning_rate": 5e-4, "max_grad_norm": 10.0, "gamma": 0.5, "max_batch_rows": 32_768}
# A live cluster gives thousands of decisions, not hundreds of thousands.
_LIVE = {"learning_rate": 1e-3, "max_grad_norm": 10.0, "batch_size": 200, "n_epochs": 1, "max_batch_rows": 32_768}
DEFAULTS: Mapping[Method, Mapping[type[AgentConfig], Mapping[str, Any]]] = {
    "group": {
        Dqn: {**_GROUP, "buffer_size": 0, "n_step": 0},
        ActorCritic: {**_GROUP, "critic_learning_rate": None, "ent_coef": 1e-3},
    },
    "rewards": {
        Dqn: {**_REWARDS, "batch_size": 128, "n_epochs": 1, "buffer_size": 20_000, "n_step": 3},
        ActorCritic: {**_REWARDS, "batch_size": 256, "n_epochs": 3, "critic_learning_rate": 1e-3, "ent_coef": 0.0},
    },
    "live": {
        Dqn: {**_LIVE, "gamma": 0.99, "buffer_size": 2000, "n_step": 3},
        ActorCritic: {**_LIVE, "gamma": 0.95, "critic_learning_rate": 1e-3, "ent_coef": 0.01},
    },
}
"""What a setting that is left unset takes, by the method of the training and the kind of agent."""


@dataclass(frozen=True)
class GroupConfig(Settings):
    """How groups of episodes with the same arrivals are played and compared (as in GRPO)."""

    group_size: Count = 16
    """group: clusters that see the same arrivals; an advantage is relative to the group's mean"""
    sampled: Share = 0.1
    """group: share of actions that are sampled and learned from; the others are greedy. For a million decisions on one
    cluster size, 0.3 is better for an actor-critic"""
    horizon_nodes: Count = 10
    """group: number of nodes that `gamma` and `n_step` hold for; their horizon grows in proportion to the nodes"""


@dataclass(frozen=True)
class QTable(AgentConfig):
    """Binned Q-table of a few nodes: free memory of each node, a fraction of its size, and the demand of pods."""

    bins: Count = 12
    """bins of the free memory of a node; an empty node has its own bin"""
    demand_bins: Count = 6
    """bins of the request of a pod, as a share of the mean node"""
    takes: Literal["emptiest", "fullest"] | None = None
    """which node of the chosen bin gets the pod. Default: by the reward"""
    gamma: Fraction = 0.3
    """discount factor, per decision"""
    step: Fraction = 0.5
    """learning rate, divided by sqrt(visits)"""
    init_epsi: Fraction = 1.0
    """epsilon of the first decision"""
    min_epsi: Fraction = 0.02
    """final epsilon"""
    epsi_decay: Fraction | None = None
    """factor on epsilon per decision. Default: a twentieth of epsilon is left at the end of the training"""

    @property
    def name(self) -> str:
        """The name that people know the agent by."""
        return "qtable"

    def for_steps(self, steps: int) -> Self:
        """Return the agent with a chance to explore that falls to a twentieth in so many decisions."""
        return replace(self, epsi_decay=self.decay(steps))

    def decay(self, steps: int = USUAL_STEPS) -> float:
        """Return the factor on the chance to explore, in a training of so many decisions."""
        return float(0.05 ** (1.0 / max(steps, 1))) if self.epsi_decay is None else self.epsi_decay


@dataclass(frozen=True)
class Linear(AgentConfig):
    """Linear scorer of nodes, found by the cross-entropy method: generations of scorers judged by the task's metric."""

    population: Count = 40
    """candidates in a generation"""
    elite: Count = 10
    """candidates that the next generation is fitted to"""
    deviation: Positive = 0.5
    """standard deviation of the weights in the first generation"""
    averaging: Fraction = 0.95
    """weight of the past in the running average over generations, which is the result"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elite > self.population:
            raise bad_value("elite", self.elite, f"at most the population, which is {self.population}")

    @property
    def name(self) -> str:
        """The name that people know the agent by."""
        return "linear"


AGENTS: Mapping[str, AgentConfig] = {
    "gnn": Dqn(encoder="gnn"),
    "dqn": Dqn(),
    "acdqn": ActorCritic(),
    "acgnn": ActorCritic(encoder="gnn"),
    "qtable": QTable(),
    "linear": Linear(),
}

_LIVE_DQN = Dqn(
    update_frequency=25, target_update_frequency=50, init_epsi=1.0, min_epsi=0.01, epsi_decay=0.995,
).resolved("live")  # fmt: skip
_LIVE_ACTOR_CRITIC = ActorCritic(gae_lambda=0.95, update_steps=16).resolved("live")
LIVE: Mapping[AgentKind, NetworkAgent] = {
    "dqn": _LIVE_DQN,
    "gnn": replace(_LIVE_DQN, encoder="gnn", buffer_size=1000, update_frequency=20, target_update_frequency=40),
    "acdqn": _LIVE_ACTOR_CRITIC,
    "acgnn": replace(_LIVE_ACTOR_CRITIC, encoder="gnn"),
}
"""The agents as a live scheduler starts with them: the defaults of `rundqn`, `rungnn`, `runacdqn` and `runacgnn`."""


def read_agent(name: str, values: Mapping[str, Any]) -> NetworkAgent:
    """Return the agent of a model file by the name and the settings in its header.

    Raises `UserError` for a name of no agent with a network, and for values that are not taken. Settings that the agent
    does not have are dropped: older headers hold those of both algorithms.
    """
    agent = AGENTS.get(name)
    if not isinstance(agent, NetworkAgent):
        raise bad_value("agent", name, f"one of {', '.join(LIVE)}")
    known = {row.name for row in fields(agent)}
    others = set() if isinstance(agent, ActorCritic) else {"actor_learning_rate", "epochs"}
    named = {_HEADER_NAMES.get(key, key): value for key, value in values.items() if key not in others}
    return changed(agent, {key: value for key, value in named.items() if key in known})
