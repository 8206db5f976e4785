"""WorkloadPlayer: submits deployments to a cluster of any kind, waits for each to be placed, and stops at a load.

The cluster is behind `Sink`: `aaml.sim.threaded` has the in-process one, `aaml.kube.submit` that of a Kubernetes API.
"""

import heapq
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.files import RowWriter
from aaml.settings import Count, NotNegative, Positive, Settings, Share
from aaml.workload.deployments import Action, Deployment, RandomDeployments, split_steps

_LOG = logging.getLogger("aaml.workload")


@dataclass(frozen=True, slots=True)
class Load:
    """What is requested over what is offered, as fractions of all nodes together without the control plane."""

    cpu: float
    memory: float
    pods: float

    @classmethod
    def of(cls, state: ClusterState) -> "Load":
        """Measure a state."""

        def share(resource: str) -> float:
            column = state.resource_index[resource]
            offered = int(state.allocatable[state.capacity, column].sum())
            return int(state.requested[state.capacity, column].sum()) / offered if offered else 0.0

        return cls(share(CPU), share(MEMORY), share(PODS))

    def __str__(self) -> str:
        return f"CPU {self.cpu:.1%}, memory {self.memory:.1%}, pods {self.pods:.1%}"


class Sink(Protocol):
    """A cluster as the player sees it. Times are the cluster's own: virtual in the process, real on Kubernetes."""

    def now_s(self) -> float:
        """Return the time."""
        ...

    def create(self, deployments: Sequence[Deployment]) -> None:
        """Create deployments, all at once; raises `UserError` when the cluster refuses one."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete deployments and wait until their pods are gone."""
        ...

    def wait_placed(self, names: Sequence[str], timeout_s: float) -> Mapping[str, int]:
        """Wait until every pod of these deployments has a node, at most `timeout_s`.

        Returns the number of pods without one, by deployment.
        """
        ...

    def sleep(self, duration_s: float) -> None:
        """Let time go by."""
        ...

    def load(self) -> Load:
        """Return the fraction of the cluster that is requested, by whichever pods."""
        ...

    def interrupt(self) -> None:
        """Make waits, this one and later ones, return at once; may be called from any thread."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


@dataclass(frozen=True)
class PlaySettings(Settings):
    """When to stop and how fast to go.

    Loads are fractions, and the first one that is reached ends the round.
    """

    cpu_load: Share = 0.2
    mem_load: Share = 0.2
    pod_load: Share = 0.2
    interval_s: NotNegative = 0.0
    """between deployments"""
    hold_s: NotNegative = 0.0
    """how long the loaded cluster stands before it is cleared"""
    rounds: Count = 1
    at_once: Count = 1
    """deployments submitted together"""
    wait_s: Positive = 60.0
    """how long pods may stay without a node before the round ends"""
    max_deployments: Count | None = None
    """a round ends after this many"""


@dataclass
class WorkloadRound:
    """What a round came to.

    `pending` has the number of pods without a node at its end, by deployment, and `ended` says why it ended.
    """

    deployments: int = 0
    pods: int = 0
    pending: Mapping[str, int] = field(default_factory=dict)
    load: Load = Load(0.0, 0.0, 0.0)
    ended: str = ""

    def __str__(self) -> str:
        stuck = sum(self.pending.values())
        waiting = ", ".join(f"{name} {count}" for name, count in self.pending.items())
        tail = f"; {stuck} pods pending ({waiting})" if stuck else "; no pod pending"
        return f"{self.deployments} deployments, {self.pods} pods: {self.load}{tail}; ended: {self.ended}"


class WorkloadPlayer:
    """Fills a cluster round by round; `stop` may be called from another thread.

    Deployments come from `source` until a load is reached, or are played back from `steps`, and `writer` gets a row for
    each. `on_wave(pods, round)` is called after each wave of deployments. Between two rounds, and only then, the player
    deletes its own deployments: what others run on the cluster stays.
    """

    def __init__(
        self,
        sink: Sink,
        settings: PlaySettings,
        *,
        source: RandomDeployments | None = None,
        steps: Sequence[tuple[Deployment, Action]] = (),
        writer: RowWriter | None = None,
        on_wave: Callable[[int, WorkloadRound], None] | None = None,
    ) -> None:
        if (source is None) == (not steps):
            raise ValueError("either a source or steps to play back")
        self._sink = sink
        self._settings = settings
        self._source = source
        self._steps = steps
        self._writer = writer
        self._on_wave = on_wave
        self._alive: dict[str, Deployment] = {}
        self._departures: list[tuple[float, str]] = []
        self._stopped = threading.Event()
        self.rounds: list[WorkloadRound] = []

    def stop(self) -> None:
        """End the run soon; what is on the cluster stays there."""
        self._stopped.set()
        self._sink.interrupt()

    def run(self) -> list[WorkloadRound]:
        """Play all rounds and return what each came to; the last one's deployments stay on the cluster."""
        for number in range(self._settings.rounds):
            if number:
                self._sink.sleep(self._settings.hold_s)
                self.clear()
            if self._stopped.is_set():
                break
            current = WorkloadRound()
            self.rounds.append(current)
            self._play_back(current) if self._steps else self._fill(current)
            current.pending = self._sink.wait_placed(list(self._alive), 0.0)
            current.load = self._sink.load()
            _LOG.info("round %d of %d: %s", number + 1, self._settings.rounds, current)
        return self.rounds

    @property
    def alive(self) -> tuple[str, ...]:
        """Names of this player's deployments that are on the cluster."""
        return tuple(self._alive)

    def clear(self) -> None:
        """Delete every deployment of this player that is still there."""
        self._delete(list(self._alive))

    def _fill(self, current: WorkloadRound) -> None:
        assert self._source is not None  # noqa: S101  (the constructor saw to it)
        settings = self._settings
        while not current.ended:
            if self._stopped.is_set():
                current.ended = "stopped"
                return
            left = inf if settings.max_deployments is None else settings.max_deployments - current.deployments
            count = int(min(settings.at_once, left))
            if count <= 0:
                current.ended = f"{current.deployments} deployments, as configured"
                return
            self._submit(current, [self._source.draw() for _ in range(count)])
            current.ended = current.ended or self._reached()
            if not current.ended:
                self._rest(settings.interval_s)

    def _play_back(self, current: WorkloadRound) -> None:
        for wave in split_steps(self._steps, self._settings.at_once):
            if self._stopped.is_set():
                current.ended = "stopped"
                return
            if wave[0][1] == "delete":
                self._delete([deployment.name for deployment, _ in wave if deployment.name in self._alive])
            else:
                self._submit(current, [deployment for deployment, _ in wave])
                if current.ended:
                    return
            self._rest(self._settings.interval_s)
        current.ended = "all of the file was played"

    def _submit(self, current: WorkloadRound, wave: Sequence[Deployment]) -> None:
        self._sink.create(wave)
        for deployment in wave:
            self._alive[deployment.name] = deployment
            if self._writer is not None:
                self._writer.add(deployment.row("create"))
        current.deployments += len(wave)
        pods = sum(deployment.pod_count for deployment in wave)
        current.pods += pods
        pending = self._wait_placed([deployment.name for deployment in wave])
        for deployment in wave:
            if deployment.lifetime_s is not None and deployment.name not in pending:
                heapq.heappush(self._departures, (self._sink.now_s() + deployment.lifetime_s, deployment.name))
        if pending and not self._stopped.is_set():
            why = "no scheduler of that name runs, or the pods fit nowhere"
            current.ended = f"pods had no node after {self._settings.wait_s:g} s: {why}"
        if self._on_wave is not None:
            self._on_wave(pods, current)

    def _wait_placed(self, names: Sequence[str]) -> Mapping[str, int]:
        """Wait for these pods, meanwhile deleting those whose lifetime is over, which frees their resources."""
        deadline_s = self._sink.now_s() + self._settings.wait_s
        while True:
            left_s = deadline_s - self._sink.now_s()
            due_s = self._departures[0][0] - self._sink.now_s() if self._departures else inf
            pending = self._sink.wait_placed(names, max(min(left_s, due_s), 0.0))
            self._depart()
            if not pending or left_s <= due_s or self._stopped.is_set():
                return pending

    def _rest(self, duration_s: float) -> None:
        """Let time go by; deployments end their lives in time."""
        until_s = self._sink.now_s() + duration_s
        while self._departures and self._departures[0][0] <= until_s and not self._stopped.is_set():
            self._sink.sleep(max(self._departures[0][0] - self._sink.now_s(), 0.0))
            self._depart()
        if not self._stopped.is_set():
            self._sink.sleep(max(until_s - self._sink.now_s(), 0.0))

    def _depart(self) -> None:
        due: list[str] = []
        while self._departures and self._departures[0][0] <= self._sink.now_s():
            name = heapq.heappop(self._departures)[1]
            if name in self._alive:
                due.append(name)
        self._delete(due)

    def _delete(self, names: Sequence[str]) -> None:
        if not names:
            return
        self._sink.delete(names)
        for name in names:
            deployment = self._alive.pop(name)
            if self._writer is not None:
                self._writer.add(deployment.row("delete"))

    def _reached(self) -> str:
        load, settings = self._sink.load(), self._settings
        targets = (
            ("CPU", load.cpu, settings.cpu_load),
            ("memory", load.memory, settings.mem_load),
            ("pods", load.pods, settings.pod_load),
        )
        return next((f"{name} reached {target:.0%}" for name, now, target in targets if now >= target), "")
