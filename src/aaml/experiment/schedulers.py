"""The four learned schedulers as objects: what the commands run and notebooks import.

All are `LearnedScheduler`; a subclass says which agent it is, nothing more.
"""

import dataclasses
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from aaml.errors import bad_value
from aaml.experiment.build import DEFAULT_REWARD, Folders
from aaml.learning.config import AgentConfig, AgentKind, default_config

if TYPE_CHECKING:
    import pandas as pd

    from aaml.experiment.duty import Duty
    from aaml.learning.agent import LearnedAgent
    from aaml.scheduling.loop import LoopStats
    from aaml.scheduling.observation import Context
    from aaml.scheduling.ports import BindResult, Cluster, Decision, Outcome

SAVE_EVERY_S = 300.0


class LearnedScheduler:
    """A scheduler that learns while it binds: `run()` until `stop()`, from this or another thread.

    Parameters
    ----------
    scheduler_name:
        Pods with this `schedulerName` are placed.
    cluster:
        An in-process cluster (`aaml.experiment.build.in_process_cluster`); None takes the one of the kubeconfig.
    kubeconfig, dry_run:
        Of a Kubernetes cluster. A dry run decides and logs but never binds.
    model:
        A model file to go on from.
    reward, seed, learn:
        The reward by name; the seed of weights and exploration; False takes the best choice and never updates.
    tensorboard_name:
        Curves go to tlogs/<agent>_<name>, models to models/ under the same name; the time when empty.
    progress_indication, log_scrolling:
        A bar; a line a decision.
    save_every_s:
        Seconds between saves of the model, which is saved at the end in any case; 0 saves at the end only.
    agent:
        Any field of `aaml.learning.config.AgentConfig`: `hidden_layers` (a width), `gamma`, `learning_rate`, ...
    """

    kind: ClassVar[AgentKind]

    def __init__(
        self,
        scheduler_name: str = "custom-scheduler",
        *,
        cluster: "Cluster | None" = None,
        kubeconfig: Path | str | None = None,
        dry_run: bool = False,
        model: Path | str | None = None,
        reward: str = DEFAULT_REWARD,
        seed: int = 0,
        learn: bool = True,
        tensorboard_name: str = "",
        progress_indication: bool = False,
        log_scrolling: bool = False,
        save_every_s: float = SAVE_EVERY_S,
        folders: Folders = Folders(),  # noqa: B008  (frozen)
        **agent: Any,
    ) -> None:
        self.scheduler_name = scheduler_name
        self.config = _settings(self.kind, agent)
        self.reward = reward
        self.seed = seed
        self.learn = learn
        self.folders = folders
        self.run_name = ""
        self.saved: tuple[str, ...] = ()
        self.duty: Duty | None = None
        self._given = cluster
        self._kubeconfig = None if kubeconfig is None else Path(kubeconfig)
        self._dry_run = dry_run
        self._model = None if model is None else Path(model)
        self._name = tensorboard_name
        self._bar = progress_indication
        self._scrolling = log_scrolling
        self._save_every_s = save_every_s
        self._stop = threading.Event()
        self._agent: LearnedAgent | None = None

    # ---- what a notebook calls ---------------------------------------------------------------------------------------

    @property
    def agent(self) -> "LearnedAgent":
        """The agent, made at first use; it lives on from run to run."""
        if self._agent is None:
            from aaml.learning.agent import load_agent, make_agent

            if self._model is None:
                self._agent = make_agent(self.kind, self.config, seed=self.seed, learn=self.learn)
            else:
                self._agent = load_agent(self._model, self.config, kind=self.kind, seed=self.seed, learn=self.learn)
        return self._agent

    def prepare(self) -> None:
        """Make the agent now; raises `UserError` when its model or settings do not fit."""
        from aaml.scheduling.registry import make_reward

        make_reward(self.reward)
        _ = self.agent

    def load_model(self, path: Path | str) -> None:
        """Go on from a model file (of an actor and its critic either one); raises `UserError` when it does not fit."""
        from aaml.learning.agent import load_agent

        self._agent = load_agent(path, self.config, kind=self.kind, seed=self.seed, learn=self.learn)

    def save_model(self) -> tuple[str, ...]:
        """Write the model to models/, whole or not at all, and return the paths."""
        name = self.run_name or self._new_name()
        # Both actor-critics call their files Actor_* and Critic_*, so the name has to tell them apart.
        stem = name if self.kind in {"dqn", "gnn"} else f"{self.kind}_{name}"
        self.saved = tuple(self.agent.save(str(self.folders.models), stem))
        return self.saved

    def populate_replay(self, recording: "pd.DataFrame | Path | str") -> int:
        """Fill the replay buffer from a recording (data/sched_*.csv, a file or a table); returns the steps added."""
        from aaml.experiment.recordings import fill_replay

        return fill_replay(self.agent, recording)

    def stop(self) -> None:
        """End the run after the current decision; binds in flight are awaited and the model is saved."""
        self._stop.set()

    def run(self, max_decisions: int | None = None) -> "LoopStats":
        """Schedule until `stop`, the end of an in-process workload, or `max_decisions`."""
        self._stop.clear()
        cluster = self._connect()  # before the seconds that torch takes to load: no cluster is told at once
        try:
            self.prepare()  # what does not fit is told before anything is written
            return self._run(cluster, max_decisions)
        finally:
            cluster.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _stopped(self) -> bool:
        stopped = self._stop.is_set()
        return stopped if self.duty is None else self.duty.beat(stopped)

    def _run(self, cluster: "Cluster", max_decisions: int | None) -> "LoopStats":
        from aaml.experiment.build import run_recorder
        from aaml.telemetry.console import LOG, run_log

        self.run_name = self._new_name()
        label = f"{self.kind}_{self.run_name}"
        with run_log(label, self.folders.logs, scrolling=self._scrolling) as log_path:
            parameters = {**dataclasses.asdict(self.config), "reward": self.reward, "seed": self.seed}
            recorder = run_recorder(self.folders, label, log_path.stem, parameters)
            LOG.info(
                "%s starts with %d nodes, for pods of %r: curves in %s, log in %s",
                label, int(cluster.state.capacity.sum()), self.scheduler_name, self.folders.curves / label, log_path,
            )  # fmt: skip
            watcher = _Run(self, self.agent, recorder, cluster, bar=self._bar)
            try:
                stats = watcher.loop.run(self._stop.is_set, max_decisions)
            finally:
                try:
                    watcher.close()
                    recorder.close()
                finally:
                    if self.learn:
                        LOG.info("model saved: %s", ", ".join(self.save_model()))
            LOG.info("%s ends: %s", label, _words(stats))
        return stats

    def _connect(self) -> "Cluster":
        if self._given is not None:
            return self._given
        from aaml.experiment.build import kube_cluster

        return kube_cluster(self.scheduler_name, self._kubeconfig, dry_run=self._dry_run)

    def _new_name(self) -> str:
        from aaml.telemetry.console import stamp, unused_path

        return unused_path(self.folders.curves, f"{self.kind}_{self._name or stamp()}", "").name.removeprefix(
            f"{self.kind}_"
        )


