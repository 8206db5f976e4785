"""The workload simulator as an object, and a scheduler with its workload in one process."""

import secrets
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aaml.files import RowWriter
from aaml.kube.submit import KubeSink
from aaml.live.settings import Folders
from aaml.sim.threaded import ThreadedSink
from aaml.telemetry.console import LOG, Bar, stamp, unused_path
from aaml.threads import Background
from aaml.workload.deployments import (
    COLUMNS,
    DeploymentShape,
    RandomDeployments,
    draw_tag,
    read_deployments,
    read_shapes,
)
from aaml.workload.player import PlaySettings, WorkloadPlayer

if TYPE_CHECKING:
    from aaml.live.run import SchedulerRun
    from aaml.scheduling.play import Stats
    from aaml.sim.threaded import ThreadedCluster
    from aaml.workload.player import Sink, WorkloadRound


def simulate(
    load: float = 0.2,
    scheduler_name: str = "custom-scheduler",
    *,
    kubeconfig: Path | str | None = None,
    rounds: int = 1,
    interval_s: float = 0.0,
    progress: bool = True,
    **settings: Any,
) -> "list[WorkloadRound]":
    """Put random deployments on a Kubernetes cluster until a load is reached, as work for a scheduler.

    Parameters
    ----------
    load
        CPU, memory or pods that are requested, of all there are; the first that reaches it ends a round.
    scheduler_name
        The `schedulerName` of the pods: who is to place them.
    kubeconfig
        Of the cluster; without it $KUBECONFIG and ~/.kube/config.
    rounds
        How often; the cluster is cleared of these deployments between two rounds, not after the last.
    interval_s
        Seconds between deployments.
    progress
        Show a progress bar.
    **settings
        `seed`, `shapes`, `playback`, `lifetime_s`, `namespace` and others of `WorkloadDeploymentSimulator`.

    Returns
    -------
    list[WorkloadRound]
        What each round came to, and how many pods found no node.

    """
    simulator = WorkloadDeploymentSimulator(
        load, load, load, scheduler_name, kubeconfig=kubeconfig, progress_indication=progress, **settings
    )
    return simulator.run(interval_s, 0.0, rounds)


