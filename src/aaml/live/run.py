"""A scheduler put together from its settings: the cluster, the observers, and the files that it writes."""

import gc
import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from aaml.errors import UserError, bad_value
from aaml.evaluation.policies import load_policy
from aaml.extras import lazily
from aaml.files import in_a_name
from aaml.kube.cluster import KubeCluster, LiveOptions
from aaml.kube.rights import check_at
from aaml.live.failover import Failover
from aaml.live.fallback import with_fallback
from aaml.live.observers.curves import CurveFiles
from aaml.live.observers.decisions import DecisionLog, ProgressBar
from aaml.live.observers.explanations import Explanations
from aaml.live.observers.shadow import Player, ShadowLog
from aaml.live.scheduler import Scheduler
from aaml.live.scheduler_replica import scheduler_replica
from aaml.live.session import PolicySession
from aaml.live.settings import Folders, SchedulerSettings
from aaml.live.warm_up import warm_up
from aaml.outputs import refuse_unwritable
from aaml.policies.registry import make_reward
from aaml.scheduling.loop import deployments
from aaml.scheduling.node_sampling import ALL, NodeSampling
from aaml.scheduling.play import Stats
from aaml.scheduling.ports import Sampler
from aaml.settings import plain
from aaml.telemetry.console import LOG, file_log, stamp, terminal_log, unused_path
from aaml.telemetry.run_tail import IN_PROCESS
from aaml.telemetry.writers import JsonLinesWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aaml.cluster.objects import Pod
    from aaml.live import report
    from aaml.live.scheduler_replica import SchedulerReplica
    from aaml.live.source import PolicySource
    from aaml.scheduling.loop import Episodes
    from aaml.scheduling.ports import Cluster, Observer, Policy
    from aaml.telemetry.writers import Scalar
else:  # figures and tables, once a run is over
    report = lazily("aaml.live.report")


