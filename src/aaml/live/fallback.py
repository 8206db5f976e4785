"""A policy with a fallback, which decides where the policy fails or is late, and for good once the policy is worse."""

import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from aaml import threads
from aaml.cluster.objects import Pod
from aaml.errors import UserError
from aaml.live.failover import Failover
from aaml.scheduling.cycle import spec_of
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import Agent, Decision, Policy, Sorter, Transition

_LOG = logging.getLogger("aaml")
_KEPT = 10_000  # transitions that wait while a late policy cannot learn

Reason = Literal["deadline", "error", "infeasible", "handed-over"]
"""Why the fallback decided: the policy was late, raised, chose an infeasible node, or is measurably worse."""
REASONS: tuple[Reason, ...] = get_args(Reason)


class _Late(Exception):  # noqa: N818  (a state of the policy, not a mistake)
    """The policy has not answered in time."""


class _PolicyThread:
    """A thread that calls the policy, so that the scheduling thread can stop waiting for it."""

    def __init__(self, policy: Policy, deadline_s: float) -> None:
        self._policy, self._deadline_s = policy, deadline_s
        self._requests: queue.SimpleQueue[Context] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Decision | Exception] = queue.SimpleQueue()
        self._late = False
        threads.start(self._answer, "policy", threads.end_process)

    def busy(self) -> bool:
        """Whether the policy still works on a pod that the fallback has decided on."""
        if self._late and not self._answers.empty():
            self._answers.get()
            self._late = False
        return self._late

    def ask(self, context: Context) -> Decision:
        """Return the policy's decision or raise what it raised; `_Late` where it takes too long."""
        if self.busy():
            raise _Late
        self._requests.put(context)
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
            context = self._requests.get()
            try:
                answer: Decision | Exception = self._policy.act(context)
            except Exception as error:  # noqa: BLE001  (whatever a policy does, pods go on being placed)
                answer = error
            except BaseException as error:  # noqa: BLE001  (sys.exit() ends no more than this answer)
                answer = threads.ThreadError("policy", error)
            self._answers.put(answer)


