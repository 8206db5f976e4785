"""What the agents with a network share: a policy, the algorithm that improves it, what it gathers, its files.

The four are an encoder {MLP, GNN} times an algorithm: `aaml.learning.dqn_agent`, `aaml.learning.actor_critic_agent`.
"""

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from aaml.errors import UserError
from aaml.learning.advantages import discounted_returns
from aaml.learning.algorithms.dqn import QLearning
from aaml.learning.algorithms.imitation import Demonstration
from aaml.learning.algorithms.ppo import Ppo
from aaml.learning.buffers import Observations, RewardScale
from aaml.learning.checkpoint import Checkpoint, check_fits, load_checkpoint, part_of, restore, save_checkpoint
from aaml.learning.config import NetworkAgent
from aaml.learning.group_rollouts import RolloutRecorder
from aaml.learning.networks import Network
from aaml.learning.policy import NetworkPolicy
from aaml.learning.storage import Experience
from aaml.scheduling.observation import ObservationSpec
from aaml.scheduling.ports import Policy, Transition
from aaml.scheduling.queue_sort import QueueSort
from aaml.settings import plain


class NeuralAgent(NetworkPolicy, ABC):
    """A policy that learns. `learning` set to False freezes it: it takes its best choice and ignores experience."""

    def __init__(
        self,
        config: NetworkAgent,
        algorithm: Ppo | QLearning,
        *,
        observation_spec: ObservationSpec,
        seed: int,
        guide: Policy | None,
    ) -> None:
        super().__init__(algorithm.acting, observation_spec=observation_spec, seed=seed, guide=guide)
        self.config = config
        self.learning = True
        self.scale = RewardScale()
        """The running scale of rewards."""
        self.decisions = self.updates = 0
        self.reward_sum = 0.0
        self.generator = torch.Generator().manual_seed(seed)
        self._parts = algorithm.parts
        self._networks = [each for each in vars(algorithm).values() if isinstance(each, Network)]

    @property
    def learning(self) -> bool:
        """Whether it explores and learns."""
        return self.exploring

    @learning.setter
    def learning(self, learns: bool) -> None:
        self.exploring = learns

    # ---- learning ----------------------------------------------------------------------------------------------------

    def to(self, device: str) -> None:
        """Move the networks to a device, "cpu" or "cuda", before anything is learned or restored.

        There they learn from batches. A single decision is made on the CPU all the same, by a copy.
        """
        for network in self._networks:
            network.to(device)
        self.moved()

    def observe(self, transition: Transition, stream: int = 0) -> None:
        """Take one step of experience; steps of one `stream` (an environment) follow one another."""
        if self.learning:
            self.count(transition.reward)
            self.gather(transition, stream)

    def count(self, reward: float) -> None:
        """Count one step and its reward, without keeping the step."""
        self.scale.add(reward)
        self.reward_sum += reward
        self.decisions += 1

    @abstractmethod
    def gather(self, transition: Transition, stream: int = 0) -> None:
        """Keep a step until it is learned from, without counting it."""

    @property
    @abstractmethod
    def memory(self) -> int:
        """How many of the latest steps learning goes on from; those before them are of no use any more."""

    @abstractmethod
    def forget(self, old: Callable[[Experience], bool]) -> None:
        """Let go of the oldest experience for as long as it is `old`."""

    @abstractmethod
    def learn(self) -> dict[str, float]:
        """Update if it is time; returns scalars to record, empty when nothing was done."""

    @property
    def n_step(self) -> int:
        """Steps of its n-step return, which group rollouts are recorded for; 0 where it has none."""
        return 0

    @abstractmethod
    def learn_group(
        self, record: RolloutRecorder, gamma: float, left: float, generator: torch.Generator
    ) -> Mapping[str, float]:
        """Learn from a round of group rollouts, when the share `left` of the training is to come.

        Returns scalars to record.
        """

    @abstractmethod
    def forget_groups(self) -> None:
        """Forget the rounds that it keeps, so that what a run goes on from stays small."""

    def flush(self) -> dict[str, float]:
        """Learn from what was gathered and would wait for more; returns scalars to record."""
        return {}

    @abstractmethod
    def cut(self) -> None:
        """Forget steps whose continuation is still awaited, as if every stream ended here."""

    def follow(self, pieces: Sequence[Sequence[Transition]], passes: int) -> float:
        """Learn from trajectories of any policy, each in order, `passes` times; returns the last loss."""
        steps = [step for piece in pieces for step in piece]
        for step in steps:
            self.scale.add(step.reward)
        shown = Demonstration(
            Observations([step.observation for step in steps], self.network.needs_graphs),
            torch.tensor([step.action for step in steps]),
            discounted_returns(pieces, self.config.gamma, self.divisor),
        )
        return self.imitate([shown], passes)

    @abstractmethod
    def imitate(self, shown: Sequence[Demonstration], passes: int) -> float:
        """Learn to choose as was demonstrated, and what it was worth where that is known; returns the last loss."""

    @property
    def divisor(self) -> float:
        """What rewards are divided by."""
        return self.scale.divisor if self.config.scale_rewards else 1.0

    def after_steps(self, hook: Callable[[], None]) -> None:
        """Call `hook` after each step of an optimiser."""
        for _, others in self._parts.values():
            for part in others.values():
                if isinstance(part, torch.optim.Optimizer):
                    part.register_step_post_hook(lambda *_: hook())

    # ---- what it is, in a file or in another process -----------------------------------------------------------------

    def state(self, *, experience: bool = True) -> dict[str, Any]:  # noqa: ARG002  (a DQN has some)
        """Return everything that learning goes on from, the same to the last bit, as tensors and plain values.

        Call `cut` first. Without `experience` what was gathered is left out, which `restore` then leaves as it is.
        """
        parts = {
            name: copy.deepcopy({key: part.state_dict() for key, part in {"model": network, **others}.items()})
            for name, (network, others) in self._parts.items()
        }
        rng = json.dumps(self.rng.bit_generator.state)
        return {"parts": parts, "fields": self._fields(), "rng": rng, "generator": self.generator.get_state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; the agent must have been made with the same settings."""
        self.take_parts(state)
        self._take_fields(state["fields"])
        self.rng.bit_generator.state = json.loads(state["rng"])
        self.generator.set_state(state["generator"])

    def take_parts(self, state: Mapping[str, Any]) -> None:
        """Take networks and optimisers out of what `state` returned, and leave counters and experience as they are."""
        for name, (network, others) in self._parts.items():
            for key, part in {"model": network, **others}.items():
                part.load_state_dict(state["parts"][name][key])

    def save(self, directory: str, stem: str) -> Sequence[str]:
        """Write the model files, each whole or not at all, and return their paths."""
        paths = []
        for name, (network, others) in self._parts.items():
            path = Path(directory) / f"{name}_{stem}.pth"
            states = {"model": network.state_dict()} | {key: part.state_dict() for key, part in others.items()}
            save_checkpoint(path, Checkpoint(self.name, network.spec, self.observation_spec, self._fields(), states))
            paths.append(str(path))
        return paths

    def load(self, path: Path) -> None:
        """Go on from a model's files, either of an actor and its critic; raises UserError for files that do not fit."""
        for name, (network, others) in self._parts.items():
            file = part_of(path, name, self._parts)
            checkpoint = load_checkpoint(file)
            check_fits(file, checkpoint, self.name, network.spec)
            try:
                states = checkpoint.states
                restore(file, network, states["model"])
                for key, part in others.items():  # a network of the algorithm's own may begin as the one that acts
                    restore(file, part, states.get(key, states["model"]) if isinstance(part, Network) else states[key])
                self._take_fields(checkpoint.fields)
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"model {file}: its header is damaged ({error})") from error

    def _fields(self) -> dict[str, Any]:
        return {
            "config": plain(self.config),
            "decisions": self.decisions,
            "updates": self.updates,
            "reward_sum": self.reward_sum,
            "reward_scale": [self.scale.count, self.scale.square_sum],
            "queue_sort": None if self.queue_sort is None else self.queue_sort.numbers(),
        }

    def _take_fields(self, fields: Mapping[str, Any]) -> None:
        self.decisions, self.updates = int(fields["decisions"]), int(fields["updates"])
        self.reward_sum = float(fields["reward_sum"])
        self.scale.count, self.scale.square_sum = map(float, fields["reward_scale"])
        sort = fields.get("queue_sort")
        self.queue_sort = None if sort is None else QueueSort.of(sort)
