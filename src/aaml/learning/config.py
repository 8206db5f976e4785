"""Agents as values: which kind of agent, with all its settings. The defaults are those of a training in the simulator.

    Dqn(encoder="gnn", learning_rate=3e-4)

The four agents with a network are an encoder {MLP, GNN} times a learner {DQN, actor-critic}; people know them and the
two without by the names in `AGENTS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from aaml.errors import bad_value
from aaml.settings import Count, Fraction, Named, Natural, NotNegative, Positive, Settings, Share, changed, fields

AgentKind = Literal["dqn", "gnn", "acdqn", "acgnn"]
EncoderKind = Literal["mlp", "gnn"]
OptimizerName = Literal["Adam", "AdamW", "RMSprop", "SGD"]
USUAL_STEPS = 60_000


class AgentConfig(Named):
    """Everything an agent is built from. Counts are of decisions where nothing else is said."""

    @classmethod
    def names(cls) -> Mapping[str, "AgentConfig"]:
        """Return the agents that people choose from."""
        return AGENTS

    def for_steps(self, steps: int) -> Self:
        """Return the agent for a training of so many decisions: what was left open is chosen by its length."""
        del steps
        return self


@dataclass(frozen=True)
class NetworkAgent(AgentConfig):
    """What the four agents with a network share. Their default discount is small, for less noise.

    The rewards of most tasks say of each placement what it was worth.
    """

    implied: ClassVar[tuple[str, ...]] = ("encoder",)

    encoder: EncoderKind = "mlp"
    """what reads the cluster: every node by itself (mlp), or the nodes as a graph (gnn)"""
    hidden_layers: Count = 32
    """width of every hidden layer"""
    gamma: Fraction = 0.5
    """discount of a reward one decision later"""
    optimizer: OptimizerName = "Adam"
    """how gradients become steps"""
    max_gradient_norm: Positive = 10.0
    """gradients are scaled down to this norm"""
    scale_rewards: bool = True
    """divide rewards by their running root mean square, so that learning rates fit any reward"""
    max_batch_rows: Count = 32_768
    """an update reads at most this many nodes in all: on large clusters it takes less experience at a time"""

    @property
    def name(self) -> AgentKind:
        """The name that people know the agent by, which its model files carry."""
        raise NotImplementedError


@dataclass(frozen=True)
class Dqn(NetworkAgent):
    """Double dueling DQN: action values, a replay buffer, a chance to explore."""

    learning_rate: Positive = 5e-4
    """step size of the optimiser"""
    replay_buffer_size: Count = 20_000
    """steps of experience kept"""
    batch_size: Count = 128
    """experience per update"""
    update_frequency: Count = 16
    """decisions between updates"""
    target_update_frequency: Count = 400
    """decisions between copies of the network to the target network"""
    n_step: Count = 3
    """rewards summed before the bootstrap"""
    prioritized: bool = False
    """sample experience by its error instead of uniformly; among copies too"""
    init_epsi: Fraction = 0.1
    """chance to explore at the first decision"""
    min_epsi: Fraction = 0.02
    """chance to explore in the end"""
    epsi_decay: Fraction | None = None
    """factor on the chance to explore, a decision; without it the least is reached in half of the training"""
    use_heuristic: bool = False
    """explore by a heuristic's choice instead of a random one"""

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
    """Actor-critic with generalised advantages: A2C at one pass over the gathered decisions, PPO at several."""

    actor_learning_rate: Positive = 5e-4
    """step size of the actor"""
    critic_learning_rate: Positive = 1e-3
    """step size of the critic"""
    batch_size: Count = 256
    """decisions per step of the optimisers"""
    gae_lambda: Fraction = 0.9
    """weight of longer returns in the advantage"""
    entropy_weight: NotNegative = 0.0
    """reward for keeping the policy open, in nats"""
    segment: Count = 64
    """an episode that lasts longer is learned from in pieces of this many decisions"""
    update_steps: Count = 1024
    """decisions of whole episodes gathered before an update"""
    clip: Positive = 0.2
    """how far an update may move the policy (PPO)"""
    value_clip: NotNegative = 0.0
    """how far an update may move the critic's values, in units of the reward scale; 0: as far as it will"""
    epochs: Count = 3
    """passes over the gathered decisions; 1 is A2C"""

    @property
    def name(self) -> AgentKind:
        """The name that people know the agent by, which its model files carry."""
        return "acgnn" if self.encoder == "gnn" else "acdqn"


