"""A policy as a scheduler of its own on a Kubernetes cluster, or in the shadow of the scheduler that runs there."""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from aaml.cluster.filters import feasible
from aaml.cluster.metrics import usage
from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.cluster.state import ClusterState
from aaml.errors import bad_value
from aaml.experiment.build import DEFAULT_REWARD, standard_nodes
from aaml.experiment.duty import LOST_STATUS, Duty, DutyOptions, on_duty
from aaml.experiment.policies import load_policy
from aaml.scheduling.cycle import SchedulingCycle
from aaml.scheduling.loop import LoopStats, SchedulerLoop
from aaml.scheduling.observation import Context, Featurizer
from aaml.scheduling.ports import Decision, Outcome, Policy
from aaml.scheduling.registry import make_reward

_LOG = logging.getLogger("aaml")
_TURN_S = 0.2
NOBODY = "aaml-shadow"  # no pod names this scheduler, so nothing is decided for real


@dataclass(frozen=True)
class PolicyRun:
    """Which policy, on which cluster, for the pods of which scheduler.

    `namespaces` empty: of all. `scheduled_events`: an event for each bound pod, one more write a pod. `preemption`:
    pods that fit nowhere may take the room of less important ones. `shadow_log`: None binds pods; a path ("-": the
    terminal) only watches another scheduler and writes a line a pod.
    """

    policy: str
    scheduler_name: str
    kubeconfig: Path | None = None
    namespaces: tuple[str, ...] = ()
    seed: int = 0
    scheduled_events: bool = True
    preemption: bool = True
    shadow_log: str | None = None
    duty: DutyOptions = field(default_factory=DutyOptions)


class PolicyScheduler:
    """`run()` until `stop()`; returns an exit status: 0 after `stop`, 1 when another replica took the lease."""

    def __init__(self, settings: PolicyRun) -> None:
        self.settings = settings
        self.stats: LoopStats | None = None
        self._stop = threading.Event()

    def stop(self) -> None:
        """End after the current decision; binds in flight are awaited. Safe from a signal handler."""
        self._stop.set()

    def run(self) -> int:
        """Wait for the lease if there is one, then schedule. Raises `UserError` for settings that do not work."""
        settings = self.settings
        # A policy that does not exist is told before anything is touched.
        policy, featurizer = load_policy(settings.policy, seed=settings.seed)
        with on_duty(settings.duty, self.stop, kubeconfig=settings.kubeconfig, profile=settings.scheduler_name) as duty:
            warm_up(settings.policy)
            if duty.acquire(self._stop.is_set):
                if settings.shadow_log is None:
                    self._schedule(policy, featurizer, duty)
                else:
                    self._shadow(policy, featurizer, duty)
            return LOST_STATUS if duty.lost else 0

    def _schedule(self, policy: Policy, featurizer: Featurizer, duty: Duty) -> None:
        from aaml.kube.cluster import KubeCluster, LiveOptions

        settings = self.settings
        options = LiveOptions(
            namespaces=settings.namespaces, scheduled_events=settings.scheduled_events, preemption=settings.preemption
        )
        cluster = KubeCluster.connect(settings.scheduler_name, kubeconfig=settings.kubeconfig, options=options)
        duty.begin(cluster)
        _LOG.info("%s places the pods of %s on %d nodes", policy.name, settings.scheduler_name, len(cluster.state))
        cycle = SchedulingCycle(cluster, make_reward(DEFAULT_REWARD), featurizer)
        loop = SchedulerLoop(
            cycle, policy, learn=False, on_step=_say, on_result=duty.on_result, on_attempt=duty.on_attempt
        )
        try:
            self.stats = loop.run(lambda: duty.beat(self._stop.is_set()))
        finally:
            cluster.close()
        _LOG.info("%d decisions, binds: %s", self.stats.decisions, dict(self.stats.binds) or "none")

    def _shadow(self, policy: Policy, featurizer: Featurizer, duty: Duty) -> None:
        from aaml.experiment.shadow import Shadow
        from aaml.kube.cluster import KubeCluster, LiveOptions

        settings = self.settings
        with _opened(settings.shadow_log or "-") as log:
            cluster = KubeCluster.connect(
                NOBODY, kubeconfig=settings.kubeconfig, options=LiveOptions(dry_run=True, binders=1)
            )
            try:
                cluster.on_bound(Shadow(policy, featurizer, cluster, settings.scheduler_name, log).compare)
                duty.begin(cluster)
                _LOG.info("%s looks on as %s places pods", policy.name, settings.scheduler_name)
                while not duty.beat(self._stop.is_set()):
                    cluster.next_pod(_TURN_S)
            finally:
                cluster.close()


def warm_up(spec: str) -> None:
    """Compile what a decision needs, on a cluster of two nodes: half a minute on a machine that never did it before.

    The policy is one of its own, so that the real one still starts at its seed.
    """
    policy, featurizer = load_policy(spec)
    state, pod = ClusterState(standard_nodes(2)), Pod("warm-up", requests={CPU: 100, MEMORY: 1 << 20})
    mask = feasible(state, pod).mask
    context, reward = Context(state, pod, mask, featurizer), make_reward(DEFAULT_REWARD)
    row = policy.act(context).row
    reward.before(context)
    state.assume(pod, state.names[1 if row is None else row])
    reward.after(context, 1 if row is None else row)
    usage(state)


def _say(context: Context, _decision: Decision, outcome: Outcome) -> None:
    where = outcome.node_name or "nowhere: the policy left it pending"
    _LOG.info("%s -> %s (%d feasible)", context.pod.key, where, int(context.mask.sum()))


@contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    """Open a log for appending: a shadow that is started again goes on with its report."""
    if path == "-":
        yield sys.stdout
        return
    try:
        file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115  (an error of the caller is not of opening)
    except OSError as error:
        raise bad_value("shadow-log", path, f"a file that can be written ({error.strerror})") from error
    with file:
        yield file
