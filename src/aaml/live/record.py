"""Recording what happens on a Kubernetes cluster: as a trace, or as the table of what one scheduler did.

Both are made of the same events (`aaml.live.recorder`); the table can also be made of a trace that was recorded before.
"""

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from aaml.cluster.filters import feasible
from aaml.live.recorder import Recorder
from aaml.live.settings import DEFAULT_REWARD, Folders
from aaml.outputs import refuse_overwriting
from aaml.policies.registry import make_reward
from aaml.scheduling.observation import Context
from aaml.telemetry.console import LOG, stamp, unused_path
from aaml.telemetry.recording import RecordingWriter, nodes_path
from aaml.workload.trace.names import NameHasher
from aaml.workload.trace.store import TraceWriter
from aaml.workload.trace.trace import Follower

if TYPE_CHECKING:
    from aaml.live.recorder import Sink
    from aaml.scheduling.cycle import Reward
    from aaml.workload.trace.events import AnyEvent

_LOOK_EVERY_S = 0.5
_TELL_EVERY_S = 10.0


class _Record:
    """Watches a cluster until `stop()`."""

    def __init__(self, kubeconfig: Path | str | None) -> None:
        self._kubeconfig = kubeconfig
        self._stop = threading.Event()
        self.ready = threading.Event()
        """Set once it watches: what happens from then on is recorded."""

    def stop(self) -> None:
        """End soon; what was recorded is whole then."""
        self._stop.set()

    def _watch(
        self, what: str, sink: "Sink", enough: Callable[[], bool], turn: Callable[[], None] = lambda: None
    ) -> None:
        recorder = Recorder.connect(self._kubeconfig, sink)
        try:
            LOG.info("recording %s until Ctrl-C or SIGTERM", what)
            self.ready.set()
            told_s = time.monotonic()
            while not self._stop.is_set() and not enough():
                recorder.pump(_LOOK_EVERY_S)
                if time.monotonic() - told_s >= _TELL_EVERY_S:
                    told_s = time.monotonic()
                    recorder.watched()
                turn()
            recorder.pump(_LOOK_EVERY_S)  # what happened before the end may be on its way
            recorder.watched()
        finally:
            recorder.close()
            self.ready.clear()
            self._stop.clear()


class TraceRecord(_Record):
    """Records a cluster into a trace's folder until `stop()`, or for some seconds; a folder that is there goes on.

    With a `key` all names are replaced by a hash (`aaml.workload.trace.names`).
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        kubeconfig: Path | str | None = None,
        seconds: float | None = None,
        key: bytes | None = None,
    ) -> None:
        super().__init__(kubeconfig)
        self.folder = Path(folder)
        self.counts: dict[str, int] = {}
        """How many events of each kind were recorded."""
        self._seconds, self._key = seconds, key

    def run(self, on_turn: Callable[[Self], object] = lambda _record: None) -> Path:
        """Record and return the folder; `on_turn` is called twice a second.

        Raises `UserError` where there is no cluster, no permission or no room.
        """
        begun_s = time.monotonic()
        names = None if self._key is None else NameHasher(self._key)
        with TraceWriter(self.folder) as writer:

            def take(event: "AnyEvent") -> None:
                kind = str(event.__struct_config__.tag)
                self.counts[kind] = self.counts.get(kind, 0) + 1
                writer.write(event if names is None else names(event))

            def turn() -> None:
                writer.flush()
                on_turn(self)

            def enough() -> bool:
                return self._seconds is not None and time.monotonic() - begun_s >= self._seconds

            seconds = "" if self._seconds is None else f" for {self._seconds:g} s, or"
            self._watch(f"into {self.folder}{seconds}", take, enough, turn)
        return self.folder


class SchedulerRecord(_Record):
    """Records what a scheduler does on a Kubernetes cluster into data/sched_*.csv, until `stop()` or `max_pods`.

    `scheduler_name` is whose pods are recorded: kube-scheduler's by default. The reward is computed here, as if the
    decisions had been ours, so that replay buffers can be filled from it.
    """

    def __init__(
        self,
        scheduler_name: str = "default-scheduler",
        *,
        kubeconfig: Path | str | None = None,
        reward: str = DEFAULT_REWARD,
        max_pods: int | None = None,
        path: Path | None = None,
        folders: Folders = Folders(),  # noqa: B008  (frozen)
    ) -> None:
        super().__init__(kubeconfig)
        self.scheduler_name = scheduler_name
        self.folders = folders
        self.path = path
        self._reward = reward
        self._max_pods = max_pods

    def run(self) -> Path:
        """Record and return the file's path. Raises `UserError` for a file that is there: its rows would be lost."""
        path = self.path or unused_path(self.folders.data, f"sched_{stamp()}", ".csv")
        refuse_overwriting([each for each in (path, nodes_path(path)) if each.is_file()], (), going_on=False)
        table = PlacementTable(path, self.scheduler_name, make_reward(self._reward), self._max_pods)
        try:
            self._watch(f"the placements of {self.scheduler_name!r} in {path}", table.take, lambda: table.full)
        finally:
            table.close()
        LOG.info("%d placements recorded, %d on nodes that came later left out", table.written, table.skipped)
        self.path = path
        return path


class PlacementTable(RecordingWriter):
    """Evaluates each placement of one scheduler and writes it as a row."""

    def __init__(self, path: Path, scheduler_name: str, reward: "Reward", max_pods: int | None = None) -> None:
        super().__init__(path)
        self._scheduler_name, self._reward, self._max_pods = scheduler_name, reward, max_pods
        self._follower = Follower()
        self._seen = 0

    @property
    def full(self) -> bool:
        """Whether there are as many placements as wanted."""
        return self._max_pods is not None and self._seen >= self._max_pods

    def take(self, event: "AnyEvent") -> None:
        """Handle an event; a placement is evaluated by the states just before and just after it."""
        pod = self._follower.decided(event)
        if pod is None or pod.scheduler_name != self._scheduler_name or self.full:
            self._follower.apply(event)
            return
        state = self._follower.state
        context = Context(state, pod, feasible(state, pod).mask)
        self._reward.before(context)
        self._follower.apply(event)
        node_name = state.placements[pod.uid].node_name
        self.placed(state, pod, node_name, self._reward.after(context, state.index[node_name]))
        self._seen += 1

    def take_all(self, events: "Iterable[AnyEvent]") -> None:
        """Take the events of a trace that was recorded before, and close the table."""
        for event in events:
            self.take(event)
        self.close()
