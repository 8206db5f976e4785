"""Schedulers that learn while they bind, as objects for notebooks and commands."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from aaml.learning.config import LIVE, AgentKind
from aaml.live.run import Origin, SchedulerRun
from aaml.live.settings import Folders, LearnerSettings, SchedulerSettings
from aaml.settings import changed, plain

if TYPE_CHECKING:
    import pandas as pd

    from aaml.learning.agent import Agent
    from aaml.live.duty import Duty
    from aaml.live.learner import AsynchronousLearner
    from aaml.scheduling.ports import Cluster, Observer, Policy
    from aaml.telemetry.writers import Scalar


class AgentRun(SchedulerRun):
    """A run of one of the four agents, which keeps its model: while it works, and when it ends."""

    def __init__(
        self,
        settings: LearnerSettings,
        *,
        cluster: "Cluster | None" = None,
        folders: Folders = Folders(),  # noqa: B008  (frozen)
    ) -> None:
        origin: Origin = "new" if settings.model is None else "model"
        super().__init__(self._make_agent, settings, cluster=cluster, folders=folders, origin=origin)
        self.kind, self.learner = settings.agent.name, settings
        self.saved: tuple[str, ...] = ()
        self.apart: AsynchronousLearner | None = None
        """The learner in a process of its own, which a live cluster gets."""

    @property
    def agent(self) -> "Agent":
        """The agent, made at first use; it lives on from run to run."""
        return cast("Agent", self.policy)

    @property
    def parameters(self) -> "Mapping[str, Scalar]":
        """The agent's settings, the reward and the seed."""
        return {**plain(self.learner.agent), "reward": self.settings.reward, "seed": self.settings.seed}

    @property
    def models(self) -> "Sequence[Path]":
        """The model file that the run went on from, and those that it left."""
        begun = [] if self.learner.model is None else [self.learner.model]
        return [*begun, *map(Path, self.saved)]

    def _usual(self) -> SchedulerSettings:
        return LearnerSettings(agent=LIVE[self.kind])

    def load_model(self, path: Path | str) -> None:
        """Go on from a model file (of an actor and its critic either one); raises `UserError` when it does not fit."""
        self.policy, self.origin, self.apart = self._load(path), "model", None

    def save_model(self) -> tuple[str, ...]:
        """Write the model to models/, whole or not at all, and return the paths."""
        from aaml.telemetry.console import LOG, stamp

        name = self.run_name or f"{self.kind}_{self.settings.tensorboard_name or stamp()}"
        # A file DQN_Model_* or GNN_Model_* says of which agent it is; Actor_* and Critic_* are of two.
        stem = name.removeprefix(f"{self.kind}_") if self.kind in {"dqn", "gnn"} else name
        if self.apart is not None:
            self.apart.sync()
        self.saved = tuple(self.agent.save(str(self.folders.models), stem))
        LOG.info("model saved: %s", ", ".join(self.saved))
        return self.saved

    def populate_replay(self, recording: "pd.DataFrame | Path | str") -> int:
        """Fill the replay buffer from a recording (data/sched_*.csv, a file or a table); returns the steps added."""
        from aaml.live.experience import fill_replay

        self.apart = None
        return fill_replay(self.agent, recording)

    def _make_agent(self) -> "Agent":
        from aaml.learning.agent import make_agent

        if self.learner.model is not None:
            return self._load(self.learner.model)
        return make_agent(self.learner.agent, seed=self.settings.seed, learn=not self.learner.no_learn)

    def _load(self, path: Path | str) -> "Agent":
        from aaml.evaluation.policies import model_file
        from aaml.learning.agent import load_agent

        learn = not self.learner.no_learn
        return load_agent(model_file(Path(path)), self.learner.agent, seed=self.settings.seed, learn=learn)

    @contextmanager
    def _ahead(self) -> "Iterator[None]":
        """Start the learner: one who stands by keeps it ready."""
        from aaml.live.learner import AsynchronousLearner, waits

        if self.learner.no_learn or (self._given is not None and waits(self._given)):
            yield
            return
        if self.apart is None:
            self.apart = AsynchronousLearner(self.agent, self._stop.is_set)
        self.apart.start()
        try:
            yield
        finally:
            self.apart.stop()

    @contextmanager
    def _at_work(self, duty: "Duty") -> "Iterator[Policy]":
        """Yield the agent, which on a live cluster learns in a process of its own."""
        if self.apart is None:
            yield self.agent
            return
        duty.follow(self.apart)
        with self.apart as apart:
            yield apart

    def _observers(self, cluster: "Cluster", log: Path | None) -> "Iterator[Observer]":
        yield from super()._observers(cluster, log)
        if self.learner.save_every_s and not self.learner.no_learn:
            from aaml.live.observers.autosave import Autosave

            yield Autosave(self.save_model, self.learner.save_every_s)

    def _end(self) -> None:
        if not self.learner.no_learn:
            self.save_model()


class _ByKeywords(AgentRun):
    """An agent at work, told everything by keywords: `run()` until `stop()`, from this or another thread.

    Parameters
    ----------
    scheduler_name:
        Pods with this `schedulerName` are placed (custom-scheduler) or, in a dry run, watched (default-scheduler).
    cluster:
        An in-process cluster (`aaml.live.in_process.in_process_cluster`); None takes the one of the kubeconfig.
    learn:
        False takes the best choice and never updates.
    progress_indication:
        Show a bar.
    folders:
        Where curves, models and logs go.
    settings:
        Any setting of `aaml.live.settings.LearnerSettings` (`tensorboard_name`, `model`, `dry_run`, `namespaces`, ...)
        and of the agent (`aaml.learning.config`: `hidden_layers`, a width, `gamma`, `learning_rate`, ...).
    """

    which: ClassVar[AgentKind]

    def __init__(
        self,
        scheduler_name: str = "",
        *,
        cluster: "Cluster | None" = None,
        learn: bool = True,
        progress_indication: bool = False,
        folders: Folders = Folders(),  # noqa: B008  (frozen)
        **settings: Any,
    ) -> None:
        told = LearnerSettings(
            agent=LIVE[self.which], scheduler_name=scheduler_name, progress=progress_indication, no_learn=not learn
        )
        super().__init__(changed(told, settings), cluster=cluster, folders=folders)


class CustomSchedulerDQN(_ByKeywords):
    """DQN over an MLP: epsilon-greedy over feasible nodes, replay, target network."""

    which = "dqn"


class CustomSchedulerGNN(_ByKeywords):
    """DQN over a graph network: a star with the control plane in the middle."""

    which = "gnn"


class ActorCriticDQN(_ByKeywords):
    """Actor-critic over MLPs; a deployment is an episode."""

    which = "acdqn"


class ActorCriticGNN(_ByKeywords):
    """Actor-critic over graph networks."""

    which = "acgnn"


SCHEDULERS: Mapping[AgentKind, type[_ByKeywords]] = {
    each.which: each for each in (CustomSchedulerDQN, CustomSchedulerGNN, ActorCriticDQN, ActorCriticGNN)
}
