"""A policy under guard: what it cannot decide, or not in time, another one does, and a worse one steps aside."""

import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from aaml import threads
from aaml.cluster.objects import Pod
from aaml.errors import UserError
from aaml.live.hand_over import HandOver
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Agent, Decision, Policy, Sorter, Transition

_LOG = logging.getLogger("aaml")
_KEPT = 10_000  # steps that wait while a late policy cannot learn

Reason = Literal["deadline", "error", "row", "handed-over"]
"""Why the fallback decided: the policy was late, raised, named a row that is not feasible, or does worse."""
REASONS: tuple[Reason, ...] = get_args(Reason)


class _Late(Exception):  # noqa: N818  (a state of the policy, not a mistake)
    """The policy has not answered in time."""


class _Aside:
    """A thread that asks the policy, so that the one that schedules need not wait for it for ever."""

    def __init__(self, policy: Policy, deadline_s: float) -> None:
        self._policy, self._deadline_s = policy, deadline_s
        self._asked: queue.SimpleQueue[Context] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Decision | Exception] = queue.SimpleQueue()
        self._late = False
        threads.start(self._answer, "policy", threads.end_process)

    def busy(self) -> bool:
        """Whether the policy is still at a question whose answer nobody waits for any more."""
        if self._late and not self._answers.empty():
            self._answers.get()
            self._late = False
        return self._late

    def ask(self, context: Context) -> Decision:
        """Return the policy's decision or raise what it raised; `_Late` where it takes too long."""
        if self.busy():
            raise _Late
        self._asked.put(context)
        try:
            answer = self._answers.get(timeout=self._deadline_s)
        except queue.Empty:
            self._late = True
            raise _Late from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answer(self) -> None:
        while True:
            context = self._asked.get()
            try:
                answer: Decision | Exception = self._policy.act(context)
            except Exception as error:  # noqa: BLE001  (whatever a policy does, pods go on being placed)
                answer = error
            except BaseException as error:  # noqa: BLE001  (sys.exit() ends no more than this answer)
                answer = threads.ThreadError("policy", error)
            self._answers.put(answer)


class Shield:
    """A policy whose decisions are another one's where it takes too long, raises, or names a row that is not feasible.

    Make it with `shield`. It looks at what the policy looks at and has its name and its order of waiting pods.

    Parameters
    ----------
    policy, fallback:
        Who decides, and who does where the first one cannot.
    deadline_s:
        Seconds that the policy may take; 0 for no deadline. The policy is asked in a thread of its own then, and as
        long as it is late the fallback decides.
    trusted:
        The policy comes to an end, however late, and reads its observation and not the cluster's state, as an agent
        does. Where there is a deadline it is asked in this thread, which costs less, until it is late for the first
        time. Any other policy is handed a copy of the state, which goes on while a late one still reads.
    hand_over:
        Compares both policies' choices; once the policy's are measurably worse, the fallback decides for good.
    count:
        Called with the reason each time that the fallback decides.
    handed_over:
        Called when the fallback decides for good from now on, with the pod that was decided on and with what happened.

    What the fallback decides has its name in `Decision.by`.
    """

    def __init__(
        self,
        policy: Policy,
        fallback: Policy,
        *,
        deadline_s: float = 0.0,
        trusted: bool = False,
        hand_over: HandOver | None = None,
        count: Callable[[Reason], None] = lambda _reason: None,
        handed_over: Callable[[Pod, str], None] = lambda _pod, _said: None,
    ) -> None:
        self.policy, self.fallback = policy, fallback
        self.name = policy.name
        self.observation_spec = spec_of(policy)
        self.queue_sort = policy.queue_sort if isinstance(policy, Sorter) else None
        self.handed_over = False
        """Whether the fallback decides for good."""
        self._trusted, self._hand_over, self._count, self._tell = trusted, hand_over, count, handed_over
        self._deadline_s = deadline_s
        self._aside = _Aside(policy, deadline_s) if deadline_s and not trusted else None
        self._told: set[Reason] = set()

    def act(self, context: Context) -> Decision:
        """Return the policy's decision, or the fallback's."""
        if self.handed_over:
            self._count("handed-over")
            return self._by_fallback(context)
        try:
            decision = self._ask(context)
        except _Late:
            return self._instead(context, "deadline", f"has not decided on {context.pod.key} in {self._deadline_s:g} s")
        except Exception as error:  # noqa: BLE001  (whatever a policy does, pods go on being placed)
            _LOG.debug("%s on %s", self.name, context.pod.key, exc_info=error)
            said = f"{type(error).__name__}: {error}"
            return self._instead(context, "error", f"failed on {context.pod.key} ({said})")
        if not _feasible(decision, context):
            return self._instead(context, "row", f"chose {decision!r} for {context.pod.key}, which is not feasible")
        if self._hand_over is not None and (worse := self._hand_over.worse(context, decision)) is not None:
            self.handed_over = True
            said = f"{self.name} hands over to {self.fallback.name}, which does better: {worse}"
            _LOG.warning("%s. It decides from now on, until a restart; `--hand-over never` leaves this out", said)
            self._tell(context.pod, said)
        return decision

    def _ask(self, context: Context) -> Decision:
        if self._aside is None:
            return self._ask_here(context)
        if not self._trusted and not self._aside.busy():
            return self._aside.ask(replace(context, state=context.state.fork()))
        _ = context.observation  # computed before the state goes on
        return self._aside.ask(context)

    def _ask_here(self, context: Context) -> Decision:
        asked_s = time.monotonic()
        decision = self.policy.act(context)
        if self._deadline_s and time.monotonic() - asked_s > self._deadline_s:
            self._aside = _Aside(self.policy, self._deadline_s)
            raise _Late
        return decision

    def _instead(self, context: Context, reason: Reason, what: str) -> Decision:
        """Let the fallback decide, and say why the first time."""
        self._count(reason)
        if reason not in self._told:
            self._told.add(reason)
            _LOG.warning(
                "%s %s: %s decides instead, whenever that happens (told once; /metrics counts)",
                self.name, what, self.fallback.name,
            )  # fmt: skip
        return self._by_fallback(context)

    def _by_fallback(self, context: Context) -> Decision:
        return replace(self.fallback.act(context), by=self.fallback.name)


