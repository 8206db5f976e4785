"""Rewards: what a decision was worth, from the state just before and just after the pod was placed.

All are dimensionless and of about unit size. u is requested / allocatable of a resource on a node, Var its variance
over the N capacity nodes (CPU and memory added up), S the root of Var, d the growth of u on the chosen node, D what the
pod asks for over the mean node's allocatable.

==================  ===================================================================================================
balance             (fall of N Var) / (D (S + D)), S before: how much this placement evens out the nodes. The fall is
                    -(2 d (u - mean) + d^2 (1 - 1/N)), the scale is the same for every row: so the best row is that of
                    least variance, and large and small pods count alike. A shaped reward, for small discounts.
balance-level       -10 S after the placement: the spread itself, for agents that look ahead (discount near 1)
compress            u after on the chosen node (mean of CPU and memory), - 1 if it was empty and a used one was feasible
fragmentation       (F before - F after) / 1000 over the cluster, F: fragments in thousandths of a GPU
waiting-time        -(pods waiting) x (seconds since the last decision) / 60: sums up to minutes of waiting
bill                -(dollars since the last decision) x 1000: nodes by their price, waits beyond the target, evictions
rack-spread         (fall of the deviation of CPU use over racks) x racks / D of the mean rack, clipped to -2 ... 2
gang-rack           share of the gang's placed members that are in the chosen rack; 1 for its first, 0 without a gang
seed-a              (1 - 4 Var_cpu) / sqrt(times the node was chosen so far), negated on the node of the last pod
seed-a-corrected    (fall of S_cpu) N / D_cpu, clipped to -2 ... 2: the same aim, CPU spread over nodes, but a function
                    of state and action alone: no decay with time, no punishment of a right choice made twice, no offset
==================  ===================================================================================================

What a placement promised is not what a failed bind earns. A decision that places nothing (a bind that ends as a
conflict or a failure; in the environment, a node that is not feasible) earns min(promised, 0) - 1: none of the good,
all of the bad, and one unit less. So it never pays to fail, whatever the reward: a plain 0 would beat most placements
by *balance*, and a plain -1 beats a bad one. Where the pod or its node was gone before the bind, nobody is to blame:
the decision was right or wrong all the same, and keeps its reward.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import compiled
from aaml.cluster.metrics import Fragmentation, usage
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN, ClusterState
from aaml.errors import UserError, bad_value
from aaml.scheduling.costs import NodeCosts
from aaml.scheduling.cycle import Reward
from aaml.scheduling.observation import Context
from aaml.scheduling.ports import BindStatus
from aaml.scheduling.rack_rewards import GangRack, RackSpread

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

Range = tuple[float, float]
WAITING_SCALE_S = 60.0
DOLLAR_SCALE = 1000.0
LARGEST_VARIANCE = 0.25  # of fractions in 0 ... 1


def nothing_placed(promised: float = 0.0) -> float:
    """Return what a decision earns that placed nothing, when the placement would have earned `promised`."""
    return min(promised, 0.0) - 1.0


def check_reward(reward: float) -> None:
    """Raise `UserError` for a reward that is no finite number: one NaN in its experience spoils a learner for good."""
    if not isfinite(reward):
        raise bad_value("reward", reward, "a finite number: nothing is learned from this step")


def range_of(reward: Reward) -> Range | None:
    """Return the least and the greatest value of a reward, None where it does not say. Raises `UserError` for nonsense.

    Rewards are compared within it: what lies outside counts as the nearer end (see `aaml.live.failover`).
    """
    within = getattr(reward, "range", None)
    if within is None:
        return None
    try:
        low, high = map(float, within)
    except (TypeError, ValueError) as error:
        raise bad_value("range of the reward", within, "two numbers, as in (-1.0, 1.0)") from error
    if not -inf < low < high < inf:
        raise bad_value("range of the reward", within, "two numbers, the lower one first, as in (-1.0, 1.0)")
    return low, high


def after_bind(reward: float, status: BindStatus) -> float:
    """Return what a placement has earned once its bind has ended."""
    return nothing_placed(reward) if status in {"conflict", "failed"} else reward


@dataclass(frozen=True, slots=True)
class RewardOptions:
    """What a reward is made with. `fragmentation`: state -> float64 [N], needed by the reward of that name."""

    fragmentation: Fragmentation | None = None


class Balance:
    """How much the spread of use over nodes falls through the placement."""

    range: ClassVar[Range] = (-4.0, 4.0)
    """Of 99% of placements by chance on 40 nodes; on N nodes alike the rewards end at -+2 sqrt(N - 1)."""

    def before(self, context: Context) -> None:
        """Nothing to remember: what was before follows from the pod."""

    def after(self, context: Context, row: int) -> float:
        """Return the fall of N times the variance over its scale."""
        state = context.state
        request = state.request_vector(context.pod)
        return float(
            balance_reward(
                state.allocatable, state.requested, state.capacity, row, request[CPU_COLUMN], request[MEMORY_COLUMN]
            )
        )


class BalanceLevel:
    """The spread that the placement leaves, negative."""

    range: ClassVar[Range] = (-10.0 * sqrt(2.0 * LARGEST_VARIANCE), 0.0)

    def before(self, context: Context) -> None:
        """Nothing to remember."""

    def after(self, context: Context, row: int) -> float:  # noqa: ARG002
        """Return -10 times the root of the summed variances."""
        return -10.0 * sqrt(2.0 * usage(context.state).variance)


class Compress:
    """Full nodes and empty nodes, nothing between."""

    range: ClassVar[Range] = (-1.0, 1.0)

    def before(self, context: Context) -> None:
        """Nothing to remember: what was before follows from the pod."""

    def after(self, context: Context, row: int) -> float:
        """Return the use of the chosen node, less 1 when it was opened without need."""
        state = context.state
        return float(compress_reward(state.allocatable, state.requested, context.mask, row))


@dataclass(slots=True)
class LessFragmentation:
    """Fall of the cluster's GPU fragments."""

    range: ClassVar[Range] = (-8.0, 8.0)
    """The GPUs of a node: one placement changes the fragments of no other."""

    fragmentation: Fragmentation
    _before: float = 0.0

    def before(self, context: Context) -> None:
        """Remember the fragments."""
        self._before = float(self.fragmentation(context.state).sum())

    def after(self, context: Context, row: int) -> float:  # noqa: ARG002
        """Return the fall in GPUs."""
        return (self._before - float(self.fragmentation(context.state).sum())) / 1000.0


