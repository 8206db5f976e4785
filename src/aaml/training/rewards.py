"""Learning one decision at a time from streams of simulated episodes: by their rewards, or what an expert chooses."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from aaml.learning.agent import NeuralAgent
from aaml.learning.agents import agreement, first_agent
from aaml.learning.policy import single_threaded
from aaml.learning.storage import Experience, pack, unpack
from aaml.scheduling.curves import AGREED_AFTER, AGREED_BEFORE, VALUE_LOSS
from aaml.scheduling.ports import RunWriter, Transition
from aaml.training.collectors import Collector
from aaml.training.learner import Learner, Stop
from aaml.training.rollouts import EnvFactory, demonstrate
from aaml.training.settings import TrainConfig

_SHOWN = 500  # decisions that an agreement is measured on


class Apprentice:
    """An agent that learns what an expert chooses, not what its own choices lead to.

    Anthony, Tian, Barber: Thinking Fast and Slow with Deep Learning and Tree Search (2017). The expert searches ahead
    from the apprentice's policy (`aaml.sim.search`); `flush` distils all that it has chosen so far into the network.
    """

    def __init__(self, agent: NeuralAgent, passes: int) -> None:
        self.agent = agent
        self._passes = passes
        self._pieces: list[list[Transition]] = []
        self._open: dict[int, list[Transition]] = {}
        self._new: list[Transition] = []

    def observe(self, transition: Transition, stream: int = 0) -> None:
        """Keep one step of the expert."""
        self._new.append(transition)
        if stream not in self._open:
            self._open[stream] = []
            self._pieces.append(self._open[stream])
        self._open[stream].append(transition)
        if transition.terminated or transition.truncated:
            del self._open[stream]

    def learn(self) -> Mapping[str, float]:
        """Return nothing: `flush` learns."""
        return {}

    def flush(self) -> Mapping[str, float]:
        """Learn all of the expert's choices; returns the loss and how many of the latest were the agent's already."""
        if not self._new:
            return {}
        policy, latest = self.agent, self._new[-_SHOWN:]
        before = agreement(policy, latest)
        loss = self.agent.follow(self._pieces, self._passes)
        self._new = []
        return {VALUE_LOSS: loss, AGREED_BEFORE: before, AGREED_AFTER: agreement(policy, latest)}

    def cut(self) -> None:
        """End every trajectory here."""
        self._open.clear()
        self.agent.cut()

    def state(self) -> dict[str, Any]:
        """Return what learning goes on from; call `flush` and `cut` first."""
        steps = [_packed(step) for step in chain.from_iterable(self._pieces)]
        return {**self.agent.state(), "expert": pack(steps), "lengths": [len(piece) for piece in self._pieces]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.agent.restore(state)
        steps = iter(unpack(state["expert"]))
        self._pieces = [[_transition(next(steps)) for _ in range(length)] for length in state["lengths"]]


class RewardsLearner(Learner):
    """One of the four agents, learning from streams."""

    def __init__(self, config: TrainConfig, factory: EnvFactory, writer: RunWriter, streams: Collector) -> None:
        single_threaded()
        self.policy: NeuralAgent = first_agent(
            config.network, config.begins_with, observation_spec=factory.observation_spec, seed=config.seed
        )
        self.policy.queue_sort = factory.queue_sort
        self._taught = self.policy if config.expert is None else Apprentice(self.policy, config.teacher_passes)
        self._config, self._factory, self._writer, self._streams = config, factory, writer, streams
        # An expert thinks long about each decision: fewer at a time, so that a Ctrl-C is heard.
        self._chunk = config.chunk if config.expert is None else 1

    def begin(self) -> bool:
        """Imitate the teacher, if there is one. What imitates, or goes on from a file, is a model already."""
        config = self._config
        if not config.imitates:
            return config.start is not None
        pieces = demonstrate(self._factory, config.teacher_name, config.seed, config.teacher_steps)
        loss = self.policy.follow(pieces, config.teacher_passes)
        shown = [step for piece in pieces for step in piece][-_SHOWN:]
        facts = {"teacher": config.teacher_name, "loss": loss, "agreement": agreement(self.policy, shown)}
        self._writer.event("warm start", facts)
        return True

    def round(self, step: int, stop: Stop) -> int:  # noqa: ARG002  (a round is over in a moment)
        """Let every stream make some decisions, and learn from them."""
        made = 0
        for stream, taken in self._streams.collect(self.policy.weights(), self._chunk):
            self._taught.observe(taken, stream)
            for name, value in self._taught.learn().items():
                self._writer.scalar(name, value, step + made)
            made += 1
        return made

    def settle(self) -> Mapping[str, float]:
        """Learn from what waits, and forget steps whose continuation is awaited."""
        scalars = self._taught.flush()
        self._streams.cut()
        self._taught.cut()
        return scalars

    def state(self) -> dict[str, Any]:
        """Return what learning goes on from."""
        return {"agent": self._taught.state(), "streams": self._streams.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._taught.restore(state["agent"])
        self._streams.restore(state["streams"])


def _packed(step: Transition) -> Experience:
    return Experience(step.observation, step.action, step.reward, float(not step.terminated), step.next_observation)


def _transition(item: Experience) -> Transition:
    terminated = item.discount == 0.0
    truncated = item.next_observation is None and not terminated
    return Transition(item.observation, item.action, item.reward, item.next_observation, terminated, truncated)