@dataclass(frozen=True)
class CopiesConfig(Settings):
    """How the agents with a network learn from copies of the same episodes in lockstep (`aaml.learning.copies`)."""

    agents: ClassVar[frozenset[str]] = frozenset(
        {"hidden_layers", "optimizer", "max_gradient_norm", "clip", "prioritized"}
    )
    """the settings of agents that count here too; all others count where they learn otherwise, live for one"""
    particular: ClassVar[Mapping[str, type[NetworkAgent]]] = {
        "bootstrap": Dqn, "remembered": Dqn, "openness": ActorCritic,
    }  # fmt: skip
    """the settings here that count for one kind of agent alone"""

    copies: Count = 16
    """copies: clusters that see the same arrivals and are compared with one another"""
    explore: Share = 0.1
    """copies: share of choices that are drawn, and learned from; the others are the agent's best. On one size and for
    a million decisions an actor-critic learns more with 0.3"""
    reach: Count = 100
    """copies: a choice is credited with about so many decisions on ten nodes, and in proportion on others"""
    bootstrap: Natural = 0
    """copies, DQN: decisions on ten nodes after which the network's own estimate stands for what follows; 0: never"""
    remembered: Count = 4
    """copies, DQN: rounds of each cluster size kept to learn from"""
    minibatch: Count = 1024
    """copies: decisions per step of the optimisers"""
    passes: Count = 4
    """copies: passes over what a round gave"""
    rate: Positive = 1e-3
    """copies: step size of the optimisers at the start; it falls to nothing at the end of the training"""
    gradient_norm: Positive = 0.5
    """copies: gradients are scaled down to this norm"""
    openness: NotNegative = 1e-3
    """copies, actor-critic: reward for keeping the policy open, in nats"""

    def read_by(self, agent: NetworkAgent) -> frozenset[str]:
        """Return the settings that count where `agent` learns from copies: of these and of its own."""
        mine = {row.name for row in fields(self) if isinstance(agent, self.particular.get(row.name, NetworkAgent))}
        return frozenset(mine | self.agents & {row.name for row in fields(agent)})


@dataclass(frozen=True)
class QTable(AgentConfig):
    """Binned Q-table of a few nodes: free memory of each node, a fraction of its size, and the demand of pods."""

    bins: Count = 12
    """bins of a node's free memory; a node whose memory is all free has one of its own"""
    demand_bins: Count = 6
    """bins of a pod's request, as a share of the mean node"""
    takes: Literal["emptiest", "fullest"] | None = None
    """which node of the chosen bin takes the pod; without it the one that the reward asks for"""
    gamma: Fraction = 0.3
    """discount of a reward one decision later"""
    step: Fraction = 0.5
    """step size, which falls with 1 / sqrt(visits)"""
    init_epsi: Fraction = 1.0
    """chance to explore at the first decision"""
    min_epsi: Fraction = 0.02
    """chance to explore in the end"""
    epsi_decay: Fraction | None = None
    """factor on the chance to explore, a decision; without it a twentieth is left at the end of the training"""

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
    """scorers of a generation"""
    elite: Count = 10
    """the best of them, which the next generation is drawn around"""
    deviation: Positive = 0.5
    """standard deviation of the first generation's weights"""
    averaging: Fraction = 0.95
    """share of the scorer that a generation leaves as it was: it is the running average of the generations' means"""

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

# A live cluster gives thousands of decisions, not hundreds of thousands: less memory, more exploration at first.
_LIVE_DQN = Dqn(
    gamma=0.99, learning_rate=0.001, replay_buffer_size=2000, batch_size=200, update_frequency=25,
    target_update_frequency=50, init_epsi=1.0, min_epsi=0.01, epsi_decay=0.995,
)  # fmt: skip
_LIVE_ACTOR_CRITIC = ActorCritic(
    gamma=0.95, actor_learning_rate=0.001, batch_size=200, gae_lambda=0.95, entropy_weight=0.01, update_steps=16,
    epochs=1,
)  # fmt: skip
LIVE: Mapping[AgentKind, NetworkAgent] = {
    "dqn": _LIVE_DQN,
    "gnn": replace(_LIVE_DQN, encoder="gnn", replay_buffer_size=1000, update_frequency=20, target_update_frequency=40),
    "acdqn": _LIVE_ACTOR_CRITIC,
    "acgnn": replace(_LIVE_ACTOR_CRITIC, encoder="gnn"),
}
"""The agents as a live scheduler starts with them: the defaults of `rundqn`, `rungnn`, `runacdqn` and `runacgnn`."""


def read_agent(name: str, values: Mapping[str, Any]) -> NetworkAgent:
    """Return the agent of a model file by the name and the settings in its header.

    Raises `UserError` for a name of no agent with a network, and for values that are not taken. Headers written before
    agents were values hold the settings of both learners: those of the other one are dropped.
    """
    agent = AGENTS.get(name)
    if not isinstance(agent, NetworkAgent):
        raise bad_value("agent", name, f"one of {', '.join(LIVE)}")
    known = {row.name for row in fields(agent)}
    values = {"segment" if key == "horizon" else key: value for key, value in values.items()}
    return changed(agent, {key: value for key, value in values.items() if key in known})
