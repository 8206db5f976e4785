"""An agent that decides here while it learns in a process of its own."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from aaml import threads
from aaml.learning.agent import NeuralAgent
from aaml.learning.checkpoint import archived, opened
from aaml.live.backlog import Backlog
from aaml.live.learner_process import AgentSetup, ExperienceBatch, LearnerProcess, Update
from aaml.parallel.worker import open_answer
from aaml.scheduling.loop import never
from aaml.sim.cluster import SimCluster
from aaml.sim.threaded import ThreadedCluster

if TYPE_CHECKING:
    from aaml.scheduling.observation import Context, ObservationSpec
    from aaml.scheduling.ports import Cluster, Decision, Policy, Transition
    from aaml.scheduling.queue_sort import QueueSort

_LOG = logging.getLogger("aaml")
_MOST_UPDATES = 64  # whose weights nobody has taken yet, as no pod comes; the latest count
_LONGEST_PAUSE_S = 30.0
_START_S = 60.0  # what a learner may take until it is waited for no longer
_END_S = 20.0  # what the last batch may take, of the half minute that Kubernetes gives a pod to end
_LOOK_S = 0.05


def waits(cluster: "Cluster") -> bool:
    """Whether the cluster's clock stands still while the policy decides, as that of an in-process cluster does.

    There the agent learns between its decisions: nothing becomes late, and a seed gives the same run each time.
    """
    return isinstance(cluster, SimCluster | ThreadedCluster)


@contextmanager
def apart(policy: "Policy", cluster: "Cluster") -> "Iterator[Policy]":
    """Yield a policy that learns as it is to decide on a cluster: an agent with a network learns apart where it can."""
    if isinstance(policy, NeuralAgent) and not waits(cluster):
        with AsynchronousLearner(policy) as learner:
            yield learner
    else:
        yield policy


class AsynchronousLearner:
    """Decides as `agent` does, and lets a process of its own learn: the weights come back as they are made.

    It learns between `start` and `stop`, or in a `with` block. Deciding never waits for learning: what was seen and
    gathered is kept here until it is of no more use, so that a learner that dies loses nothing of it; another one is
    started and goes on from the latest weights and all that was kept. Learning is behind by a batch or two, and where
    it cannot keep up, more experience goes into each update.

    Who decides, one thread at a time, calls the methods and alone uses the agent, `_thread` and `_end_s`. The thread
    that teaches alone uses `_pause_s`, and alone sets `_error`, `_process` and `restarts`, each at once. Both use what
    guards itself: the backlog, the deque `_updates` and the event `_there`. Any thread may ask for `pid`, `restarts`
    and `waiting`, as the one that tells metrics does.
    """

    learning = True

    def __init__(self, agent: NeuralAgent) -> None:
        self.agent = agent
        observation_spec = replace(agent.observation_spec, fragmentation=None)
        setup = AgentSetup(agent.config, observation_spec, agent.network.spec, (archived(agent.state()),))
        self.backlog = Backlog(setup, lambda: agent.memory)
        self._updates: deque[Update] = deque(maxlen=_MOST_UPDATES)
        self._error: BaseException | None = None  # that ended learning
        self._process: LearnerProcess | None = None
        self.restarts = 0
        """How many learners have followed a lost one."""
        self._there = threading.Event()  # a learner is, or cannot be had
        self._thread: threading.Thread | None = None
        self._end_s = math.inf  # until when the last update is waited for
        self._pause_s = 0.0  # before the learner after a lost one

    # ---- the policy --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.agent.name

    @property
    def observation_spec(self) -> "ObservationSpec":
        """What the agent looks at."""
        return self.agent.observation_spec

    @property
    def queue_sort(self) -> "QueueSort | None":
        """The order in which the agent wants waiting pods."""
        return self.agent.queue_sort

    def act(self, context: "Context") -> "Decision":
        """Decide by the latest weights."""
        return self.agent.act(context)

    def observation_of(self, context: "Context") -> int:
        """Keep what there is to see, and return its number."""
        return self.backlog.write(context.raw_observation_by(self.observation_spec))

    def observe(self, transition: "Transition") -> None:
        """Keep a step for the learner."""
        self.agent.count(transition.reward)
        self.backlog.add(transition)

    def learn(self) -> Mapping[str, float]:
        """Load the weights that have arrived and return the scalars of their update.

        Raises the error of an update.
        """
        if self._error is not None:
            raise self._error
        if not self._updates:
            return {}
        update = self._updates.popleft()
        if update.weights is not None:
            self.agent.take_weights(update.weights)
        self.agent.updates = update.updates
        return update.scalars

    def catch_up(self) -> Iterator[Mapping[str, float]]:
        """Wait until the learner has answered for all experience, or a time limit; yields the scalars of its updates.

        A short run may end before its first update has arrived. Raises the error of an update.
        """
        self._end_s = time.monotonic() + _END_S
        self._hurry_up()
        while self.waiting and self._error is None and time.monotonic() < self._end_s:
            time.sleep(_LOOK_S)
        while scalars := self.learn():
            yield scalars

    def save(self, directory: str, stem: str) -> Sequence[str]:
        """Write the model files as the learner last sent them."""
        self.sync()
        return self.agent.save(directory, stem)

    # ---- the learner -------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The learner's process, 0 while there is none."""
        process = self._process
        return 0 if process is None else process.pid

    @property
    def waiting(self) -> int:
        """The number of steps that no learner has received yet."""
        return self.backlog.waiting

    def wait(self, seconds: float) -> bool:
        """Wait so long for the learner to be there; returns whether it is, or cannot be had."""
        return self._there.wait(seconds)

    def start(self) -> None:
        """Start the learner without waiting for it."""
        if self._thread is not None:
            return
        self._end_s = math.inf
        self.backlog.open()
        self._there.clear()
        self._thread = threads.start(self._teach, "learner", self._fail)

    def stop(self) -> None:
        """End the learner, after its last batch unless that takes too long, and load all that it has learned."""
        self.backlog.close()
        self._hurry_up()
        if (thread := self._thread) is not None:
            end_s = min(self._end_s, time.monotonic() + _END_S)
            while thread.is_alive() and self.waiting and time.monotonic() < end_s:
                thread.join(_LOOK_S)
            if thread.is_alive() and self.waiting:
                _LOG.warning("learner process %d does not answer: its last batch is lost", self.pid)
            while thread.is_alive():  # it is idle or loads: it has handed over all that it knows
                if (process := self._process) is not None:
                    process.kill()
                thread.join(_LOOK_S)
            self._thread = None
        self.sync()
        self._updates.clear()
        self._error = None

    def sync(self) -> None:
        """Load the whole agent, optimisers included, as the learner last sent it."""
        if state := self.backlog.take_state():
            handed_over = opened(state)
            self.agent.take_parts(handed_over)
            self.agent.updates = int(handed_over["fields"]["updates"])

    def await_start(self, stopped: Callable[[], bool] = never) -> None:
        """Wait until the learner has started, `stopped()` is true, or a time limit.

        Importing torch would take time from the first decisions.
        """
        late_s = time.monotonic() + _START_S
        while not self._there.wait(_LOOK_S) and not stopped():
            if time.monotonic() > late_s:
                _LOG.warning("the learner is not there after %g s: deciding begins without it", _START_S)
                break

    def __enter__(self) -> Self:
        """Start the learner and wait until it is there."""
        self.start()
        self.await_start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the learner."""
        self.stop()

    def _hurry_up(self) -> None:
        self.backlog.hurry.set()
        if self._there.is_set() and (process := self._process) is not None:
            process.hurry()

    # ---- the thread that teaches -------------------------------------------------------------------------------------

    def _teach(self) -> None:
        """Teach learners one after the other, until this one ends or learning raises."""
        while True:
            status = 0
            try:
                process = self._process = LearnerProcess(awaited=not self._there.is_set())
                try:
                    self._teach_one(process)
                    return
                finally:
                    self._process = None
                    status = process.close()
            except (OSError, EOFError) as lost:
                self._pause_s = min(2 * self._pause_s + 1.0, _LONGEST_PAUSE_S)
                self._there.set()
                if self.backlog.pause(0.0):
                    return
                reason = f"status {status}" if status else str(lost)
                _LOG.warning("the learner was lost (%s); another starts in %g s", reason, self._pause_s)
                if self.backlog.pause(self._pause_s):
                    return
                self.restarts += 1

    def _fail(self, error: threads.ThreadError) -> None:
        """Let `learn` raise what learning has raised."""
        self._error = error.__cause__
        self._there.set()

    def _teach_one(self, process: LearnerProcess) -> None:
        """Teach one learner's process until this one ends; raises OSError or EOFError when it is lost."""
        self._tell(process, self.backlog.first())
        _LOG.info("learner process %d goes on from %d steps", process.pid, len(self.backlog))
        self._pause_s = 0.0
        self._there.set()
        pause_s = 0.0
        while (batch := self.backlog.next(pause_s)) is not None:
            update = self._tell(process, batch)
            pause_s = update.pause_s
            if update.weights is not None:
                self._updates.append(update)

    def _tell(self, process: LearnerProcess, batch: ExperienceBatch) -> Update:
        update: Update = open_answer(process.teach(batch))
        self.backlog.answered(update)
        return update