class PolicyWithFallback:
    """A policy whose `fallback` decides where the policy is late, raises, or chooses an infeasible node.

    Make it with `with_fallback`. It has the policy's name, observation and order of waiting pods.

    Parameters
    ----------
    policy, fallback:
        The policy that decides, and the one that decides where the first cannot.
    deadline_s:
        Seconds that the policy may take; 0 for no deadline. With a deadline the policy runs in a thread of its own, and
        the fallback decides for as long as it is late.
    trusted:
        The policy always returns, and reads its observation but not the cluster's state, as agents do. With a deadline
        it runs in the calling thread, which costs less, until it is late for the first time. Any other policy gets a
        copy of the state, because the state changes while a late policy still reads.
    failover:
        Compares both policies' choices. Once the policy's are measurably worse, the fallback decides for good.
    count:
        Called with the reason each time that the fallback decides.
    on_failover:
        Called once, when the fallback takes over for good, with the last pod and a message.

    `Decision.by` names the fallback on its decisions.
    """

    def __init__(
        self,
        policy: Policy,
        fallback: Policy,
        *,
        deadline_s: float = 0.0,
        trusted: bool = False,
        failover: Failover | None = None,
        count: Callable[[Reason], None] = lambda _reason: None,
        on_failover: Callable[[Pod, str], None] = lambda _pod, _message: None,
    ) -> None:
        self.policy, self.fallback = policy, fallback
        self.name = policy.name
        self.observation_spec = spec_of(policy)
        self.queue_sort = policy.queue_sort if isinstance(policy, Sorter) else None
        self.failed_over = False
        """Whether the fallback decides for good."""
        self._trusted, self._failover, self._count, self._on_failover = trusted, failover, count, on_failover
        self._deadline_s = deadline_s
        self._thread = _PolicyThread(policy, deadline_s) if deadline_s and not trusted else None
        self._logged: set[Reason] = set()

    def act(self, context: Context) -> Decision:
        """Return the policy's decision, or the fallback's."""
        if self.failed_over:
            self._count("handed-over")
            return self._by_fallback(context)
        try:
            decision = self._ask(context)
        except _Late:
            return self._instead(context, "deadline", f"has not decided on {context.pod.key} in {self._deadline_s:g} s")
        except Exception as error:  # noqa: BLE001  (whatever a policy does, pods go on being placed)
            _LOG.debug("%s on %s", self.name, context.pod.key, exc_info=error)
            message = f"{type(error).__name__}: {error}"
            return self._instead(context, "error", f"failed on {context.pod.key} ({message})")
        if not _feasible(decision, context):
            what = f"chose {decision!r} for {context.pod.key}, which is not feasible"
            return self._instead(context, "infeasible", what)
        if self._failover is not None and (worse := self._failover.worse(context, decision)) is not None:
            self.failed_over = True
            message = f"{self.name} fails over to {self.fallback.name}, which does better: {worse}"
            _LOG.warning("%s. It decides from now on, until a restart; `--failover never` leaves this out", message)
            self._on_failover(context.pod, message)
        return decision

    def _ask(self, context: Context) -> Decision:
        if self._thread is None:
            return self._ask_here(context)
        if not self._trusted and not self._thread.busy():
            return self._thread.ask(replace(context, state=context.state.fork()))
        _ = context.observation  # computed before the state goes on
        return self._thread.ask(context)

    def _ask_here(self, context: Context) -> Decision:
        asked_s = time.monotonic()
        decision = self.policy.act(context)
        if self._deadline_s and time.monotonic() - asked_s > self._deadline_s:
            self._thread = _PolicyThread(self.policy, self._deadline_s)
            raise _Late
        return decision

    def _instead(self, context: Context, reason: Reason, what: str) -> Decision:
        """Let the fallback decide; the first time of each reason is logged."""
        self._count(reason)
        if reason not in self._logged:
            self._logged.add(reason)
            _LOG.warning(
                "%s %s: %s decides instead, whenever that happens (logged once; /metrics counts)",
                self.name, what, self.fallback.name,
            )  # fmt: skip
        return self._by_fallback(context)

    def _by_fallback(self, context: Context) -> Decision:
        return replace(self.fallback.act(context), by=self.fallback.name)


class LearnerWithFallback(PolicyWithFallback):
    """A policy with a fallback that also learns. Where learning fails, the policy goes on with the weights it has."""

    def __init__(self, policy: Agent, fallback: Policy, **options: Any) -> None:
        super().__init__(policy, fallback, **options)
        self._agent = policy
        self._stuck = False
        self._waiting: list[Transition] = []

    @property
    def learning(self) -> bool:
        """Whether the agent learns."""
        return bool(getattr(self._agent, "learning", True)) and not self._stuck and not self.failed_over

    def observation_of(self, context: Context) -> Any:
        """Return the agent's observation, None where it no longer learns."""
        return self._safely(lambda: self._agent.observation_of(context))

    def observe(self, transition: Transition) -> None:
        """Give the agent a transition: at once, or, while it is late, as soon as it has returned."""
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
        return self._thread is not None and self._thread.busy()

    def _safely(self, step: Callable[[], Any]) -> Any:
        """Return the result of a learning step. The first one that raises ends learning."""
        if not self.learning:
            return None
        try:
            return step()
        except Exception as error:  # noqa: BLE001  (pods go on being placed, by the weights that there are)
            self._stuck = True
            message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            _LOG.warning("%s learns no more, it goes on with the weights it has: %s", self.name, message)
            _LOG.debug("%s", message, exc_info=error)
            return None


def with_fallback(policy: Policy, fallback: Policy, **options: Any) -> PolicyWithFallback:
    """Return the policy with a fallback; `PolicyWithFallback` has the options. An agent goes on learning."""
    if isinstance(policy, Agent):
        return LearnerWithFallback(policy, fallback, **options)
    return PolicyWithFallback(policy, fallback, **options)


def _feasible(decision: object, context: Context) -> bool:
    """Whether the cluster can carry this decision out."""
    if not isinstance(decision, Decision):
        return False
    node_index = decision.node_index
    try:
        return node_index is None or (0 <= node_index < len(context.mask) and bool(context.mask[node_index]))
    except (TypeError, IndexError):  # no whole number
        return False