class LearningShield(Shield):
    """The same for a policy that learns. Where its learning fails, it goes on deciding with what it has learned."""

    def __init__(self, policy: Agent, fallback: Policy, **options: Any) -> None:
        super().__init__(policy, fallback, **options)
        self._agent = policy
        self._stuck = False
        self._waiting: list[Transition] = []

    @property
    def learning(self) -> bool:
        """Whether the agent learns."""
        return bool(getattr(self._agent, "learning", True)) and not self._stuck and not self.handed_over

    def observation_of(self, context: Context) -> Any:
        """Return what the agent perceives, None where it does not learn any more."""
        return self._safely(lambda: self._agent.observation_of(context))

    def observe(self, transition: Transition) -> None:
        """Give the agent a step: at once, or as soon as it has answered where it is late."""
        self._waiting.append(transition)
        del self._waiting[:-_KEPT]
        if not self._busy():
            steps, self._waiting = self._waiting, []
            for step in steps:
                self._safely(lambda step=step: self._agent.observe(step))  # type: ignore[misc]

    def learn(self) -> Mapping[str, float]:
        """Let the agent update, unless it is late; returns its scalars."""
        return {} if self._busy() else self._safely(self._agent.learn) or {}

    def save(self, directory: str, stem: str) -> Sequence[str]:
        """Write the agent's model."""
        return self._agent.save(directory, stem)

    def _busy(self) -> bool:
        return self._aside is not None and self._aside.busy()

    def _safely(self, step: Callable[[], Any]) -> Any:
        """Return what a step of learning gives; one that fails is the last one."""
        if not self.learning:
            return None
        try:
            return step()
        except Exception as error:  # noqa: BLE001  (pods go on being placed, by the weights that there are)
            self._stuck = True
            said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            _LOG.warning("%s learns no more, it goes on with the weights it has: %s", self.name, said)
            _LOG.debug("%s", said, exc_info=error)
            return None


def shield(policy: Policy, fallback: Policy, **options: Any) -> Shield:
    """Put a policy under guard; see `Shield` for the options. One that learns goes on learning."""
    if isinstance(policy, Agent):
        return LearningShield(policy, fallback, **options)
    return Shield(policy, fallback, **options)


def _feasible(decision: object, context: Context) -> bool:
    """Whether it is a decision that the cluster can carry out."""
    if not isinstance(decision, Decision):
        return False
    row = decision.row
    try:
        return row is None or (0 <= row < len(context.mask) and bool(context.mask[row]))
    except (TypeError, IndexError):  # no whole number
        return False
