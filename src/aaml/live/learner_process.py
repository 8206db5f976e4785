"""The process that learns beside a scheduler: takes experience over a socket, hands weights back.

It ends with the scheduler, whose socket closes then, and on nobody's signal but SIGKILL: supervisors send theirs to a
whole group, and what the last batch taught is still to be handed over. It runs where nobody else wants a processor
(`step_back`) and for a part of the time only (`Pace`), so that decisions come first and learning takes what they leave.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aaml.cluster.objects import Node
from aaml.cluster.quantity import CPU, MEMORY, PODS
from aaml.cluster.state import ClusterState
from aaml.cluster.topology import Graph
from aaml.learning.agents import make_agent
from aaml.learning.checkpoint import archived, opened
from aaml.learning.config import NetworkAgent
from aaml.learning.networks import NetworkSpec
from aaml.learning.policy import Weights, single_threaded
from aaml.parallel.worker import Desk
from aaml.scheduling.observation import NO_POD, ObservationSpec
from aaml.scheduling.observation_log import Entry, ObservationLog, Recalled, Recaller
from aaml.scheduling.ports import Transition

if TYPE_CHECKING:
    from aaml.learning.agent import NeuralAgent

SHARE = 0.25  # of a core at most: on 1,000 nodes a learner that went on at once took half of one, and pods waited
_REHEARSED = 1024  # steps at most until a twin has learned from its own
_HURRY = b""
NICENESS = 19  # where there is no idle class: of two processes that want one core, this one gets a seventieth of it
LOADING_NICENESS = 10  # a tenth: in the idle class, to load and to learn anew took two minutes on a busy machine
AUTOGROUP = Path("/proc/self/autogroup")
_ATTEMPTS, _AGAIN_S = 10, 0.15


class AgentSetup(NamedTuple):
    """The agent to be taught: its settings, what it observes, and the `states` it takes in turn (see `archived`)."""

    config: NetworkAgent
    observation_spec: ObservationSpec
    like: NetworkSpec
    states: Sequence[bytes]


class ExperienceBatch(NamedTuple):
    """The experience since the batch before.

    The observations of `steps` are numbers in the log. The first `known` steps were counted by an earlier learner. No
    later step has an observation before `forget`.
    """

    setup: AgentSetup | None
    graphs: Mapping[int, Graph]
    observations: Sequence[Entry]
    steps: Sequence[Transition]
    known: int = 0
    forget: int = 0
    hurry: bool = False


class Update(NamedTuple):
    """The answer to a batch: how many of the latest steps are still needed, and the scalars and weights of an update.

    `weights` are those of the policy, `state` is where the next learner begins, and `pause_s` is how long the learner
    pauses before the next batch.
    """

    memory: int
    updates: int = 0
    pause_s: float = 0.0
    scalars: Mapping[str, float] = {}
    weights: Weights | None = None
    state: bytes = b""


class Pace:
    """Limits learning to `SHARE` of a core, by pauses between the steps of an update.

    `hurried(seconds)` waits for at most that long and returns whether there is a hurry, in which there are no pauses.
    """

    def __init__(self, hurried: Callable[[float], bool]) -> None:
        self._hurried = hurried
        self._hurry = False
        self._owed_s = 0.0
        self._mark_s = time.process_time()

    def begin(self, *, hurry: bool) -> None:
        """Count from here on; with `hurry` there are no pauses."""
        self._hurry, self._owed_s, self._mark_s = hurry, 0.0, time.process_time()

    def step(self) -> None:
        """Pause for the step before this one: the last step of an update is answered at once."""
        owed_s, self._owed_s = self._owed_s, self._count()
        if owed_s > 0.0 and not self._hurry:
            self._hurry = self._hurried(owed_s)
        self._mark_s = time.process_time()

    def owed_s(self) -> float:
        """Return the seconds of pause that are due and were not taken."""
        return 0.0 if self._hurry else self._owed_s + self._count()

    def _count(self) -> float:
        return (time.process_time() - self._mark_s) * (1.0 / SHARE - 1.0)


class LearnerWorker:
    """The learner's side of the socket: an agent that learns from one batch after the other, at a pace."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.agent: NeuralAgent | None = None
        self._log = ObservationLog()
        self._recaller = Recaller(self._log, 0)

    def __call__(self, batch: ExperienceBatch) -> Update:
        """Add a batch and update where that is due: once, however many steps have come."""
        self._pace.begin(hurry=batch.hurry)
        update = self._take(batch)
        pause_s = 0.0 if batch.setup is not None else self._pace.owed_s()  # what the first took was the start
        return update._replace(pause_s=pause_s)

    def _take(self, batch: ExperienceBatch) -> Update:
        if batch.setup is not None:
            self._begin(batch.setup)
        agent = self.agent
        if agent is None:
            raise RuntimeError("the first batch brings no setup")
        self._log.graphs.update(batch.graphs)
        self._log.take(batch.observations)
        for place, step in enumerate(batch.steps):
            recalled = replace(
                step,
                observation=self._recaller.recall(step.observation),
                next_observation=self._recaller.recall(step.next_observation),
            )
            if place < batch.known:
                agent.gather(recalled)
            else:
                agent.observe(recalled)
        scalars = agent.learn() if len(batch.steps) > batch.known else {}
        # Steps before pauses are left out of a replay buffer, which reaches further back then than what is kept.
        agent.forget(lambda item: isinstance(item.observation, Recalled) and item.observation.number < batch.forget)
        self._recaller.forget(batch.forget)
        if not scalars:
            return Update(agent.memory)
        weights, state = agent.weights(), archived(agent.state(experience=False))
        return Update(agent.memory, agent.updates, scalars=scalars, weights=weights, state=state)

    def _begin(self, setup: AgentSetup) -> None:
        rehearse(setup)
        self.agent = make_agent(setup.config, observation_spec=setup.observation_spec, like=setup.like)
        for state in setup.states:
            self.agent.restore(opened(state))
        self.agent.after_steps(self._pace.step)
        self._log = ObservationLog()
        self._recaller = Recaller(self._log, 2 * setup.config.max_batch_rows)