class WorkloadDeploymentSimulator:
    """Puts random deployments on a cluster until a load is reached; `run()` until done or `stop()`.

    Parameters
    ----------
    cpu_load, mem_load, pod_load:
        Requested over allocatable, fractions; the first that is reached ends a round.
    scheduler:
        The `schedulerName` of the pods.
    cluster:
        An in-process cluster; None takes the one of the kubeconfig.
    seed:
        Same seed, same deployments; None draws one.
    shapes, playback:
        CSV files: a mixture of pod shapes to draw from, or deployments to play back.
    lifetime_s:
        Seconds after which a placed deployment is deleted, where its shape names none; None: it stays.
    at_once, wait_s, max_deployments:
        Deployments submitted together; how long pods may stay without a node; the most deployments of a round.
    """

    def __init__(
        self,
        cpu_load: float = 0.2,
        mem_load: float = 0.2,
        pod_load: float = 0.2,
        scheduler: str = "custom-scheduler",
        *,
        cluster: "ThreadedCluster | None" = None,
        kubeconfig: Path | str | None = None,
        namespace: str = "default",
        seed: int | None = None,
        shapes: Path | str | None = None,
        playback: Path | str | None = None,
        lifetime_s: float | None = None,
        at_once: int = 1,
        wait_s: float = 60.0,
        max_deployments: int | None = None,
        progress_indication: bool = False,
        folders: Folders = Folders(),  # noqa: B008  (frozen)
    ) -> None:
        self._settings = PlaySettings(
            cpu_load=cpu_load, mem_load=mem_load, pod_load=pod_load, at_once=at_once, wait_s=wait_s,
            max_deployments=max_deployments,
        )  # fmt: skip
        self.scheduler = scheduler
        self.seed = secrets.randbelow(2**32) if seed is None else seed
        self.folders = folders
        self.rounds: list[WorkloadRound] = []
        self.csv_path: Path | None = None
        self._cluster = cluster
        self._kubeconfig = None if kubeconfig is None else Path(kubeconfig)
        self._namespace = namespace
        self._shapes = None if shapes is None else Path(shapes)
        self._playback = None if playback is None else Path(playback)
        self._lifetime_s = lifetime_s
        self._bar = progress_indication
        self._player: WorkloadPlayer | None = None
        self._sink: Sink
        self._stopped = threading.Event()

    def run(self, interval: float = 10.0, duration: float = 1.0, epochs: int = 1) -> "list[WorkloadRound]":
        """Play `epochs` rounds; the cluster is cleared of this simulator's pods between two, not after the last.

        `interval`: seconds between deployments; `duration`: how long the loaded cluster stands before it is cleared.
        Every deployment is written to deployment_data/data_*.csv.
        """
        settings = replace(self._settings, interval_s=interval, hold_s=duration, rounds=epochs)
        steps = read_deployments(self._playback) if self._playback is not None else []
        source = None
        if not steps:
            shapes = [DeploymentShape()] if self._shapes is None else read_shapes(self._shapes)
            # On a Kubernetes cluster the pods of an earlier run with this seed may still be there under their names.
            tag = None if self._cluster is not None else draw_tag(np.random.default_rng())
            source = RandomDeployments(np.random.default_rng(self.seed), shapes, lifetime_s=self._lifetime_s, tag=tag)
        self._stopped.clear()
        sink = self._sink = self._connect()
        path = unused_path(self.folders.deployments, f"data_{stamp()}", ".csv")
        writer = RowWriter(path, COLUMNS)
        self.csv_path = path
        bar = Bar("workload", enabled=self._bar)

        def on_wave(pods: int, current: "WorkloadRound") -> None:
            bar.advance(pods, deployments=current.deployments)

        LOG.info("workload for %r, seed %d, written to %s", self.scheduler, self.seed, path)
        try:
            self._player = WorkloadPlayer(sink, settings, source=source, steps=steps, writer=writer, on_wave=on_wave)
            if self._stopped.is_set():
                self._player.stop()
            self.rounds = self._player.run()
        finally:
            bar.close()
            writer.close()
            sink.close()
        return self.rounds

    def clear(self) -> None:
        """Delete what the last run left on the cluster, and wait until it is gone."""
        names = self._player.alive if self._player is not None else ()
        self._player = None
        if not names:
            return
        # The connection to a Kubernetes cluster ended with the run; an in-process sink knows its pods itself.
        sink = self._sink if self._cluster is not None else self._connect()
        try:
            sink.delete(names)
        finally:
            sink.close()

    def stop(self) -> None:
        """End the run soon; what is on the cluster stays there."""
        self._stopped.set()
        if self._player is not None:
            self._player.stop()

    def _connect(self) -> "Sink":
        return workload_sink(self._cluster, self.scheduler, self._kubeconfig, self._namespace)


def workload_sink(
    cluster: "ThreadedCluster | None", scheduler_name: str, kubeconfig: Path | None = None, namespace: str = "default"
) -> "Sink":
    """Return the way by which a workload gets onto a cluster; None is the one of the kubeconfig."""
    if cluster is not None:
        return ThreadedSink(cluster, scheduler_name)
    return KubeSink.connect(scheduler_name, kubeconfig=kubeconfig, namespace=namespace)


def run_together(
    scheduler: "SchedulerRun", simulator: WorkloadDeploymentSimulator, cluster: "ThreadedCluster", *, epochs: int = 1
) -> "Stats":
    """Run a scheduler in this thread and its workload in another, on one in-process cluster, until the latter ends."""

    def play() -> None:
        try:
            simulator.run(interval=0.0, duration=0.0, epochs=epochs)
        finally:
            cluster.end()

    _ = scheduler.policy  # a model that does not fit is told before the workload begins
    with Background(play, "workload"):
        try:
            return scheduler.run()
        finally:
            simulator.stop()