@dataclass(slots=True)
class WaitingTime:
    """Time that pods have spent waiting since the last decision, negative."""

    range: ClassVar[Range] = (-1.0, 0.0)
    """Of up to a minute; the choice of a node changes nothing of it."""

    _last_s: float | None = None
    _last_queue: int = 0
    _waited_s: float = 0.0

    def before(self, context: Context) -> None:
        """Add up what has been waited: pods left behind by the last decision, and those there now, halfway each."""
        if self._last_s is not None and context.now_s >= self._last_s:
            self._waited_s = 0.5 * (self._last_queue + context.queue_length + 1) * (context.now_s - self._last_s)
        else:
            self._waited_s = 0.0  # the first decision, or a clock that began anew
        self._last_s, self._last_queue = context.now_s, context.queue_length

    def after(self, context: Context, row: int) -> float:  # noqa: ARG002
        """Return minutes, negative."""
        return -self._waited_s / WAITING_SCALE_S


@dataclass(slots=True)
class Bill:
    """Dollars since the last decision, negative, at the prices of the task's metric `cost`."""

    range: ClassVar[Range] = (-10.0, 0.0)
    """Of up to a cent; an episode of twenty nodes pays about a tenth of that from one decision to the next."""

    _paid: float | None = None
    _since: float = 0.0

    def before(self, context: Context) -> None:
        """Take what was paid since the last decision. Raises `UserError` where nobody buys nodes."""
        costs = NodeCosts.of(context.state)
        if costs is None:
            raise UserError("reward bill: no nodes are provisioned here; take a task whose nodes cost, such as bill")
        paid, last = costs.paid(context.now_s), self._paid
        self._since = 0.0 if last is None else max(paid - last, 0.0)  # less: the first decision of another episode
        self._paid = paid

    def after(self, context: Context, row: int) -> float:  # noqa: ARG002
        """Return tenths of cents, negative."""
        return -DOLLAR_SCALE * self._since


