"""The settings of the four agents, with the defaults of their commands."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from aaml.errors import bad_value

AgentKind = Literal["dqn", "gnn", "acdqn", "acgnn"]
OptimizerName = Literal["Adam", "AdamW", "RMSprop", "SGD"]
AGENT_KINDS: tuple[AgentKind, ...] = get_args(AgentKind)


@dataclass(frozen=True)
class AgentConfig:
    """Everything an agent is built from; the first group is common, then DQN's, then actor-critic's.

    Counts of decisions where nothing else is said. `hidden_layers` is a width, after the commands' flag of that name.
    """

    hidden_layers: int = 32
    """width of every hidden layer"""
    gamma: float = 0.99
    """discount of a reward one decision later"""
    optimizer: OptimizerName = "Adam"
    """Adam, AdamW, RMSprop or SGD"""
    max_gradient_norm: float = 10.0
    """gradients are scaled down to this norm"""
    scale_rewards: bool = True
    """divide rewards by their running root mean square, so that learning rates fit any reward"""

    learning_rate: float = 0.001
    """step size of the optimiser (DQN)"""
    replay_buffer_size: int = 2000
    """steps of experience kept"""
    batch_size: int = 200
    """experience per update"""
    max_batch_rows: int = 32_768
    """an update reads at most this many nodes in all: on large clusters it takes less experience at a time"""
    update_frequency: int = 25
    """decisions between updates"""
    target_update_frequency: int = 50
    """decisions between copies of the network to the target network"""
    n_step: int = 3
    """rewards summed before the bootstrap"""
    prioritized: bool = False
    """sample experience by its error instead of uniformly"""
    init_epsi: float = 1.0
    """chance to explore at the first decision"""
    min_epsi: float = 0.01
    """chance to explore in the end"""
    epsi_decay: float = 0.995
    """factor on the chance to explore, a decision"""
    use_heuristic: bool = False
    """explore by a heuristic's choice instead of a random one"""

    actor_learning_rate: float = 0.001
    """step size of the actor"""
    critic_learning_rate: float = 0.001
    """step size of the critic"""
    gae_lambda: float = 0.95
    """weight of longer returns in the advantage"""
    entropy_weight: float = 0.01
    """reward for keeping the policy open, in nats"""
    horizon: int = 64
    """an episode that lasts longer is learned from in pieces of this many decisions"""
    update_steps: int = 16
    """decisions of whole episodes gathered before an update"""
    clip: float = 0.2
    """how far an update may move the policy (PPO)"""
    epochs: int = 1
    """passes over the gathered decisions; 1 is A2C"""

    def __post_init__(self) -> None:
        counts = (
            "hidden_layers", "replay_buffer_size", "batch_size", "max_batch_rows", "update_frequency",
            "target_update_frequency", "n_step", "horizon", "update_steps", "epochs",
        )  # fmt: skip
        for name in counts:
            if getattr(self, name) < 1:
                raise bad_value(name, getattr(self, name), "a whole number of at least 1")
        for name in ("gamma", "init_epsi", "min_epsi", "epsi_decay", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise bad_value(name, getattr(self, name), "a number between 0 and 1")
        for name in ("learning_rate", "actor_learning_rate", "critic_learning_rate", "max_gradient_norm", "clip"):
            if not getattr(self, name) > 0.0:
                raise bad_value(name, getattr(self, name), "a number above 0")
        if self.optimizer not in get_args(OptimizerName):
            raise bad_value("optimizer", self.optimizer, ", ".join(get_args(OptimizerName)))


def default_config(kind: AgentKind) -> AgentConfig:
    """Return the defaults of `rundqn`, `rungnn`, `runacdqn` or `runacgnn`."""
    if kind not in AGENT_KINDS:
        raise bad_value("agent", kind, ", ".join(AGENT_KINDS))
    if kind == "gnn":
        return replace(AgentConfig(), replay_buffer_size=1000, update_frequency=20, target_update_frequency=40)
    if kind in {"acdqn", "acgnn"}:
        return replace(AgentConfig(), gamma=0.95)
    return AgentConfig()
