"""The live table of a cluster: nodes and pods, CPU and memory, what is pending and what was placed last."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

from aaml.cluster.objects import Node
from aaml.extras import lazily
from aaml.kube.watcher import ClusterWatch
from aaml.live.promise import LatestPromise
from aaml.live.settings import Folders
from aaml.nodes.prices import PriceList
from aaml.telemetry.run_tail import IN_PROCESS, RunTail, newest_log
from aaml.telemetry.snapshot import Snapshot
from aaml.telemetry.top import TopModel, render

if TYPE_CHECKING:
    from aaml.cluster.state import ClusterState
    from aaml.sim.threaded import ThreadedCluster
    from aaml.telemetry import ktop
else:  # an extra, and not for one look
    ktop = lazily("aaml.telemetry.ktop")

T = TypeVar("T")
Price = Callable[[Node], float | None]
_UNBOUNDED = 100_000  # columns
_TURN_S = 0.1  # how soon a key or a stop is noticed


class KubeInfo:
    """The table of a cluster: `print(KubeInfo())` for one look, `show()` for a live one.

    Parameters
    ----------
    cluster, kubeconfig:
        The in-process cluster, or else the one of a kubeconfig.
    log:
        A scheduler's log (logs/*.jsonl) whose decisions and curves are shown; without it the one in logs/ of this
        cluster that was written to in the last hour.
    prices:
        What nodes cost; without it the types that ship, and what nodes say of themselves.

    """

    def __init__(
        self,
        *,
        cluster: "ThreadedCluster | None" = None,
        kubeconfig: Path | str | None = None,
        log: Path | None = None,
        prices: PriceList | None = None,
    ) -> None:
        self._cluster, self._prices = cluster, prices or PriceList.read(None)
        self._kubeconfig = kubeconfig
        self._log = log
        self._stop = threading.Event()

    def __str__(self) -> str:
        return self.table()

    def table(self, *, width: int | None = None, height: int | None = None) -> str:
        """Return the table as it is now, for the terminal's size where none is given; elsewhere lines of any width."""
        with self._looking() as source:
            run = self._run(source)
            return source.look(lambda model, state: _text(model, state, run, width, height))

    def snapshot(self) -> Snapshot:
        """Return what there is to see now, as a value."""
        with self._looking() as source:
            run = self._run(source)
            return source.look(lambda model, state: Snapshot.take(model, state, run))

    def show(self, every_s: float = 1.0, *, as_json: bool = False) -> None:
        """Show the table until `stop()`: in place at a terminal, one below the other in a pipe.

        With `as_json` each look is a line of JSON.
        """
        self._stop.clear()
        main = threading.current_thread() is threading.main_thread()
        with self._looking() as source:
            if Console().is_terminal and main and not as_json:
                self._screen(source, every_s)
                return
            run, show = self._run(source), _line if as_json else _text
            while True:
                print(source.look(lambda model, state: show(model, state, run)))
                if self._stop.is_set() or not source.wait(every_s, self._stop.is_set):
                    return

    def stop(self) -> None:
        """End a `show` soon."""
        self._stop.set()

    def _screen(self, source: "_Watched | _InProcess", every_s: float) -> None:
        run = self._run(source)

        def feed(app: "ktop.Ktop") -> None:
            shown = ""

            def interrupted() -> bool:
                return app.has_ended.is_set() or self._stop.is_set() or app.node != shown

            while not app.has_ended.is_set() and not self._stop.is_set():
                shown = app.node
                app.hand(source.look(partial(Snapshot.take, run=run, node=shown)))
                source.wait(every_s, interrupted)
            if not app.has_ended.is_set():
                app.call_from_thread(app.exit)

        app = ktop.Ktop(feed)
        app.run()
        if app.failed is not None:
            raise app.failed

    def _run(self, source: "_Watched | _InProcess") -> RunTail | None:
        where = source.look(lambda model, _state: model.title)
        path = self._log or newest_log(Folders().logs, where, now_s=time.time())
        return None if path is None else RunTail(path)

    @contextmanager
    def _looking(self) -> "Iterator[_Watched | _InProcess]":
        price = self._prices.price
        source = _Watched(self._kubeconfig, price) if self._cluster is None else _InProcess(self._cluster, price)
        try:
            yield source
        finally:
            source.close()


class _Watched:
    """A live cluster; all but the making belongs to one thread at a time."""

    def __init__(self, kubeconfig: Path | str | None, price: Price) -> None:
        self._watch = ClusterWatch.connect(kubeconfig, connections=2)
        self._model = TopModel(self._watch.transport.server, price)
        self._model.watch(self._watch.state)
        self._promise = LatestPromise(self._watch.transport)

    def look(self, use: "Callable[[TopModel, ClusterState], T]") -> T:
        """Return what `use` makes of the cluster as it is now."""
        self._model.pending, self._model.promise = self._watch.pending, self._promise.text()
        return use(self._model, self._watch.state)

    def wait(self, seconds: float, ended: Callable[[], bool]) -> bool:
        """Take in what happens for so long, or until `ended()`; returns whether it was for so long."""
        return _in_turns(seconds, ended, lambda turn_s: self._watch.pump_until(ended, turn_s))

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()


class _InProcess:
    """An in-process cluster, which somebody else closes."""

    def __init__(self, cluster: "ThreadedCluster", price: Price) -> None:
        self._cluster, self._model = cluster, TopModel(IN_PROCESS, price)
        cluster.call(self._model.watch)

    def look(self, use: "Callable[[TopModel, ClusterState], T]") -> T:
        """Return what `use` makes of the cluster as it is now."""
        model = self._model

        def with_pending(pending: int, state: "ClusterState") -> T:
            model.pending = pending
            return use(model, state)

        return self._cluster.do(lambda sim: with_pending(len(sim.journal.waiting_since_s), sim.state))

    def wait(self, seconds: float, ended: Callable[[], bool]) -> bool:
        """Wait for so long, or until `ended()`; returns whether it was for so long."""
        return _in_turns(seconds, ended, time.sleep)

    def close(self) -> None:
        """Nothing to let go of."""


def _in_turns(seconds: float, ended: Callable[[], bool], spend: Callable[[float], object]) -> bool:
    """Spend so long in short turns, or less when `ended()`; returns whether it was for so long."""
    deadline_s = time.monotonic() + seconds
    while not ended():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return True
        spend(min(left_s, _TURN_S))
    return False


def _text(
    model: TopModel, state: "ClusterState", run: RunTail | None, width: int | None = None, height: int | None = None
) -> str:
    if run is not None:
        run.read()
    columns, lines = shutil.get_terminal_size((_UNBOUNDED, 40))  # a pipe has no width
    return render(model, state, run, width=width or columns, height=height or lines - 1)


def _line(model: TopModel, state: "ClusterState", run: RunTail | None) -> str:
    return json.dumps(Snapshot.take(model, state, run).to_dict())
