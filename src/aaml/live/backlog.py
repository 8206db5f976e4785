"""What was seen and gathered, kept until a learner in another process is done with it.

Two threads use a `Backlog`: who decides writes, who talks with the learner reads. A lock of its own guards all of it.
"""

import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from aaml.live.learner_process import AgentSetup, ExperienceBatch, Update
from aaml.scheduling.observation_log import ObservationLog

if TYPE_CHECKING:
    from aaml.scheduling.observation import RawObservation
    from aaml.scheduling.ports import Transition

MOST_STEPS = 4096  # kept for a learner that cannot be started, beyond what learning goes on from
_GATHER_S = 0.05  # how long steps gather for a batch: handing over one or twenty costs about the same


class Backlog:
    """The experience that no learner has finished with, as batches for one learner after the other.

    A learner that dies loses nothing: its successor gets `first`, all that is kept and the latest state. `memory` is
    the number of latest steps that learning uses.
    """

    def __init__(self, setup: AgentSetup, memory: Callable[[], int]) -> None:
        self._setup, self._memory = setup, memory
        self._state = b""  # the latest that a learner handed back
        self._synced = True  # whether somebody has taken it
        self._log = ObservationLog()
        self._steps: deque[Transition] = deque()
        self._begin = 0  # the number of the first of these steps, of all
        self._answered = 0  # the number of the first step that no learner has answered for
        self._oldest_sight = 0  # what a step that is not complete yet may have seen
        self._told_steps = self._told_sights = 0  # what the present learner knows, up to these numbers
        self._told_graph = -1
        self._closing = False
        self._changed = threading.Condition()
        self.hurry = threading.Event()
        """The end is near: batches follow one another at once."""

    def __len__(self) -> int:
        """How many steps are kept."""
        with self._changed:
            return len(self._steps)

    @property
    def observations(self) -> int:
        """How many observations are kept."""
        with self._changed:
            return len(self._log)

    @property
    def waiting(self) -> int:
        """The number of steps that no learner has received yet."""
        with self._changed:
            return self._begin + len(self._steps) - self._answered

    # ---- who decides -------------------------------------------------------------------------------------------------

    def write(self, raw: "RawObservation") -> int:
        """Append an observation to the log and return its number."""
        with self._changed:
            number = self._log.write(raw)
            most = 2 * (self._memory() + MOST_STEPS)
            if len(self._log) > most:  # what was decided led to no steps
                oldest = number - most // 2
                while self._steps and int(self._steps[0].observation) < oldest:
                    self._drop_one()
                self._log.forget(oldest)
            return number

    def add(self, step: "Transition") -> None:
        """Append a step. Its observations are indices into the observation log."""
        with self._changed:
            if int(step.observation) < self._log.begin:
                return
            self._steps.append(step)
            if len(self._steps) > self._memory() + MOST_STEPS:
                self._drop_one()
                self._log.forget(self._oldest_needed())
            self._oldest_sight = int(step.observation)
            self._changed.notify()

    def open(self) -> None:
        """Let `next` wait for more."""
        with self._changed:
            self._closing = False
        self.hurry.clear()

    def close(self) -> None:
        """Let `next` return None once everything was sent."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def take_state(self) -> bytes:
        """Return the latest state that a learner sent, empty where it was taken already."""
        with self._changed:
            state, self._synced = (b"" if self._synced else self._state), True
        return state

    # ---- who talks with the learner ----------------------------------------------------------------------------------

    def first(self) -> ExperienceBatch:
        """Return all that is kept, with the latest state, for a learner that knows nothing."""
        with self._changed:
            return self._anew()

    def next(self, pause_s: float = 0.0) -> ExperienceBatch | None:
        """Wait for new experience and return it as a batch; None once this is closed and everything was sent.

        Steps are collected for at least `pause_s` unless there is a hurry.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._untold() or self._closing)
        self.hurry.wait(max(_GATHER_S, pause_s))
        with self._changed:
            if not self._untold():
                return None
            # A learner that did not answer for longer than is kept here begins anew with what is left.
            return self._anew() if self._log.begin > self._told_sights else self._batch(None)

    def answered(self, update: Update) -> None:
        """Handle a learner's answer: drop what it has finished with."""
        with self._changed:
            self._answered = max(self._answered, self._told_steps)
            if update.state:
                self._state, self._synced = update.state, False
            while self._steps and self._begin < self._answered - update.memory:
                self._drop_one()
            self._log.forget(self._oldest_needed())

    def pause(self, seconds: float) -> bool:
        """Wait so long unless this one is closed; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closing, seconds)

    # ---- with the lock held ------------------------------------------------------------------------------------------

    def _untold(self) -> bool:
        return self._begin + len(self._steps) > self._told_steps

    def _anew(self) -> ExperienceBatch:
        self._told_steps, self._told_sights, self._told_graph = self._begin, 0, -1
        states = (*self._setup.states, self._state) if self._state else self._setup.states
        return self._batch(self._setup._replace(states=states))

    def _batch(self, setup: AgentSetup | None) -> ExperienceBatch:
        """Return what the learner has not received yet."""
        start = max(self._told_steps, self._begin)
        batch = ExperienceBatch(
            setup,
            {number: graph for number, graph in self._log.graphs.items() if number > self._told_graph},
            self._log.entries(self._told_sights),
            list(islice(self._steps, start - self._begin, None)),
            known=max(self._answered - start, 0),
            forget=self._oldest_needed(),
            hurry=self.hurry.is_set(),
        )
        self._told_graph = max(self._log.graphs, default=-1)
        self._told_sights, self._told_steps = self._log.end, self._begin + len(self._steps)
        return batch

    def _oldest_needed(self) -> int:
        return int(self._steps[0].observation) if self._steps else self._oldest_sight

    def _drop_one(self) -> None:
        self._steps.popleft()
        self._begin += 1
