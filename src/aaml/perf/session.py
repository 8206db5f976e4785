"""Plays scenarios with several schedulers on as few clusters as their feature gates allow."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from aaml.errors import UserError
from aaml.kube.transport import ApiError, Unreachable
from aaml.perf.cluster import PerfCluster, gates_text, server_gates
from aaml.perf.player import PlayResult, PodCounts, ScenarioPlayer
from aaml.perf.scenarios import Play
from aaml.perf.schedulers import REAL, ProbedScheduler, command
from aaml.plugin.module import is_plugin

_SMALL_NODES = 20
_NOTHING = PodCounts(0, 0, 0)


@dataclass(frozen=True)
class PlayJob:
    """One scheduler plays one workload, for the `round`-th time."""

    play: Play
    scheduler: str
    round: int = 0


def jobs(plays: Sequence[Play], schedulers: Sequence[str], rounds: int) -> list[PlayJob]:
    """Return what is to be played, in the order that starts the fewest clusters.

    On a cluster large workloads come in turns, scheduler by scheduler and round by round, so that a busy moment of the
    machine meets all alike. Small ones, of which nobody reads a rate, come one scheduler after another.
    """

    def place(job: PlayJob) -> tuple[Any, ...]:
        play, turn = plays.index(job.play), schedulers.index(job.scheduler)
        small = (0, turn, gates_text(job.play.gates), play, job.round)
        return gates_text(server_gates(job.play.gates)), *(
            small if job.play.nodes <= _SMALL_NODES else (1, play, job.round, turn)
        )

    every = [
        PlayJob(play, each, round_) for play in plays for round_ in range(rounds) for each in _players(play, schedulers)
    ]
    return sorted(every, key=place)


def _players(play: Play, schedulers: Sequence[str]) -> Sequence[str]:
    """Return the schedulers that play it: of what AAML's own do not honour, a plugin and who it is compared with."""
    if play.unplayed or (play.refused and not any(map(is_plugin, schedulers))):
        return ()
    return [each for each in schedulers if not play.refused or each == REAL or is_plugin(each)]


class Session:
    """Carries out jobs one by one; the cluster and the scheduler stay as long as the next job can use them.

    `folder` takes the schedulers' logs, and `wait_s` bounds each wait of a play. Use as a context manager.
    """

    def __init__(self, folder: Path, wait_s: float) -> None:
        self._folder, self._wait_s = folder, wait_s
        self._clusters, self._schedulers = ExitStack(), ExitStack()
        self._cluster: PerfCluster | None = None
        self._scheduler: ProbedScheduler | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_cluster()

    def play(self, job: PlayJob) -> PlayResult:
        """Return the result of a job; one that could not go on has the reason in it."""
        try:
            cluster = self._cluster_for(job)
            scheduler = self._scheduler_for(job, cluster)
            outcome = ScenarioPlayer(cluster, scheduler.alive, self._wait_s).play(job.play)
            cluster.clear()
        except (UserError, ApiError, Unreachable) as error:
            self._end_cluster()
            return PlayResult(_NOTHING, _NOTHING, 0.0, str(error))
        return outcome

    def _cluster_for(self, job: PlayJob) -> PerfCluster:
        gates = server_gates(job.play.gates)
        if self._cluster is None or self._cluster.gates != gates:
            self._end_cluster()
            self._cluster = self._clusters.enter_context(PerfCluster(f"perf-{os.getpid()}", gates))
            self._cluster.clear()
        return self._cluster

    def _scheduler_for(self, job: PlayJob, cluster: PerfCluster) -> ProbedScheduler:
        line = command(job.scheduler, cluster.cluster.kubeconfig, job.play.gates, self._folder)
        if self._scheduler is None or self._scheduler.line != line:
            self._end_scheduler()
            self._scheduler = self._schedulers.enter_context(
                ProbedScheduler(job.scheduler, cluster, line, self._folder)
            )
        return self._scheduler

    def _end_scheduler(self) -> None:
        self._scheduler = None
        self._schedulers.close()

    def _end_cluster(self) -> None:
        self._end_scheduler()
        self._cluster = None
        self._clusters.close()