class SchedulerRun:
    """A policy at work as its settings say: `run()` until `stop()`, from this or another thread, as often as you like.

    Parameters
    ----------
    source:
        Where the policy comes from. It is made once when it is first needed, and a twin of it for each run's warm-up.
    settings:
        Everything else that can be told.
    cluster:
        An open cluster, which stays open. None: the one of the kubeconfig, opened and closed by each run.
    folders:
        Where curves, logs and models go.
    session:
        Puts the policy to work, for one run at a time: without learning, or as `aaml.live.session` says.

    Raises `UserError` for settings that do not go together.
    """

    def __init__(
        self,
        source: "PolicySource",
        settings: SchedulerSettings,
        *,
        cluster: "Cluster | None" = None,
        folders: Folders = Folders(),  # noqa: B008  (frozen)
        session: "Callable[[Policy], PolicySession]" = PolicySession,
    ) -> None:
        if cluster is not None and (settings.dry_run or settings.leader_elect):
            name = "dry-run" if settings.dry_run else "leader-elect"
            raise bad_value(name, True, "the cluster of a kubeconfig: no other scheduler works on this one")
        if settings.shadow_log != SchedulerSettings.shadow_log and not settings.dry_run:  # who looks on binds nothing
            raise UserError("shadow-log: is of a dry run, and without one pods are placed; add --dry-run")
        if settings.explain:  # explanations are among the records
            settings = replace(settings, records=True)
        self.source, self.settings, self.folders = source, settings, folders
        self.run_name = ""
        self.report: Path | None = None
        """The page that the last run left, where it kept records."""
        self.lost = False
        """Whether another replica took the lease, which ended the run."""
        self._session, self._given = session, cluster
        self._stop = threading.Event()
        self._events: Path | None = None

    @property
    def scheduler_name(self) -> str:
        """What pods name to be placed by this scheduler."""
        return self.settings.profile

    @cached_property
    def policy(self) -> "Policy":
        """The policy, made at first use; it lives on from run to run."""
        return self.source.make()

    @property
    def parameters(self) -> "Mapping[str, Scalar]":
        """What describes the run on TensorBoard's page of hyperparameters."""
        decides = self.source.parameters or {"policy": self.policy.name}
        return {**decides, "reward": self.settings.reward, "seed": self.settings.seed}

    def stop(self) -> None:
        """End the run after the current decision; binds in flight are awaited. Safe from a signal handler."""
        self._stop.set()

    def run(self, max_decisions: int | None = None) -> Stats:
        """Wait for the lease if there is one, then schedule until `stop`, the end of a workload, or so many decisions.

        Raises `UserError` for settings that do not work.
        """
        self._stop.clear()
        settings = self.settings
        make_reward(settings.reward)
        self._fallback()
        for folder in self._written():  # before it connects, and not when there is something to lose
            refuse_unwritable(folder, field="folder")
        if settings.leader_elect:  # who stands by is to hear of it now, and not when it leads
            self._check_rights()
        self._sample_nodes()  # the policy, or what of it does not fit, is told of before anything is touched
        session = self._session(self.policy)
        with (
            terminal_log(scrolling=settings.log_scrolling),
            scheduler_replica(settings, self.stop, kubeconfig=settings.kubeconfig, profile=settings.profile) as replica,
            session.ahead(),
        ):
            warm_up(self.source.make())
            stats = self._schedule(replica, session, max_decisions) if replica.acquire(self._stop.is_set) else Stats()
            self.lost = replica.lost
        models = [*self.source.models, *map(Path, session.models)]
        self._write_report(models)  # now that another replica may have the lease
        return stats

    def _written(self) -> list[Path]:
        """Return the folders that the run writes to."""
        return [self.folders.curves, self.folders.logs] if self.settings.records else []

    def _sample_nodes(self) -> None:
        """Let the policy score as many nodes as the settings say; raises `UserError` where it cannot."""
        percentage, policy = self.settings.percentage_of_nodes_to_score, self.policy
        name = "percentage-of-nodes-to-score"
        if isinstance(policy, Sampler):
            try:
                policy.score_some(None if percentage == ALL else NodeSampling(percentage))
            except UserError as reason:
                raise bad_value(name, percentage, f"{ALL}: {reason}") from reason
        elif percentage != ALL:
            raise bad_value(name, percentage, f"{ALL}: {policy.name} is no network and scores all nodes")

    def _write_report(self, models: list[Path]) -> None:
        """Leave a page of the run and its models beside its log; a run is not to fail by that."""
        events, self._events = self._events, None
        if events is None:
            return
        try:
            self.report = report.write_live_report(
                events, f"{self.policy.name} for {self.scheduler_name}", plain(self.settings),
                plain(self.settings.defaults()), models,
            )  # fmt: skip
        except (UserError, OSError) as error:
            LOG.warning("no report: %s", error)
        else:
            LOG.info("report: %s", self.report)

    def _schedule(self, replica: "SchedulerReplica", session: PolicySession, max_decisions: int | None) -> Stats:
        settings, name = self.settings, self.policy.name
        with ExitStack() as stack:
            cluster = self._given or stack.enter_context(closing(self._connect()))
            replica.begin(cluster)
            label = "_".join((in_a_name(name), settings.tensorboard_name or stamp()))
            curves = unused_path(self.folders.curves, label, "")
            self.run_name = curves.name
            log = None
            if settings.records:
                named = f"{curves.name}_{stamp()}" if settings.tensorboard_name else curves.name
                log = stack.enter_context(file_log(named, self.folders.logs))
                LOG.info("curves in %s, log in %s", curves, log)
                self._events = log.with_suffix(".jsonl")
                if self._given is None:
                    suffix = ".explained.jsonl" if settings.explain else ".jsonl"
                    cast("KubeCluster", cluster).decision_log = log.with_suffix(suffix).name
            observers: list[Observer] = [replica]
            for observer in (*self._observers(cluster, log), *session.observers()):
                stack.callback(observer.close)
                observers.append(observer)
            LOG.info("%s %s", name, self._does(cluster))
            with session.at_work(replica, self._stop.is_set) as policy:
                guarded = self._guarded(policy, replica, cluster)
                replica.set_ready()
                gc.freeze()  # what is there by now stays: looking through it for garbage makes pods wait
                stack.callback(gc.unfreeze)
                scheduler = Scheduler(
                    cluster,
                    guarded,
                    observers,
                    reward=settings.reward,
                    stop=self._stop,
                    episodes=self._episodes(cluster),
                )
                stats = scheduler.run(max_decisions)
                for scalars in session.last_updates():
                    for observer in observers:
                        observer.on_learned(scalars, stats.decisions)
            LOG.info("%s ends: %s", name, _words(stats))
        return stats

    def _does(self, cluster: "Cluster") -> str:
        """Return what the policy is about to do, in words."""
        if self.settings.dry_run:
            before = sum(each.pod.scheduler_name == self.scheduler_name for each in cluster.state.pods())
            left = f"; {before} that it had placed before are not compared" if before else ""
            return f"looks on as {self.scheduler_name} places pods{left}"
        nodes, where = int(cluster.state.capacity.sum()), getattr(cluster, "where", IN_PROCESS)
        return f"places the pods of {self.scheduler_name} on {nodes} nodes of {where}"

    def _episodes(self, cluster: "Cluster") -> "Episodes":  # noqa: ARG002  (of one that is told of, another one)
        """Return where an episode of what is learned ends."""
        return deployments

    def _fallback(self) -> "Policy | None":
        """Make the policy that steps in; raises `UserError` when there is none of that name."""
        named = self.settings.fallback
        return None if named == "none" else load_policy(named, seed=self.settings.seed)

    def _guarded(self, policy: "Policy", replica: "SchedulerReplica", cluster: "Cluster") -> "Policy":
        """Return the policy with its fallback, or the policy itself where there is no fallback."""
        settings, fallback = self.settings, self._fallback()
        if fallback is None:
            replica.decided_by(policy.name)
            return policy
        replica.decided_by(policy.name, fallback.name)

        def on_failover(pod: "Pod", message: str) -> None:
            replica.decided_by(fallback.name, policy.name)
            if (tell := getattr(cluster, "failed_over", None)) is not None:  # a Kubernetes cluster has events
                tell(pod, message)

        when = settings.failover
        compares = (when == "always" or (when == "models" and self.source.origin == "model")) and not settings.dry_run
        return with_fallback(
            policy, fallback,
            deadline_s=0.0 if self.source.origin == "built-in" else settings.deadline_s,
            trusted=self.source.origin != "own",
            failover=Failover(fallback, make_reward(settings.reward)) if compares else None,
            count=replica.replaced,
            on_failover=on_failover,
        )  # fmt: skip

    def _observers(self, cluster: "Cluster", log: "Path | None") -> "Iterator[Observer]":
        """Yield the observers that the settings ask for; `log` is the log file, where records are kept."""
        settings, name = self.settings, self.policy.name
        yield DecisionLog()
        if log is not None:
            curves, events = self.folders.curves / self.run_name, log.with_suffix(".jsonl")
            yield CurveFiles(curves, events, self.parameters, getattr(cluster, "where", IN_PROCESS))
            if settings.explain:
                yield Explanations(JsonLinesWriter(log.with_suffix(".explained.jsonl")), self.policy)
        if settings.progress:
            yield ProgressBar(name, cluster)
        if settings.dry_run:
            yield ShadowLog(settings.shadow_log, cast("KubeCluster", cluster), Player.of(name, self.source.file))

    def _check_rights(self) -> None:
        options = self._options()
        check_at(self.settings.kubeconfig, options.rights, options.granted_by)

    def _options(self) -> LiveOptions:
        settings = self.settings
        return LiveOptions(
            namespaces=settings.namespaces, dry_run=settings.dry_run, preemption=settings.preemption,
            scheduled_events=settings.scheduled_events,
        )  # fmt: skip

    def _connect(self) -> KubeCluster:
        settings = self.settings
        return KubeCluster.connect(settings.profile, kubeconfig=settings.kubeconfig, options=self._options())


def _words(stats: Stats) -> str:
    counted = ", ".join(f"{count} {name}" for name, count in sorted((stats.outcomes + stats.binds).items()))
    return f"{stats.decisions} decisions ({counted or 'no pod came'}), cumulative reward {stats.reward:.2f}"
