"""Scheduler: a policy at work on a cluster, whichever of either."""

import signal
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.evaluation.policies import load_policy
from aaml.extras import lazily
from aaml.kube.cluster import KubeCluster
from aaml.live.observers.decisions import ProgressBar
from aaml.live.observers.lifetimes import watched_lifetimes
from aaml.live.settings import DEFAULT_REWARD
from aaml.policies.registry import make_reward
from aaml.scheduling.loop import Episodes, deployments
from aaml.scheduling.play import Stats, play
from aaml.scheduling.ports import Agent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aaml.live import learner
    from aaml.scheduling.ports import Cluster, Observer, Policy
else:  # torch: only for what learns
    learner = lazily("aaml.live.learner")


def learns(policy: "Policy") -> bool:
    """Whether a policy learns from what its decisions lead to: it can, and is not frozen."""
    return isinstance(policy, Agent) and getattr(policy, "learning", True)


class Scheduler:
    """Places a cluster's pods by a policy: `run()` until `stop()`, from this or another thread.

    A policy that learns does so meanwhile, from the `reward` (by name, a weighted sum, or FILE.py:NAME), and one that
    expects pods to end goes on learning how long they run. Observers are told of everything, in the order in which they
    are given. `episodes` says where an episode of what is learned ends. The cluster stays open: who opened it closes
    it.
    """

    def __init__(
        self,
        cluster: "Cluster",
        policy: "Policy",
        observers: "Sequence[Observer]" = (),
        *,
        reward: str = DEFAULT_REWARD,
        stop: threading.Event | None = None,
        episodes: Episodes = deployments,
    ) -> None:
        self.cluster, self.policy, self.observers = cluster, policy, tuple(observers)
        self._episodes = episodes
        self._reward = make_reward(reward)
        self._stop = stop or threading.Event()

    def stop(self) -> None:
        """End after the current decision; binds in flight are awaited. Safe from a signal handler."""
        self._stop.set()

    def run(self, max_decisions: int | None = None) -> Stats:
        """Schedule until `stop`, the end of what an in-process cluster has to do, or so many decisions."""
        with watched_lifetimes(self.policy, self.cluster) as watches:
            return play(
                self.cluster, self.policy, self._reward, learn=learns(self.policy),
                observers=(*watches, *self.observers), stop=self._stop.is_set, max_decisions=max_decisions,
                episodes=self._episodes,
            )  # fmt: skip


def connect(
    scheduler_name: str = "custom-scheduler", *, kubeconfig: Path | str | None = None, context: str | None = None
) -> KubeCluster:
    """Connect to a Kubernetes cluster, to place the pods whose `schedulerName` is `scheduler_name`.

    The cluster is that of the kubeconfig, or without one of $KUBECONFIG and ~/.kube/config, in a context of that file
    or its current one. It is watched from now on; `close()` ends that, and so does the end of the program. Raises
    `UserError` when there is no configuration, no answer or no permission.
    """
    return KubeCluster.connect(scheduler_name, kubeconfig=kubeconfig, context=context)


def schedule(
    policy: "Policy | str | Path",
    cluster: "Cluster",
    observers: "Sequence[Observer]" = (),
    *,
    reward: str = DEFAULT_REWARD,
    max_decisions: int | None = None,
    progress: bool = True,
) -> Stats:
    """Place a cluster's pods until Ctrl-C, or until so many decisions were made; returns what came of it.

    Parameters
    ----------
    policy
        What decides: a policy as `aaml.train` or `aaml.load` returns it, a name such as "least-variance",
        `FILE.py:NAME`, or a model file. One that learns does so from the `reward`.
    cluster
        Where the pods are: as `aaml.connect` returns it. It stays open.
    observers
        Who is told of every attempt, decision and bind.
    progress
        Show a progress bar.

    Raises
    ------
    UserError
        For what is no policy, and when the cluster does not answer any more.

    """
    made = load_policy(str(policy)) if isinstance(policy, str | Path) else policy
    with ExitStack() as stack:
        bar = [stack.enter_context(closing(ProgressBar(made.name, cluster)))] if progress else []
        if learns(made):
            made = stack.enter_context(learner.apart(made, cluster))
        scheduler = Scheduler(cluster, made, [*observers, *bar], reward=reward)
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGINT, lambda *_: scheduler.stop())
            stack.callback(signal.signal, signal.SIGINT, before)
        return scheduler.run(max_decisions)
