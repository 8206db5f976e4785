"""A policy put to work for one run: as it is, or an agent that learns meanwhile and whose model is kept."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from aaml.live.observers.autosave import Autosave

if TYPE_CHECKING:
    from aaml.live.learner import AsynchronousLearner
    from aaml.live.scheduler_replica import SchedulerReplica
    from aaml.scheduling.ports import Agent, Observer, Policy


class PolicySession:
    """What a run does with its policy: prepares it while another replica may lead, and runs it once this one leads.

    A session belongs to one run: `ahead`, within it `at_work` at most once, and within that `last_updates`. This one
    decides by the policy as it is, and saves nothing.
    """

    models: Sequence[str] = ()
    """The paths of the model files that the session wrote, the latest ones."""

    def __init__(self, policy: "Policy") -> None:
        self._policy = policy

    def observers(self) -> "Sequence[Observer]":
        """Return the observers of the session; created as the decisions begin, closed by the run."""
        return ()

    def ahead(self) -> AbstractContextManager[None]:
        """Start what takes time, so that it is ready once the lease is acquired; it ends with the block."""
        return nullcontext()

    def at_work(self, replica: "SchedulerReplica", stopped: Callable[[], bool]) -> "AbstractContextManager[Policy]":
        """Yield the policy once it is ready or `stopped()` is true; save what is to be kept at the end."""
        del replica, stopped
        return nullcontext(self._policy)

    def last_updates(self) -> Iterator[Mapping[str, float]]:
        """Yield the scalars of updates after the last decision."""
        yield from ()


class LearnerSession(PolicySession):
    """An agent that learns, by a learner in a process of its own where there is one, or between its decisions.

    Parameters
    ----------
    agent:
        What decides.
    learner:
        The agent's learner in a process of its own; None: it learns between its decisions.
    save:
        Writes the model and returns the paths; called at the end too, whichever way that comes.
    save_every_s:
        Seconds between saves meanwhile; 0 saves at the end only.

    """

    def __init__(
        self,
        agent: "Agent",
        learner: "AsynchronousLearner | None",
        save: Callable[[], Sequence[str]],
        save_every_s: float,
    ) -> None:
        super().__init__(agent)
        self._learner, self._save, self._save_every_s = learner, save, save_every_s

    def observers(self) -> "Sequence[Observer]":
        """Return who saves the model now and then."""
        return [Autosave(self._keep, self._save_every_s)] if self._save_every_s else []

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Start the learner; a standby keeps it ready."""
        if self._learner is None:
            yield
            return
        self._learner.start()
        try:
            yield
        finally:
            self._learner.stop()

    @contextmanager
    def at_work(self, replica: "SchedulerReplica", stopped: Callable[[], bool]) -> "Iterator[Policy]":
        """Yield the policy once its learner has started; at the end learn from the last batch and save the model."""
        with ExitStack() as stack:
            stack.callback(self._keep)
            if self._learner is not None:
                stack.callback(self._learner.stop)
                replica.follow(self._learner)
                self._learner.await_start(stopped)
            yield self._learner or self._policy

    def last_updates(self) -> Iterator[Mapping[str, float]]:
        """Yield the scalars of the learner's answer to the last batch."""
        return iter(()) if self._learner is None else self._learner.catch_up()

    def _keep(self) -> None:
        self.models = self._save()
