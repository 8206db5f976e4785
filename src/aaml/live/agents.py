"""Schedulers that learn while they bind, as objects for notebooks and commands."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from aaml.errors import bad_value
from aaml.evaluation.zoo import model_file
from aaml.extras import lazily
from aaml.learning.config import LIVE, AgentKind
from aaml.live.run import SchedulerRun
from aaml.live.session import LearnerSession, PolicySession
from aaml.live.settings import Folders, LearnerSettings
from aaml.live.source import PolicySource
from aaml.settings import changed, plain
from aaml.telemetry.console import LOG, stamp

if TYPE_CHECKING:
    import pandas as pd

    from aaml.learning import agents
    from aaml.learning import policy as policies
    from aaml.learning.agent import NeuralAgent
    from aaml.learning.policy import NetworkPolicy
    from aaml.live import experience, learner
    from aaml.scheduling.ports import Cluster, Policy
else:  # torch: a run that is only put together does without
    agents, policies = map(lazily, ("aaml.learning.agents", "aaml.learning.policy"))
    experience, learner = map(lazily, ("aaml.live.experience", "aaml.live.learner"))


def agent_source(settings: LearnerSettings, model: Path | None) -> PolicySource:
    """Return where an agent comes from: the model that it goes on from, or its settings alone where that is None."""

    def make() -> "NeuralAgent | NetworkPolicy":
        seed, file = settings.seed, None if model is None else model_file(model)
        if settings.no_learn:  # who only acts needs no optimiser and no experience
            if file is None:
                return policies.new_policy(settings.agent, seed=seed)
            return policies.load_network_policy(file, settings.agent, seed=seed)
        if file is None:
            return agents.make_agent(settings.agent, seed=seed)
        return agents.load_agent(file, settings.agent, seed=seed)

    parameters = {name: value for name, value in plain(settings.agent).items() if value is not None}
    if model is None:
        return PolicySource(make, "new", parameters=parameters)
    return PolicySource(make, "model", str(model), parameters)


class AgentRun(SchedulerRun):
    """A run of one of the four agents, which keeps its model: while it works, and when it ends."""

    def __init__(
        self,
        settings: LearnerSettings,
        *,
        cluster: "Cluster | None" = None,
        folders: Folders = Folders(),  # noqa: B008  (frozen)
    ) -> None:
        source = agent_source(settings, settings.model)
        super().__init__(source, settings, cluster=cluster, folders=folders, session=self._learner_session)
        self.kind, self._learning = settings.agent.name, settings
        self.saved: tuple[str, ...] = ()
        self.apart: learner.AsynchronousLearner | None = None
        """The learner in a process of its own, which a live cluster gets; it lives on from run to run."""

    @property
    def agent(self) -> "NeuralAgent":
        """The agent, made at first use; it lives on from run to run.

        Raises `UserError` where nothing is to be learned: such a run has a policy alone.
        """
        if self._learning.no_learn:
            raise bad_value("no_learn", True, "false: what only acts has no experience, and its model stays as it is")
        return cast("NeuralAgent", self.policy)

    def load_model(self, path: Path | str) -> None:
        """Go on from a model file (of an actor and its critic either one); raises `UserError` when it does not fit."""
        source = agent_source(self._learning, Path(path))
        self.policy, self.source, self.apart = source.make(), source, None

    def save_model(self) -> tuple[str, ...]:
        """Write the model to models/, whole or not at all, and return the paths."""
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
        self.apart = None
        return experience.fill_replay(self.agent, recording)

    def _written(self) -> list[Path]:
        return [*super()._written(), *(() if self._learning.no_learn else (self.folders.models,))]

    def _learner_session(self, policy: "Policy") -> PolicySession:
        """Put the agent to work; on a live cluster it learns in a process of its own."""
        if self._learning.no_learn:
            return PolicySession(policy)
        if self.apart is None and not (self._given is not None and learner.waits(self._given)):
            self.apart = learner.AsynchronousLearner(self.agent)
        return LearnerSession(self.agent, self.apart, self.save_model, self._learning.save_every_s)


class _ByKeywords(AgentRun):
    """A scheduler with an agent, configured by keywords: `run()` until `stop()`, from this or another thread.

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
        and of the agent (`aaml.learning.config`: `hidden_size`, a width, `gamma`, `learning_rate`, ...).
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
        defaults = LearnerSettings(
            agent=LIVE[self.which], scheduler_name=scheduler_name, progress=progress_indication, no_learn=not learn
        )
        super().__init__(changed(defaults, settings), cluster=cluster, folders=folders)


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