def rehearse(setup: AgentSetup) -> None:
    """Let a copy of the agent learn once from two empty nodes, which loads all code that an update needs.

    Later this would take most of a second in which pods wait.
    """
    twin = make_agent(setup.config, observation_spec=setup.observation_spec, like=setup.like)
    log = ObservationLog()
    recaller = Recaller(log, 2 * setup.config.max_batch_rows)
    offers = {CPU: 1000, MEMORY: 2**30, PODS: 110}
    state = ClusterState([Node("a", offers), Node("b", offers)])
    raw = setup.observation_spec.raw_observation(state, NO_POD, np.ones(2, dtype=bool))
    for before, after in pairwise(log.write(raw) for _ in range(_REHEARSED + 1)):
        twin.observe(Transition(recaller.recall(before), before % 2, float(before % 2), recaller.recall(after)))
        if twin.learn():
            return
    twin.flush()


class LearnerProcess:
    """The scheduler's side of the socket: the learner's process, which ends when this one does.

    It is a program of its own, because `multiprocessing` would run the caller's main module again, which may well be a
    script that schedules. `awaited`: somebody waits for its start, so it lowers its priority only afterwards. One that
    follows a lost learner loads with little of the processor.
    """

    def __init__(self, *, awaited: bool) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            place = theirs.fileno()
            program = f"from {__name__} import main; main({place}, awaited={awaited})"
            self._process = subprocess.Popen(  # noqa: S603  (our own program)
                [sys.executable, "-c", program],
                pass_fds=[place],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self._connection = Connection(ours.detach())
        self._sending = threading.Lock()
        self.pid = self._process.pid

    def teach(self, batch: ExperienceBatch) -> bytes:
        """Send a batch and return the answer, to be read by `open_answer`.

        Raises OSError or EOFError when the learner is lost.
        """
        message = pickle.dumps((batch,), pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self._connection.send_bytes(message)
        return self._connection.recv_bytes()

    def hurry(self) -> None:
        """Let the current update go on without pauses."""
        if self._sending.acquire(blocking=False):  # a batch on its way says so itself
            try:
                with suppress(OSError):  # it is lost, which who waits for it will see
                    self._connection.send_bytes(_HURRY)
            finally:
                self._sending.release()

    def kill(self) -> None:
        """End the process at once: a `teach` that waits raises EOFError."""
        self._process.kill()

    def close(self) -> int:
        """End the process and return its exit status, the negative signal if one ended it."""
        with self._sending:  # whoever lets it hurry meanwhile writes to nobody else's file
            self._connection.close()
        try:
            return self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def step_aside() -> None:
    """Load with a lower share of the processor than other processes, but with some where all of it is used."""
    _take_session()
    lower_priority(LOADING_NICENESS)


def step_back() -> None:
    """Run from now on only where no other process wants the processor: the scheduler does not wait for a time slice."""
    lower_priority(NICENESS)
    with suppress(AttributeError, OSError):  # not on this system, or not allowed in this container
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def lower_priority(niceness: int) -> None:
    """Bring this process's niceness to `niceness`, and that of its session where it leads one.

    Where Linux groups processes by session (sched(7), "The autogroup feature"), a priority counts within a session
    only, and one that sleeps but for its learner gets as much as any other.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
        if AUTOGROUP.exists() and os.getsid(0) == os.getpid():
            _weigh_session(niceness)


def _take_session() -> None:
    with suppress(OSError):
        if AUTOGROUP.exists() and os.getsid(0) != os.getpid():
            os.setsid()


def _weigh_session(niceness: int) -> None:
    for _ in range(_ATTEMPTS):
        try:
            AUTOGROUP.write_text(str(niceness))
        except BlockingIOError:  # one process of the system may say so every tenth of a second
            time.sleep(_AGAIN_S)
        else:
            return


def main(place: int, *, awaited: bool) -> None:
    """Answer batches until the socket closes."""
    if not awaited:
        step_aside()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    single_threaded()
    with Connection(place) as connection, suppress(EOFError, OSError):  # the scheduler is gone
        desk = Desk(".", LearnerWorker(Pace(connection.poll)))
        connection.send_bytes(desk.answer(connection.recv_bytes()))
        step_back()
        while True:
            if (message := connection.recv_bytes()) != _HURRY:
                connection.send_bytes(desk.answer(message))