class _Run:
    """One run's loop with what watches it: curves, log lines, the bar, saving now and then."""

    def __init__(
        self, owner: LearnedScheduler, agent: "LearnedAgent", recorder: Any, cluster: "Cluster", *, bar: bool
    ) -> None:
        from aaml.scheduling.cycle import SchedulingCycle
        from aaml.scheduling.loop import SchedulerLoop
        from aaml.scheduling.observation import Featurizer
        from aaml.scheduling.registry import make_reward
        from aaml.telemetry.console import DECISIONS, LOG, Progress
        from aaml.telemetry.curves import AgentCurves, Curves

        self._owner, self._log, self._decisions = owner, LOG, DECISIONS
        self._curves = Curves(recorder)
        self._bar = Progress(owner.kind, enabled=bar)
        self._cluster = cluster
        self._saved_s = time.monotonic()
        cycle = SchedulingCycle(cluster, make_reward(owner.reward), Featurizer(lookahead=agent.lookahead))
        self.loop = SchedulerLoop(
            cycle,
            agent,
            learn=owner.learn,
            recorder=AgentCurves(recorder),
            on_step=self._on_step,
            on_result=self._on_result,
            on_attempt=None if owner.duty is None else owner.duty.on_attempt,
        )

    def _on_step(self, context: "Context", decision: "Decision", outcome: "Outcome") -> None:
        curves = self._curves
        curves.on_step(context, decision, outcome)
        self._decisions.info(
            "%d %s -> %s (%d feasible, reward %.3f)",
            curves.step, context.pod.key, outcome.node_name or outcome.kind, int(context.mask.sum()), outcome.reward,
        )  # fmt: skip
        self._bar.advance(
            reward=round(curves.reward, 2), variance=f"{curves.variance:.2g}", pending=self._cluster.pending_count()
        )
        every_s = self._owner._save_every_s  # noqa: SLF001  (the two are one thing)
        if every_s and self._owner.learn and time.monotonic() - self._saved_s > every_s:
            self._saved_s = time.monotonic()
            self._log.info("model saved: %s", ", ".join(self._owner.save_model()))

    def _on_result(self, result: "BindResult") -> None:
        self._curves.on_result(result)
        if self._owner.duty is not None:
            self._owner.duty.on_result(result)

    def close(self) -> None:
        self._curves.flush()
        self._bar.close()


def _settings(kind: AgentKind, given: Mapping[str, Any]) -> AgentConfig:
    known = [field.name for field in dataclasses.fields(AgentConfig)]
    for name in given:
        if name not in known:
            raise bad_value(f"setting of the {kind} agent", name, f"one of {', '.join(known)}")
    return dataclasses.replace(default_config(kind), **given)


def _words(stats: "LoopStats") -> str:
    counted = ", ".join(f"{count} {name}" for name, count in sorted((stats.outcomes + stats.binds).items()))
    return f"{stats.decisions} decisions ({counted or 'no pod came'}), cumulative reward {stats.reward:.2f}"


class CustomSchedulerDQN(LearnedScheduler):
    """DQN over an MLP: epsilon-greedy over feasible nodes, replay, target network."""

    kind = "dqn"


class CustomSchedulerGNN(LearnedScheduler):
    """DQN over a graph network: a star with the control plane in the middle."""

    kind = "gnn"


class ActorCriticDQN(LearnedScheduler):
    """Actor-critic over MLPs; a deployment is an episode."""

    kind = "acdqn"


class ActorCriticGNN(LearnedScheduler):
    """Actor-critic over graph networks."""

    kind = "acgnn"


SCHEDULERS: Mapping[AgentKind, type[LearnedScheduler]] = {
    each.kind: each for each in (CustomSchedulerDQN, CustomSchedulerGNN, ActorCriticDQN, ActorCriticGNN)
}
