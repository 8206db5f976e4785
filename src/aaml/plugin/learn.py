"""An agent that learns from what the plugin inside kube-scheduler decides, and gives the plugin new weights."""

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from aaml.errors import UserError
from aaml.live.agents import AgentRun
from aaml.live.settings import Folders
from aaml.plugin.messages import Explore
from aaml.plugin.settings import LearnSettings
from aaml.plugin.weights import write_weights
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.ports import Decision, Observer

if TYPE_CHECKING:
    from aaml.learning.agent import NeuralAgent
    from aaml.live.scheduler_replica import SchedulerReplica
    from aaml.plugin.cluster import PluginCluster
    from aaml.scheduling.loop import Episodes
    from aaml.scheduling.observation import Context, ObservationSpec
    from aaml.scheduling.play import Stats
    from aaml.scheduling.ports import Agent, Cluster, Outcome, Policy, Transition

_LOG = logging.getLogger("aaml")
_WRITE_EVERY_S = 1.0  # as often as the plugin looks
_STRANGE_S = 60.0  # for so long the plugin may decide by weights of somebody else
_FILES_KNOWN = 16


class LearnRun(AgentRun):
    """An agent that learns while kube-scheduler schedules: `run()` until `stop()`, from this or another thread.

    `cluster` hears from the plugin, and stays open. `begins` is called in the thread that learns once all is ready.
    The model is kept beside the weights file, too (`Actor_acdqn_weights.pth` and `Critic_acdqn_weights.pth` beside
    `weights.json`). A new start goes on from there as long as that file is there.
    Raises `UserError` for a weights file that is there while no model is named or kept, as what decides would forget
    all that it knows.
    """

    def __init__(
        self,
        settings: LearnSettings,
        cluster: "PluginCluster",
        *,
        folders: Folders = Folders(),  # noqa: B008  (frozen)
        begins: "Callable[[], object]" = lambda: None,
    ) -> None:
        kept = _kept(settings)
        if kept:
            settings = replace(settings, model=kept[0])
        elif settings.model is None and settings.weights.exists():
            raise UserError(
                f"model: none, and {settings.weights} is there; expected the model that the plugin was exported from, "
                "or a weights file that is not there yet, to begin from nothing"
            )
        super().__init__(settings.as_scheduler(), cluster=cluster, folders=folders)
        self._plugin, self._weights, self._begins = cluster, settings.weights, begins
        self._from = f"goes on from {kept[0]}, which an earlier start kept, and " if kept else ""

    def save_model(self) -> tuple[str, ...]:
        """Write the model to models/ and beside the weights, whole or not at all, and return the former's paths."""
        saved = super().save_model()
        self.agent.save(str(self._weights.parent), f"{self.kind}_{self._weights.stem}")
        return saved

    def run(self, max_decisions: int | None = None) -> "Stats":
        """Write the agent's weights for the plugin, then learn until `stop` or so many decisions.

        Raises `UserError` for an agent that cannot decide inside kube-scheduler.
        """
        write_weights(self.agent, self._weights)
        stats = super().run(max_decisions)
        if self._plugin.lost:
            _LOG.info(
                "%d choices were not sent: the learner was slower than kube-scheduler, or away", self._plugin.lost
            )
        return stats

    def _does(self, cluster: "Cluster") -> str:
        del cluster
        return f"{self._from}learns from the choices that come by {self._plugin.where}, weights go to {self._weights}"

    def _episodes(self, cluster: "Cluster") -> "Episodes":
        del cluster
        return self._plugin.ending

    def _guarded(self, policy: "Policy", replica: "SchedulerReplica", cluster: "Cluster") -> "Policy":
        """Return the plugin's choices, from which the policy learns: the plugin guards itself."""
        del cluster
        replica.decided_by(policy.name)
        self._begins()
        _LOG.info("ready: choices are taken in from now on")
        return PluginPolicy(cast("Agent", policy), self._plugin)

    def _observers(self, cluster: "Cluster", log: Path | None) -> "Iterator[Observer]":
        yield from super()._observers(cluster, log)
        yield Feedback(self.agent, self._plugin, self._weights)


class PluginPolicy:
    """The plugin's choices as those of the agent that learns from them."""

    learning = True

    def __init__(self, agent: "Agent", cluster: "PluginCluster") -> None:
        self._agent, self._cluster = agent, cluster

    @property
    def name(self) -> str:
        """The agent's name."""
        return self._agent.name

    @property
    def observation_spec(self) -> "ObservationSpec":
        """What the agent observes."""
        return spec_of(self._agent)

    def act(self, context: "Context") -> Decision:
        """Return what the plugin chose."""
        del context
        return self._cluster.decision

    def observation_of(self, context: "Context") -> Any:
        """Return what the agent keeps of a context."""
        return self._agent.observation_of(context)

    def observe(self, transition: "Transition") -> None:
        """Give the agent a step."""
        self._agent.observe(transition)

    def learn(self) -> Mapping[str, float]:
        """Let the agent update; returns its scalars."""
        return self._agent.learn()

    def save(self, directory: str, stem: str) -> Sequence[str]:
        """Write the agent's model."""
        return self._agent.save(directory, stem)


class Feedback(Observer):
    """Gives the plugin what the agent has learned: weights by their file, and how much to explore by the socket."""

    def __init__(self, agent: "NeuralAgent", cluster: "PluginCluster", weights: Path) -> None:
        self._agent, self._cluster, self._file = agent, cluster, weights
        self._written: deque[str] = deque([_digest(weights)], maxlen=_FILES_KNOWN)
        self._new = False
        self._next_s = 0.0
        self._strange_since_s: float | None = None

    def on_turn(self) -> None:
        """Write new weights and send how to explore, once a second at most."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _WRITE_EVERY_S
        policy = self._agent
        self._cluster.explore(Explore(policy.explores_by, policy.chance))
        if self._new:
            self._write()

    def on_decision(self, context: "Context", decision: Decision, outcome: "Outcome") -> None:
        """Warn where the plugin reads another file."""
        del context, decision, outcome
        if not self._cluster.weights or self._cluster.weights in self._written:
            self._strange_since_s = None
        elif self._strange_since_s is None:
            self._strange_since_s = time.monotonic()
        elif time.monotonic() - self._strange_since_s > _STRANGE_S:
            self._strange_since_s = time.monotonic()
            _LOG.warning("the plugin decides by other weights than those of %s: is that its weightsFile?", self._file)

    def on_learned(self, scalars: Mapping[str, float], decisions: int) -> None:
        """Note that there are new weights."""
        del scalars, decisions
        self._new = True

    def close(self) -> None:
        """Write the last weights."""
        if self._new:
            self._write()

    def _write(self) -> None:
        self._new = False
        try:
            write_weights(self._agent, self._file)
        except UserError as error:  # a full disk may be emptied
            self._new = True
            _LOG.warning("%s; trying again in %g s", error, _WRITE_EVERY_S)
        else:
            self._written.append(_digest(self._file))


def _kept(settings: LearnSettings) -> list[Path]:
    """Return the files of the model that an earlier start kept beside the weights; none where these are not there."""
    weights = settings.weights
    return sorted(weights.parent.glob(f"*_{settings.agent.name}_{weights.stem}.pth")) if weights.exists() else []


def _digest(weights: Path) -> str:
    """Return the SHA-256 of a weights file as the plugin takes it, which leaves out the space around what it holds."""
    return hashlib.sha256(weights.read_bytes().strip()).hexdigest()
