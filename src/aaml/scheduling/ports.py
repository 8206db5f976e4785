"""The seams of the platform: what the scheduling loop calls: clusters, policies, agents, observers and writers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState

if TYPE_CHECKING:
    from aaml.scheduling.node_sampling import NodeSampling
    from aaml.scheduling.observation import Context, ObservationSpec
    from aaml.scheduling.queue_sort import QueueSort

BindStatus = Literal["bound", "conflict", "gone", "failed", "shadow", "tried"]
OutcomeKind = Literal["assumed", "unschedulable", "declined", "bound", "conflict", "gone", "failed", "shadow", "tried"]


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's choice: the index of a node in the cluster state, or `None` to leave the pod pending.

    `gpus` None takes the best-fitting devices. `info` holds what the policy wants remembered (exploration, value ...).
    `by` names who decided in the policy's place, "" where it did itself.
    """

    node_index: int | None
    gpus: tuple[int, ...] | None = None
    info: Mapping[str, float] = field(default_factory=dict)
    by: str = ""


class Outcome(NamedTuple):
    """What an attempt to place a pod led to.

    At once the pod is "assumed" on a node, "unschedulable" as it fits nowhere, or was "declined": left pending by the
    policy. Once the bind of an assumed pod has ended, the outcome's kind is the bind's status.
    """

    kind: OutcomeKind
    reward: float = 0.0
    node_name: str = ""


@dataclass(frozen=True, slots=True)
class BindResult:
    """What the cluster said about a bind, later: done, another was first, the pod or node is gone, an error.

    "shadow": a dry run decided and sent nothing. "tried": the pod's group was tried in several places, and this was
    decided in one of them; a bind follows where that place was taken.
    """

    pod: Pod
    node_name: str
    status: BindStatus
    message: str = ""
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of experience; `next_observation` is the next decision's, None where nothing followed.

    The observations are what the learner keeps of both contexts (see `Agent.observation_of`). `truncated`: the episode
    ends here by convention (a deployment is an episode), but the value goes on.
    """

    observation: Any
    action: int
    reward: float
    next_observation: Any
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, float] = field(default_factory=dict)


class Attempt(NamedTuple):
    """One attempt to place a pod: what it led to at once, and how long it took.

    `seconds`: from the filters until the decision was carried out. `latency_s`: until the policy had answered (filters,
    features, choice). `policy_s`: what the policy took of that. `context` and `decision` are None for a pod that fits
    nowhere: the policy was not asked.
    """

    pod: Pod
    outcome: Outcome
    seconds: float
    latency_s: float = 0.0
    policy_s: float = 0.0
    context: "Context | None" = None
    decision: Decision | None = None


class Step(NamedTuple):
    """A placement whose bind has ended and whose continuation is known.

    `outcome` is the final one: its kind is the bind's status and its reward takes a failure into account.
    `transition` is None where nobody learns.
    """

    pod: Pod
    decision: Decision
    outcome: Outcome
    transition: Transition | None


class Policy(Protocol):
    """A scheduler: from a cluster state and a pod to a node."""

    @property
    def name(self) -> str:
        """What tables and logs call it."""
        ...

    def act(self, context: "Context") -> Decision:
        """Choose among the nodes where `context.mask` is True (there is at least one)."""
        ...


def shown(policy: Policy) -> str:
    """Return what `print` shows of a policy: its kind and its name."""
    return f"{type(policy).__name__}({policy.name!r})"


@runtime_checkable
class Ranker(Policy, Protocol):
    """A policy that grades every node, as an extender or a score service must."""

    def scores(self, context: "Context") -> npt.NDArray[np.float64]:
        """Return [N] grades, higher is better; nodes outside the mask may hold anything."""
        ...


@runtime_checkable
class Itemising(Ranker, Protocol):
    """A policy whose scores are sums, and that can say of what."""

    @property
    def terms_are(self) -> str:
        """What the terms are, in half a sentence."""
        ...

    def terms(self, context: "Context") -> Mapping[str, npt.NDArray[np.float64]]:
        """Return the terms by name, each [N]; those of a feasible node add up to its score."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where a pod may go: P pairs of a node's index and a device (-1 where the pod takes no part of one), with scores.

    Devices that are alike on a node count as one, the first. `terms` add up to `scores`.
    """

    node_indices: npt.NDArray[np.int64]
    devices: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64]
    terms: Mapping[str, npt.NDArray[np.float64]]


@runtime_checkable
class ItemisingDevices(Itemising, Protocol):
    """A policy that scores each device of a node; a node's score and terms are those of its best device."""

    def places(self, context: "Context") -> Places:
        """Return the nodes where the pod fits, with the devices that a part of a GPU may come from."""
        ...


@runtime_checkable
class Observing(Policy, Protocol):
    """A policy that says what it looks at."""

    @property
    def observation_spec(self) -> "ObservationSpec":
        """What its observations show."""
        ...