@dataclass(slots=True)
class SeedA:
    """CPU variance, damped by how often the node was chosen, negative for the same node twice in a row."""

    range: ClassVar[Range] = (-1.0, 1.0)

    _chosen: Counter[str] = field(default_factory=Counter)
    _last: str = ""

    def before(self, context: Context) -> None:
        """Nothing to remember of the state."""

    def after(self, context: Context, row: int) -> float:
        """Return the damped, signed level of CPU balance."""
        name = context.state.names[row]
        self._chosen[name] += 1
        level = 1.0 - usage(context.state).cpu_variance / LARGEST_VARIANCE
        again, self._last = name == self._last, name
        return (-level if again else level) / sqrt(self._chosen[name])


@dataclass(slots=True)
class SeedACorrected:
    """Fall of the standard deviation of CPU use over nodes."""

    range: ClassVar[Range] = (-2.0, 2.0)

    _before: float = 0.0

    def before(self, context: Context) -> None:
        """Remember the deviation."""
        self._before = sqrt(usage(context.state).cpu_variance)

    def after(self, context: Context, row: int) -> float:  # noqa: ARG002
        """Return the fall, in units of what the pod could change at most."""
        state = context.state
        request = int(state.request_vector(context.pod)[0])
        if not request:
            return 0.0
        mean_size = float(state.allocatable[state.capacity, CPU_COLUMN].mean())
        change = (self._before - sqrt(usage(state).cpu_variance)) * int(state.capacity.sum()) * mean_size / request
        return float(np.clip(change, -2.0, 2.0))


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """Several rewards, each times its weight."""

    parts: Sequence[tuple[float, Reward]]

    @property
    def range(self) -> Range | None:
        """The sums of the parts' least and greatest values, None where a part's are not known."""
        ends = [(weight, range_of(reward)) for weight, reward in self.parts]
        scaled = [sorted((weight * end[0], weight * end[1])) for weight, end in ends if end is not None]
        return (sum(low for low, _ in scaled), sum(high for _, high in scaled)) if len(scaled) == len(ends) else None

    def before(self, context: Context) -> None:
        """Let each remember."""
        for _, reward in self.parts:
            reward.before(context)

    def after(self, context: Context, row: int) -> float:
        """Return the sum."""
        return sum(weight * reward.after(context, row) for weight, reward in self.parts)


@dataclass(slots=True)
class Potential:
    """How much a function of the state rises through the placement (Ng, Harada, Russell, ICML 1999, undiscounted)."""

    potential: Callable[[ClusterState], float]
    range: Range | None = None
    _before: float = 0.0

    def before(self, context: Context) -> None:
        """Remember the potential."""
        self._before = float(self.potential(context.state))

    def after(self, context: Context, row: int) -> float:  # noqa: ARG002
        """Return the rise."""
        return float(self.potential(context.state)) - self._before


@dataclass(frozen=True, slots=True)
class Value:
    """A function of the context and the chosen row, with the pod placed."""

    value: Callable[[Context, int], float]
    range: Range | None = None

    def before(self, context: Context) -> None:
        """Nothing to remember."""

    def after(self, context: Context, row: int) -> float:
        """Return the function's value."""
        return float(self.value(context, row))


def own_reward(name: str, function: Callable[..., float]) -> Reward:
    """Return the reward of a person's function: of (state) a potential, of (context, row) a value.

    The function may say the least and the greatest reward as its attribute `range`.
    """
    count, within = len(inspect.signature(function).parameters), getattr(function, "range", None)
    if count == 1:
        return Potential(function, within)
    if count == 2:
        return Value(function, within)
    raise UserError(f"reward {name}: a function of (state) or of (context, node) is needed, not of {count} arguments")


