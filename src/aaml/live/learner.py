"""An agent that decides here while it learns in a process of its own."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Self

from aaml import threads
from aaml.learning.agent import LearnedAgent
from aaml.learning.handover import opened, saved, take_acting_weights
from aaml.live.learner_process import Learned, LearnerProcess, Lesson, Pupil
from aaml.parallel.worker import open_answer
from aaml.scheduling.sight_log import SightLog
from aaml.scheduling.walk import never

if TYPE_CHECKING:
    from aaml.scheduling.observation import Context, ObservationSpec
    from aaml.scheduling.ports import Cluster, Decision, Policy, Transition
    from aaml.scheduling.queue_sort import QueueSort

_LOG = logging.getLogger("aaml")
_MOST_STEPS = 4096  # kept for a learner that cannot be started, beyond what learning goes on from
_MOST_NEWS = 64  # lessons whose weights nobody has taken yet, as no pod comes; the latest count
_LONGEST_PAUSE_S = 30.0
_START_S = 60.0  # what a learner may take until it is waited for no longer
_END_S = 20.0  # what the last lesson may take, of the half minute that Kubernetes gives a pod to end
_LOOK_S = 0.05
_GATHER_S = 0.05  # how long steps gather for a lesson: handing over one or twenty costs about the same


def waits(cluster: "Cluster") -> bool:
    """Whether the time of a cluster waits for who decides, as that of an in-process cluster does.

    There an agent learns between its decisions: nothing is late for it, and a seed gives the same run each time.
    """
    from aaml.sim.cluster import SimCluster
    from aaml.sim.threaded import ThreadedCluster

    return isinstance(cluster, SimCluster | ThreadedCluster)


@contextmanager
def apart(policy: "Policy", cluster: "Cluster") -> "Iterator[Policy]":
    """Yield a policy that learns as it is to decide on a cluster: an agent with a network learns apart where it can."""
    if isinstance(policy, LearnedAgent) and not waits(cluster):
        with LearnsApart(policy) as learner:
            yield learner
    else:
        yield policy


class LearnsApart:
    """Decides as `agent` does, and lets a process of its own learn: the weights come back as they are made.

    It learns between `start` and `stop`, or in a `with` block. Deciding never waits for learning: what was seen and
    gathered is kept here until it is of no more use, so that a learner that dies loses nothing of it; another one is
    started and goes on from the latest weights and all that was kept. Learning is behind by a lesson or two, and where
    it cannot keep up, more experience goes into each update. Once `stopped` says so, its start is not waited for.
    """

    learning = True

    def __init__(self, agent: LearnedAgent, stopped: Callable[[], bool] = never) -> None:
        self.agent, self._stopped = agent, stopped
        self.restarts = 0
        self._first_state = saved(agent, experience=True)
        self._pupil = Pupil(agent.config, replace(agent.sees, fragmentation=None), agent.scorer.spec, ())
        self._state = b""  # the latest that a learner handed back
        self._synced = True
        self._log = SightLog()
        self._steps: deque[Transition] = deque()
        self._begin = 0  # the number of the first of these steps, of all
        self._counted = 0  # the number of the first step that no learner has answered for
        self._oldest_sight = 0  # what a step that is not complete yet may have seen
        self._changed = threading.Condition()  # guards what stands above
        self._told_steps = self._told_sights = 0  # what the present learner knows, up to these numbers
        self._told_graph = -1
        self._pause_s = 0.0
        self._news: deque[Learned] = deque(maxlen=_MOST_NEWS)
        self._error: BaseException | None = None
        self._process: LearnerProcess | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._closing = False
        self._hurry = threading.Event()  # the end is near: lessons follow one another at once
        self._end_s = math.inf  # until when the last lesson is waited for

    # ---- the policy --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.agent.name

    @property
    def sees(self) -> "ObservationSpec":
        """What the agent looks at."""
        return self.agent.sees

    @property
    def queue_sort(self) -> "QueueSort | None":
        """The order in which the agent wants waiting pods."""
        return self.agent.queue_sort

    def act(self, context: "Context") -> "Decision":
        """Decide by the latest weights."""
        return self.agent.act(context)

    def perceive(self, context: "Context") -> int:
        """Keep what there is to see, and return its number."""
        sight = context.sight_by(self.sees)
        with self._changed:
            number = self._log.write(sight)
            most = 2 * (self.agent.memory + _MOST_STEPS)
            if len(self._log) > most:  # what was decided led to no steps
                self._forget_before(number - most // 2)
            return number

    def observe(self, transition: "Transition") -> None:
        """Keep a step for the learner."""
        self.agent.count(transition.reward)
        with self._changed:
            if int(transition.observation) < self._log.begin:
                return
            self._steps.append(transition)
            if len(self._steps) > self.agent.memory + _MOST_STEPS:
                self._drop_one()
                self._log.forget(self._oldest_needed())
            self._oldest_sight = int(transition.observation)
            self._changed.notify()

    def learn(self) -> Mapping[str, float]:
        """Take the weights that have come back meanwhile; returns what their update told.

        Raises what an update raised.
        """
        if self._error is not None:
            raise self._error
        if not self._news:
            return {}
        learned = self._news.popleft()
        if learned.weights is not None:
            take_acting_weights(self.agent, learned.weights)
        self.agent.updates = learned.updates
        return learned.scalars

    def catch_up(self) -> "Iterator[Mapping[str, float]]":
        """Wait until the learner has answered for all that was gathered, or too long; yields what its updates told.

        A short run may end before its first update has come back.
        """
        self._end_s = time.monotonic() + _END_S
        self._hurry_up()
        while self.waiting and self._error is None and time.monotonic() < self._end_s:
            time.sleep(_LOOK_S)
        while self._news:
            yield self.learn()

    def save(self, directory: str, stem: str) -> Sequence[str]:
        """Write the model files as the learner last handed them over."""
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
        """How many steps no learner has taken in yet."""
        with self._changed:
            return self._begin + len(self._steps) - self._counted

    def start(self) -> None:
        """Start the learner; it is not waited for."""
        if self._thread is not None:
            return
        self._closing, self._error, self._end_s = False, None, math.inf
        self._hurry.clear()
        self._ready.clear()
        self._thread = threads.start(self._teach, "lessons", self._fail)

    def stop(self) -> None:
        """Take over all that the learner has learned, its last lesson too unless that takes too long, and end it."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._hurry_up()
        if (thread := self._thread) is not None:
            end_s = min(self._end_s, time.monotonic() + _END_S)
            while thread.is_alive() and self.waiting and time.monotonic() < end_s:
                thread.join(_LOOK_S)
            if thread.is_alive() and self.waiting:
                _LOG.warning("learner process %d does not answer: its last lesson is lost", self.pid)
            while thread.is_alive():  # it is idle or loads: it has handed over all that it knows
                if (process := self._process) is not None:
                    process.kill()
                thread.join(_LOOK_S)
            self._thread = None
        self.sync()
        self._news.clear()

    def sync(self) -> None:
        """Bring the whole agent, optimisers included, to what the learner last handed over."""
        with self._changed:
            state, self._synced = (b"" if self._synced else self._state), True
        if state:
            handed_over = opened(state)
            self.agent.take_parts(handed_over)
            self.agent.updates = int(handed_over["fields"]["updates"])

    def __enter__(self) -> Self:
        """Start the learner and wait until it is there: importing torch would take the first decisions' time."""
        self.start()
        late_s = time.monotonic() + _START_S
        while not self._ready.wait(_LOOK_S) and not self._stopped():
            if time.monotonic() > late_s:
                _LOG.warning("the learner is not there after %g s: deciding begins without it", _START_S)
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the learner."""
        self.stop()

    def _hurry_up(self) -> None:
        self._hurry.set()
        if self._ready.is_set() and (process := self._process) is not None:
            process.hurry()

    # ---- the thread that teaches -------------------------------------------------------------------------------------

    def _teach(self) -> None:
        """Teach learners one after the other, until this one ends or learning raises."""
        while True:
            status = 0
            try:
                process = self._process = LearnerProcess(awaited=not self._ready.is_set())
                try:
                    self._teach_one(process)
                    return
                finally:
                    self._process = None
                    status = process.close()
            except (OSError, EOFError) as lost:
                self._pause_s = min(2 * self._pause_s + 1.0, _LONGEST_PAUSE_S)
                self._ready.set()
                with self._changed:
                    if not self._closing:
                        reason = f"status {status}" if status else str(lost)
                        _LOG.warning("the learner was lost (%s); another starts in %g s", reason, self._pause_s)
                        self._changed.wait_for(lambda: self._closing, self._pause_s)
                    if self._closing:
                        return
                self.restarts += 1

    def _fail(self, error: threads.ThreadError) -> None:
        """Let `learn` raise what learning has raised."""
        self._error = error.__cause__
        self._ready.set()

    def _teach_one(self, process: LearnerProcess) -> None:
        """Teach one learner's process until this one ends; raises OSError or EOFError when it is lost."""
        self._teach_lesson(process, self._first_lesson())
        _LOG.info("learner process %d goes on from %d steps", process.pid, len(self._steps))
        self._pause_s = 0.0
        self._ready.set()
        rest_s = 0.0
        while (lesson := self._next_lesson(rest_s)) is not None:
            learned = self._teach_lesson(process, lesson)
            rest_s = learned.rest_s
            if learned.weights is not None:
                self._news.append(learned)

    def _teach_lesson(self, process: LearnerProcess, lesson: Lesson) -> Learned:
        learned: Learned = open_answer(process.teach(lesson))
        with self._changed:
            self._counted = max(self._counted, self._told_steps)
            if learned.state:
                self._state, self._synced = learned.state, False
            while self._steps and self._begin < self._counted - learned.memory:
                self._drop_one()
            self._log.forget(self._oldest_needed())
        return learned

    def _first_lesson(self) -> Lesson:
        """Return all that is kept, with the latest weights."""
        with self._changed:
            states = (self._first_state, self._state) if self._state else (self._first_state,)
            self._told_steps, self._told_sights, self._told_graph = self._begin, 0, -1
            return self._lesson(self._pupil._replace(states=states))

    def _next_lesson(self, rest_s: float = 0.0) -> Lesson | None:
        """Wait for something to tell, and return that; None when this one ends and everything is told.

        Steps gather meanwhile, for `rest_s` at least unless the end is near.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._untaught() or self._closing)
        self._hurry.wait(max(_GATHER_S, rest_s))
        with self._changed:
            if not self._untaught():
                return None
            # A learner that did not answer for longer than is kept here begins anew with what is left.
            return self._first_lesson() if self._log.begin > self._told_sights else self._lesson(None)

    def _untaught(self) -> bool:
        return self._begin + len(self._steps) > self._told_steps

    def _lesson(self, pupil: Pupil | None) -> Lesson:
        """Return what the learner was not told yet."""
        start = max(self._told_steps, self._begin)
        lesson = Lesson(
            pupil,
            {number: graph for number, graph in self._log.graphs.items() if number > self._told_graph},
            self._log.entries(self._told_sights),
            list(islice(self._steps, start - self._begin, None)),
            known=max(self._counted - start, 0),
            forget=self._oldest_needed(),
            hurry=self._hurry.is_set(),
        )
        self._told_graph = max(self._log.graphs, default=-1)
        self._told_sights, self._told_steps = self._log.end, self._begin + len(self._steps)
        return lesson

    def _oldest_needed(self) -> int:
        return int(self._steps[0].observation) if self._steps else self._oldest_sight

    def _forget_before(self, sight: int) -> None:
        while self._steps and int(self._steps[0].observation) < sight:
            self._drop_one()
        self._log.forget(sight)

    def _drop_one(self) -> None:
        self._steps.popleft()
        self._begin += 1