@runtime_checkable
class Sorter(Policy, Protocol):
    """A policy that may want waiting pods in an order of its own."""

    @property
    def queue_sort(self) -> "QueueSort | None":
        """The order; None: kube-scheduler's."""
        ...


@runtime_checkable
class Backer(Policy, Protocol):
    """A policy that may want pods that found no node to back off for other times than the cluster's."""

    @property
    def backoff_s(self) -> tuple[float, float] | None:
        """Seconds after the first failure, and at most; None: as the cluster has it."""
        ...


@runtime_checkable
class Sampler(Policy, Protocol):
    """A policy that may score some of the nodes in place of all."""

    def score_some(self, sampling: "NodeSampling | None") -> None:
        """Score the nodes that `sampling` says from now on, None: all. Raises `UserError` where it cannot."""
        ...


@runtime_checkable
class Agent(Policy, Protocol):
    """A policy that learns from what its decisions led to."""

    def observation_of(self, context: "Context") -> Any:
        """Return what the transitions of a decision are to hold of its context, which is valid for this moment only."""
        ...

    def observe(self, transition: Transition) -> None:
        """Take one step of experience."""
        ...

    def learn(self) -> Mapping[str, float]:
        """Update if it is time; returns scalars to record (curve name -> value), empty when nothing was done."""
        ...

    def save(self, directory: str, stem: str) -> Sequence[str]:
        """Write the model (whole or not at all) and return the paths written."""
        ...


class Cluster(Protocol):
    """Where pods come from and go to: simulated in the process or a real Kubernetes API."""

    @property
    def state(self) -> ClusterState:
        """The state, mutated only by this cluster's own methods."""
        ...

    def now_s(self) -> float:
        """Return the time in seconds: virtual in the simulator, monotonic on a live cluster."""
        ...

    def next_pod(self, timeout_s: float) -> Pod | None:
        """Take in what happened and return the next pending pod; None when there is none within `timeout_s`."""
        ...

    def sort_queue(self, sort: "QueueSort | None", backoff_s: tuple[float, float] | None = None) -> None:
        """Hand out waiting pods in this order from now on; None: in kube-scheduler's.

        Those that found no node back off for `backoff_s`, after the first failure and at most; None: as usual here.
        """
        ...

    def upcoming(self, count: int) -> Sequence[Pod]:
        """Return up to `count` pods that wait behind the current one, in queue order."""
        ...

    def pending_count(self) -> int:
        """Return how many pods wait, whatever the reason."""
        ...

    def feasible(self, pod: Pod) -> npt.NDArray[np.bool_]:
        """Return [N], which nodes pass every filter."""
        ...

    def bind(self, pod: Pod, node_index: int, gpus: tuple[int, ...] | None = None) -> str:
        """Assume the pod on a node, send the bind, and return the node's name; the result comes by `results`."""
        ...

    def reject(self, pod: Pod) -> None:
        """The pod fits nowhere now: tell whoever asks (event, condition) and try again when the cluster changes."""
        ...

    def defer(self, pod: Pod) -> None:
        """The policy left the pod pending although it fits: try again later."""
        ...

    def results(self) -> Sequence[BindResult]:
        """Return the binds that ended since the last call."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether nothing can happen any more (a simulation at its end); always False on a live cluster."""
        ...

    def drain(self) -> None:
        """Wait for binds in flight, so that `results` has them; whoever decides ends, or pauses, with this."""
        ...

    def close(self) -> None:
        """Let go of every resource. Whoever opened the cluster closes it, and nobody else."""
        ...


class Observer:
    """What looks on as a policy schedules. Each method does nothing; an observer overrides those that it wants.

    All are called in the thread that decides, so that a slow observer slows the scheduler.
    """

    def on_turn(self) -> None:
        """Take note that the scheduler goes on: several times a second, whether there is a pod or not."""

    def on_attempt(self, attempt: Attempt) -> None:
        """Take one attempt to place a pod, whether it led to a decision or not."""

    def on_decision(self, context: "Context", decision: Decision, outcome: Outcome) -> None:
        """Take one decision that has just been carried out; `context.state` holds its pod already."""

    def on_result(self, result: BindResult) -> None:
        """Take the end of a bind."""

    def on_step(self, step: Step) -> None:
        """Take one completed step, after the agent has."""

    def on_learned(self, scalars: Mapping[str, float], decisions: int) -> None:
        """Take what an update of the agent returned (curve name -> value), after so many decisions."""

    def close(self) -> None:
        """Write what is still to be written; whoever made the observer calls this once the scheduling has ended."""


class RunWriter:
    """Where curves and decisions are written; this one writes nothing. One that cares for a part derives from it."""

    def scalar(self, name: str, value: float, step: int) -> None:
        """Record one point of a curve."""

    def histogram(self, name: str, values: npt.NDArray[np.float64] | Sequence[float], step: int) -> None:
        """Record a distribution."""

    def event(self, kind: str, fields: Mapping[str, object]) -> None:
        """Record a structured event (a decision, a bind result) as one line."""

    def close(self) -> None:
        """Flush and close."""