def _fragmentation(options: RewardOptions) -> Reward:
    if options.fragmentation is None:
        raise UserError(
            "reward fragmentation: there are no expected pods to weigh fragments by; name a workload or trace"
        )
    return LessFragmentation(options.fragmentation)


BUILT_IN: Mapping[str, Callable[[RewardOptions], Reward]] = {
    "balance": lambda _options: Balance(),
    "balance-level": lambda _options: BalanceLevel(),
    "compress": lambda _options: Compress(),
    "fragmentation": _fragmentation,
    "waiting-time": lambda _options: WaitingTime(),
    "bill": lambda _options: Bill(),
    "rack-spread": lambda _options: RackSpread(),
    "gang-rack": lambda _options: GangRack(),
    "seed-a": lambda _options: SeedA(),
    "seed-a-corrected": lambda _options: SeedACorrected(),
}


@compiled
def balance_reward(
    allocatable: IntArray, requested: IntArray, capacity: BoolArray, row: int, cpu: float, memory: float,
) -> float:  # fmt: skip
    """Return the reward "balance" of a pod that asks for `cpu` and `memory` and is on `row` already."""
    n, variance = 0, 0.0
    mean_cpu, mean_memory, cpu_size, memory_size = 0.0, 0.0, 0.0, 0.0
    cpu, memory = float(cpu), float(memory)
    for i in range(len(capacity)):
        if capacity[i]:
            n += 1
            own = 1.0 if i == row else 0.0
            mean_cpu += (requested[i, CPU_COLUMN] - own * cpu) / max(allocatable[i, CPU_COLUMN], 1)
            mean_memory += (requested[i, MEMORY_COLUMN] - own * memory) / max(allocatable[i, MEMORY_COLUMN], 1)
            cpu_size += allocatable[i, CPU_COLUMN]
            memory_size += allocatable[i, MEMORY_COLUMN]
    if n == 0 or not capacity[row]:
        return 0.0
    mean_cpu /= n
    mean_memory /= n
    for i in range(len(capacity)):
        if capacity[i]:
            own = 1.0 if i == row else 0.0
            room_cpu, room_memory = max(allocatable[i, CPU_COLUMN], 1), max(allocatable[i, MEMORY_COLUMN], 1)
            variance += ((requested[i, CPU_COLUMN] - own * cpu) / room_cpu - mean_cpu) ** 2
            variance += ((requested[i, MEMORY_COLUMN] - own * memory) / room_memory - mean_memory) ** 2
    change, asked = 0.0, 0.0
    each = ((CPU_COLUMN, cpu, mean_cpu, cpu_size), (MEMORY_COLUMN, memory, mean_memory, memory_size))
    for r, request, mean, size in each:
        room = max(allocatable[row, r], 1)
        grow = request / room
        away = (requested[row, r] - request) / room - mean
        change += 2.0 * grow * away + grow * grow * (1.0 - 1.0 / n)
        asked += (request * n / max(size, 1.0)) ** 2
    if asked == 0.0:
        return 0.0
    asked = np.sqrt(asked)
    return -change / (asked * (np.sqrt(variance / n) + asked))


@compiled
def compress_reward(allocatable: IntArray, requested: IntArray, mask: BoolArray, row: int) -> float:
    """Return the reward "compress" of a pod that is on `row` already."""
    cpu = requested[row, CPU_COLUMN] / max(allocatable[row, CPU_COLUMN], 1)
    memory = requested[row, MEMORY_COLUMN] / max(allocatable[row, MEMORY_COLUMN], 1)
    reward = 0.5 * (cpu + memory)
    if requested[row, PODS_COLUMN] == 1:  # the pod is the only one: the node was empty
        for i in range(len(mask)):
            if i != row and mask[i] and requested[i, PODS_COLUMN] > 0:
                return reward - 1.0
    return reward
