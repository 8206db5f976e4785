"""Those who only look: a recorder of what any scheduler does, and the table of a cluster."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.experiment.build import DEFAULT_REWARD, Folders

if TYPE_CHECKING:
    from aaml.cluster.objects import Pod
    from aaml.cluster.state import ClusterState
    from aaml.scheduling.cycle import Reward
    from aaml.scheduling.observation import Context
    from aaml.sim.live import LiveCluster
    from aaml.telemetry.recording import RecordingWriter
    from aaml.telemetry.top import TopModel

_LOOK_EVERY_S = 0.5
_SCREEN = "\x1b[H\x1b[2J"  # cursor home, clear: what `watch` does


class SchedulerRecord:
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
        self.scheduler_name = scheduler_name
        self.folders = folders
        self.path = path
        self._kubeconfig = kubeconfig
        self._reward = reward
        self._max_pods = max_pods
        self._stop = threading.Event()
        self.ready = threading.Event()
        """Set once it watches: what is placed from then on is recorded."""

    def run(self) -> Path:
        """Record and return the file's path."""
        from aaml.kube.watcher import ClusterWatch
        from aaml.scheduling.registry import make_reward
        from aaml.telemetry.console import LOG, stamp, unused_path
        from aaml.telemetry.recording import RecordingWriter

        self._stop.clear()
        reward = make_reward(self._reward)
        path = self.path or unused_path(self.folders.data, f"sched_{stamp()}", ".csv")
        writer = RecordingWriter(path)
        listener = _Recording(self.scheduler_name, reward, writer)
        watch = ClusterWatch.connect(self._kubeconfig, listener=listener)
        try:
            LOG.info("recording the placements of %r in %s", self.scheduler_name, path)
            self.ready.set()
            while not self._stop.is_set() and (self._max_pods is None or listener.seen < self._max_pods):
                watch.pump(_LOOK_EVERY_S)
        finally:
            watch.close()
            writer.close()
            self.ready.clear()
        LOG.info("%d placements recorded, %d on nodes that came later left out", writer.written, writer.skipped)
        self.path = path
        return path

    def stop(self) -> None:
        """End soon; the file is complete then."""
        self._stop.set()


class _Recording:
    """Judges and writes each placement of one scheduler (see `aaml.kube.watcher.Listener`)."""

    def __init__(self, scheduler_name: str, reward: "Reward", writer: "RecordingWriter") -> None:
        self._scheduler_name = scheduler_name
        self._reward = reward
        self._writer = writer
        self._context: Context | None = None
        self.seen = 0

    def before(self, state: "ClusterState", pod: "Pod") -> None:
        """Look at the state without the pod."""
        import dataclasses

        from aaml.cluster.filters import feasible
        from aaml.scheduling.observation import Context, Featurizer

        self._context = None
        if pod.scheduler_name == self._scheduler_name:
            waiting = dataclasses.replace(pod, node_name="")
            self._context = Context(state, waiting, feasible(state, waiting).mask, Featurizer())
            self._reward.before(self._context)

    def after(self, state: "ClusterState", pod: "Pod") -> None:
        """Judge the placement and write it."""
        if self._context is not None:
            reward = self._reward.after(self._context, state.index[pod.node_name])
            self._writer.placed(state, pod, pod.node_name, reward)
            self.seen += 1


class KubeInfo:
    """The table of a cluster: `print(KubeInfo())` for one look, `show()` for a live one."""

    def __init__(self, *, cluster: "LiveCluster | None" = None, kubeconfig: Path | str | None = None) -> None:
        self._cluster = cluster
        self._kubeconfig = kubeconfig
        self._stop = threading.Event()

    def __str__(self) -> str:
        return self.table()

    def table(self, *, width: int | None = None, height: int | None = None) -> str:
        """Return the table as it is now, for the terminal's size where none is given."""
        frames: list[str] = []

        def once(text: str) -> bool:
            frames.append(text)
            return False

        self._watch(once, 0.0, width, height)
        return frames[0]

    def show(self, every_s: float = 1.0) -> None:
        """Show the table until `stop()`."""
        self._stop.clear()

        def draw(text: str) -> bool:
            print(_SCREEN + text, flush=True)
            return not self._stop.is_set()

        self._watch(draw, every_s, None, None)

    def stop(self) -> None:
        """End a `show` soon."""
        self._stop.set()

    def _watch(self, use: Callable[[str], bool], every_s: float, width: int | None, height: int | None) -> None:
        from aaml.telemetry.top import TopModel, render

        def text(model: "TopModel", state: "ClusterState") -> str:
            columns, lines = shutil.get_terminal_size((110, 40))
            return render(model, state, width=width or columns, height=height or lines - 1)

        if self._cluster is not None:
            cluster, model = self._cluster, TopModel("in-process cluster")
            cluster.call(model.watch)
            while use(cluster.do(lambda sim: _with_pending(model, len(sim.journal.waiting_since_s), sim.state, text))):
                time.sleep(every_s)
            return
        from aaml.kube.watcher import ClusterWatch

        watch = ClusterWatch.connect(self._kubeconfig, connections=2)
        try:
            model = TopModel(watch.transport.server)
            model.watch(watch.state)
            while use(_with_pending(model, watch.pending, watch.state, text)):
                watch.pump_until(self._stop.is_set, every_s)
        finally:
            watch.close()


def _with_pending(
    model: "TopModel", pending: int, state: "ClusterState", text: "Callable[[TopModel, ClusterState], str]"
) -> str:
    model.pending = pending
    return text(model, state)
