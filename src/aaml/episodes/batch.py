"""A batched environment: many episodes in lockstep, in compiled code, with what a network sees of each as arrays.

Under the same decisions an episode here is the one that `SimCluster`, the scheduling cycle and
`ObservationSpec.observe` play, to the bit: arrivals, departures, waiting pods, rewards, features, metrics. What
compiled episodes cannot express is refused.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import boolean

from aaml.cluster.kernels import address_of, interpreted, returns
from aaml.cluster.metrics import AVERAGED, Usage, measure_usage, summary
from aaml.cluster.state import CPU_COLUMN, MEMORY_COLUMN, PODS_COLUMN
from aaml.episodes.lockstep import BEGIN, RESUME, next_owned, play_rows
from aaml.episodes.own_rewards import OwnReward
from aaml.episodes.plan import Plan
from aaml.episodes.rewards import REWARDS
from aaml.episodes.rows import (
    NODE_FACTS,
    NODE_FLAGS,
    POD_FACTS,
    POD_STATE_TIMES,
    POD_STATES,
    POD_TIMES,
    WAITS,
    BatchSettings,
    EpisodePool,
    Rows,
    View,
    Work,
    Zeros,
    allocate,
    env_of,
    put,
    put_columns,
)
from aaml.episodes.supply import deschedule
from aaml.episodes.supply_plan import SupplyPlan
from aaml.episodes.supply_rows import (
    SUPPLY_LAYOUT,
    Supply,
    SupplyPool,
    SupplyRows,
    SupplyWork,
    owned_of,
)
from aaml.episodes.whole import play_episodes
from aaml.errors import UserError, bad_value
from aaml.nodes.arrays import eviction
from aaml.nodes.budgets import NOBODY
from aaml.nodes.rows import NODE, OFFER, POD, POD_TIME, TRAIT, RuleWork
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.fragmentation import FragmentTables, fragment_tables
from aaml.policies.gpu.arrays import SHAPE_MODELS
from aaml.scheduling.costs import COST_FEATURES, PAID_COLUMNS
from aaml.scheduling.lifetimes import KnownLifetimes, expected_remaining, log_seconds
from aaml.scheduling.observation import NODE_FEATURES, PLAIN, ObservationSpec
from aaml.scheduling.queue import QueueSettings
from aaml.scheduling.queue_sort import QueueSort
from aaml.scheduling.rewards import check_reward
from aaml.settings import Count, take
from aaml.threads import ThreadPool

FloatArray = npt.NDArray[np.float64]
FeatureArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Episodes = Callable[[int, int], Plan]
"""(group, number of its episode from 0 on) -> the plan. Asked once for each, numbers of a group in order."""
_COUNTED = ("arrived", "bound", "departed", "rejected", "declined", "evicted", "lost")
_NOT_ELASTIC = ("fragmentation", "seed-a")  # rewards that remember nodes by their rows
_FIRST_SIZES = {"N": 32, "L": 256, "E": 512, "D": 512}  # of episodes whose nodes are bought, until they need more:
_OF_PODS = {"N": 64, "L": 16, "E": 1, "D": 2}  # or one for so many pods, where there are many
_METERED = (
    "metered_s",
    "alive",
    "price",
    "off",
    "watts",
    "cpu_milli",
    "memory_bytes",
    "gpu_milli",
    "running",
    "dollars",
    "fluid_dollars",
    "core_hours",
    "node_hours",
    "pod_hours",
    "kwh",
    "co2_g",
    "bought",
)
_PLAY: Callable[..., None] = play_rows
_PLAY_WHOLE: Callable[..., None] = play_episodes
FIRST = np.zeros(1, dtype=np.int64)
"""The first row, for batches of one."""
_WORTH_A_THREAD = 256  # nodes of all rows together, below which waking a thread costs more than it saves


@dataclass(frozen=True, slots=True)
class BatchedObservation:
    """What policies see of B rows with up to N nodes; views into the batch, which the next step overwrites.

    =====  ====================  ==================================================================================
    nodes  float32 [B, N, F]     features of nodes (`aaml.scheduling.observation`), 0 beyond a row's own nodes
    pairs  float32 [B, N, K]     of the pod on each node, 0 beyond a row's own nodes
    pod    float32 [B, P]        of the pod
    mask   bool [B, N]           where the pod fits: the only actions there are; all False where an episode is over
    =====  ====================  ==================================================================================
    """

    nodes: FeatureArray
    pairs: FeatureArray
    pod: FeatureArray
    mask: BoolArray


@dataclass(frozen=True)
class Ended:
    """An episode that has ended: which it was, what it came to, and what was seen last (copies, of one row).

    `now_s`: its virtual time; `pending`: how many pods waited besides the one that was shown, if one was.
    """

    row: int
    number: int  # of its group's episodes
    nodes: int
    steps: int
    now_s: float
    pending: int
    last: BatchedObservation
    _means: Mapping[str, float]
    _final: Usage
    _waits_s: FloatArray
    _counts: Mapping[str, int]
    _waiting: int
    _billed: Mapping[str, float]

    @cached_property
    def metrics(self) -> Mapping[str, float]:
        """Everything the episode can be judged by: `SimCluster.metrics`."""
        own = summary(self._means, self._final, self._waits_s, self._waiting, self._counts)
        return {**own, **self._billed}


@dataclass(frozen=True, slots=True)
class BatchedStep:
    """What a step led to; the arrays are overwritten by the next one.

    ==========  =================  ====================================================================================
    reward      float64 [B]        of the decision; -1 for one that was not feasible
    infeasible  bool [B]           the action was outside the mask: the pod is tried again after the next event
    terminated  bool [B]           nothing can happen any more
    truncated   bool [B]           cut off: at the last arrival, or after `max_steps`
    held        float64 [B, M]     what this step added to the time averages' sums (`AVERAGED` x seconds)
    ended       list               of the episodes that ended, in the order of their rows
    ==========  =================  ====================================================================================
    """

    reward: FloatArray
    infeasible: BoolArray
    terminated: BoolArray
    truncated: BoolArray
    held: FloatArray
    ended: Sequence[Ended]


class BatchedEnv:
    """B = groups x group_size rows; the rows of a group (neighbours) play the same episodes, and share them.

    `episodes(group, number)` says what is played. An episode that ends is followed at once by its group's next, so that
    what is seen after a step is never of an ended episode (it is in `BatchedStep.ended`); with `restart` False its row
    rests until the next `reset`. Call `reset`, then `step` as often as wanted.

    observation_spec: what is shown; its graph must be the star, and its model of lifetimes is taken as it is now
    reward: the name of a built-in one, without those of racks and gangs
    own: a person's own reward, compiled (`aaml.episodes.own_rewards`), in place of the built-in one
    expected: what fragments are weighed by in the reward of that name
    queue_sort: in whose order pods wait, None: in kube-scheduler's
    max_steps: an episode is cut off after so many decisions
    threads: None: as many as there are cores
    zeros: makes the arrays that policies see, such as in memory that a GPU reads from
    """

    _tables: FragmentTables | None = None
    _supply: Supply | None = None
    _elastic = False
    _pool: EpisodePool
    _rows: Rows
    _view: View
    _work: list[Work]
    _sizes: dict[str, int]

    def __init__(
        self,
        episodes: Episodes,
        groups: int,
        *,
        group_size: int = 1,
        observation_spec: ObservationSpec = PLAIN,
        reward: str = "balance",
        own: OwnReward | None = None,
        expected: FragmentMeter | None = None,
        queue_sort: QueueSort | None = None,
        queue: QueueSettings = QueueSettings(),  # noqa: B008  (frozen)
        max_steps: int | None = None,
        restart: bool = True,
        threads: int | None = None,
        zeros: Zeros = np.zeros,
    ) -> None:
        for name, value in (("groups", groups), ("group", group_size)):
            take(name, value, Count)
        self._meter = _checked(observation_spec, reward, expected, queue)
        self._episodes, self._groups, self._group_size = episodes, groups, group_size
        self._reward = reward if own is None else ""
        self._queue_sort = None if queue_sort is None else queue_sort.knowing(observation_spec.lifetime_model)
        self._restart = restart
        self._settings = BatchSettings(
            REWARDS[reward], queue_sort is not None, observation_spec.lookahead,
            observation_spec.fragmentation is not None, observation_spec.costs, observation_spec.lifetimes,
            max_steps or 0, queue.initial_backoff_s, queue.max_backoff_s,
        )  # fmt: skip
        self._observation_spec, self._own, self._zeros = observation_spec, own, zeros
        self._lives = None if observation_spec.lifetime_model is None else observation_spec.lifetime_model.table
        self._threads = max(1, (os.cpu_count() or 1) if threads is None else threads)
        self._executor = ThreadPool(self._threads - 1, "batch") if self._threads > 1 else None
        self._models: list[str] = [""]
        sizes = (
            {"B": groups * group_size, "P": observation_spec.pod_size, "M": 1, "W": 0}
            | dict.fromkeys("NGCTSOLEDKUVH", 1)
            | dict.fromkeys("YZJXQAF", 0)
            | {"R": 4, "n": len(NODE), "o": len(OFFER), "t": len(TRAIT)}
            | {"f": len(NODE_FEATURES) + (len(COST_FEATURES) if observation_spec.costs else 0)}
        )
        self._number = np.full(groups * group_size, -1, dtype=np.int64)
        self._slots: dict[tuple[int, int], int] = {}  # (group, number) -> slot
        self._users: dict[int, set[int]] = {}  # slot -> members that have not finished with it
        self._free: list[int] = []
        self._slot_count = 0
        self._plans: dict[int, SupplyPlan] = {}  # by slot, where nodes are bought
        self._addresses: dict[Any, int] = {}  # by kernel of who provisions nodes, or evicts: where its code is
        self._began = False
        self._allocate(sizes, first=True)

    def __len__(self) -> int:
        """Return B."""
        return self._groups * self._group_size

    def reset(self) -> BatchedObservation:
        """Begin the next episode in every row: number 0 at the first call."""
        self._began = True
        self._begin(np.arange(len(self)), int(self._number.max()) + 1)
        return self.seen

    @property
    def seen(self) -> BatchedObservation:
        """What policies see now."""
        view = self._view
        return BatchedObservation(view.nodes, view.pairs, view.pod, view.mask)

    @property
    def alive(self) -> BoolArray:
        """Which rows' episodes go on, bool [B]; the others rest."""
        return np.asarray(self._rows.progress["alive"] > 0)

    @property
    def nodes(self) -> IntArray:
        """How many nodes each row has, int64 [B]."""
        return np.array(self._rows.progress["nodes"])

    @property
    def now_s(self) -> FloatArray:
        """The virtual time of each row, float64 [B]."""
        return np.array(self._rows.progress["now_s"])

    @property
    def pending(self) -> IntArray:
        """How many pods wait besides the one that is shown, int64 [B]."""
        at = self._rows.progress
        return np.asarray(_pending(at) - at["alive"])

    def step(self, actions: npt.ArrayLike) -> BatchedStep:
        """Place each row's pod on a row of its cluster: int [B]. What a resting row is told counts for nothing.

        Raises RuntimeError before the first `reset`, ValueError for actions of another shape or beyond 0 ... N - 1, and
        `UserError` for a person's own reward that is no finite number.
        """
        if not self._began:
            raise RuntimeError("the batch has no episodes yet: call reset() first")
        chosen = np.ascontiguousarray(actions, dtype=np.int64)
        if chosen.shape != (len(self),):
            raise ValueError(f"actions have shape {chosen.shape}, expected ({len(self)},)")
        if chosen.min() < 0 or chosen.max() >= self._sizes["N"]:
            raise ValueError(f"actions lie in {chosen.min()} ... {chosen.max()}, expected 0 ... {self._sizes['N'] - 1}")
        self._play(np.arange(len(self)), chosen)
        at, held = self._rows.progress, self._view.held
        over, limit, reward, infeasible = at["over"] > 0, at["cut"] > 0, at["reward"].copy(), at["infeasible"] > 0
        if self._own is not None and not np.isfinite(reward).all():
            check_reward(float(reward[~np.isfinite(reward)][0]))
        cut = np.isfinite(self._pool.episodes["until_s"][at["slot"]])
        terminated, truncated = over & ~cut, (over & cut) | limit
        ended = np.flatnonzero(over | limit)
        results = [self._end(int(row)) for row in ended]
        step = BatchedStep(reward, infeasible, terminated, truncated, held, results)
        if len(ended) and self._restart:
            step = BatchedStep(reward, infeasible, terminated, truncated, held.copy(), results)
            self._begin(ended, None)
        return step

    def put_order(self, plan: Plan, sort: QueueSort) -> None:
        """Let the waiting pods of the first row's episode, of this plan, be tried in this order."""
        remaining_s = self._pool.pod_times[0, POD_TIMES.remaining_s, : len(plan.arrival_s)]
        order = sort.knowing(self._observation_spec.lifetime_model)
        put_columns(self._pool.pod_times[0], POD_TIMES, since_s=_since_s(plan, remaining_s, order))
        if self._supply is not None:
            self._check_order(order)
            _put_order(self._supply.pool.terms, 0, order)

    def play(
        self, which: IntArray, scorer: Callable[[int], Any], backoff_s: tuple[float, float] | None = None
    ) -> list[Ended]:
        """Play the episodes of the rows `which` int64 [n] from their beginning; return how they ended.

        `scorer(size)` is one of `aaml.episodes.whole`, for up to `size` nodes. `backoff_s`: the first and the longest
        of a pod that found no node, if they are others than the batch's.
        """
        settings = self._settings
        if backoff_s is not None:
            first_s, most_s = map(float, backoff_s)
            settings = settings._replace(initial_backoff_s=first_s, max_backoff_s=most_s)
        left = which
        while len(left):
            _PLAY_WHOLE(
                self._pool, self._rows, self._supply, self._view, self._tables, self._lives, settings, self._work[0],
                left, scorer(self.most_nodes),
            )  # fmt: skip
            left = left[self._rows.progress["short"][left] > 0]
            self._grow(left)
        return [self._end(int(row)) for row in which]

    @property
    def most_nodes(self) -> int:
        """N, how many nodes a row has room for."""
        return self._sizes["N"]

    def close(self) -> None:
        """Let go of the threads."""
        if self._executor is not None:
            self._executor.shutdown()

    # ---- episodes and their slots ------------------------------------------------------------------------------------

    def lay_out(self) -> None:
        """Write the first episode of every row into memory, for `play`: nothing is played."""
        self._write(np.arange(len(self)), 0)

    def _begin(self, which: IntArray, number: int | None) -> None:
        """Begin in each row its group's next episode, or that of a number."""
        self._write(which, number)
        self._play(which, np.full(len(self), BEGIN))
        dead = which[self._rows.progress["alive"][which] == 0]
        if len(dead):
            group, number = int(dead[0]) // self._group_size, int(self._number[dead[0]])
            raise UserError(f"episode {number} of group {group} has no pod that fits anywhere")

    def _write(self, which: IntArray, number: int | None) -> None:
        """Write each row's next episode, or that of a number, into its slot."""
        plans: dict[int, Plan] = {}
        for row in which.tolist():
            self._release(row)
            self._number[row] = self._number[row] + 1 if number is None else number
            key = (row // self._group_size, int(self._number[row]))
            slot = self._slots.get(key)
            if slot is None:
                plan = self._episodes(*key)
                slot = self._slots[key] = self._slot()
                self._users[slot] = set(range(self._group_size))
                plans[slot] = plan
        self._make_room(plans)
        for slot, plan in plans.items():
            self._load(slot, plan)
        for row in which.tolist():
            self._rows.progress["slot"][row] = self._slots[row // self._group_size, int(self._number[row])]

    def _release(self, row: int) -> None:
        """A row is done with its episode; the last member's frees the slot."""
        key = (row // self._group_size, int(self._number[row]))
        slot = self._slots.get(key)
        if slot is None:
            return
        self._users[slot].discard(row % self._group_size)
        if not self._users[slot]:
            del self._slots[key], self._users[slot]
            self._free.append(slot)

    def _slot(self) -> int:
        if not self._free:
            used, self._slot_count = self._slot_count, max(2 * self._slot_count, self._groups)
            self._free = list(range(self._slot_count - 1, used - 1, -1))
        return self._free.pop()

    def _make_room(self, plans: Mapping[int, Plan]) -> None:
        """Grow the arrays for the sizes of new plans.

        What a plan tells of its pods and types is told of those of all rows: rules know no other bounds.
        """
        sizes = {**self._sizes, "W": self._slot_count}
        for plan in plans.values():
            state = plan.fleet.state
            self._models += [name for name in state.gpu_models if name not in self._models]
            own = {
                "N": len(state), "R": len(state.resources), "G": max(state.gpu_free.shape[1], 1),
                "C": len(plan.allowed), "T": len(plan.arrival_s), "S": len(plan.request),
                "O": max(int(plan.owner.max(initial=-1)) + 1, 1),
            }  # fmt: skip
            if plan.supply is not None:
                pods = own["T"]
                own |= {letter: max(size, pods // _OF_PODS[letter]) for letter, size in _FIRST_SIZES.items()} | {
                    "K": len(plan.supply.offers), "U": plan.supply.budgets.shape[1], "V": len(plan.supply.corners),
                    "H": len(plan.supply.carbon), "J": (devices := plan.supply.devices.shape[1]),
                    "G": max(own["G"], devices),
                }  # fmt: skip
                own |= {"Q": len(plan.supply.limits), "Y": 1 if plan.supply.may.size else 0}
                own |= {"A": len(plan.supply.book.amounts), "F": len(plan.supply.book.steps)}
                self._elastic = True
            self._check_kind(plan)
            sizes |= {letter: max(sizes[letter], size) for letter, size in own.items()}
        sizes["X"] = sizes["T"] if sizes["Q"] else 0
        sizes["Y"], sizes["Z"] = (sizes["T"], sizes["K"]) if sizes["Y"] else (0, 0)
        before = self._sizes
        self._allocate(sizes)
        for slot in self._users.keys() - plans.keys() if self._elastic and sizes != before else ():
            self._load_supply(slot, self._plans[slot])  # new room is no 0: names of nodes, budgets, what pods may

    def _allocate(self, sizes: dict[str, int], *, first: bool = False) -> None:
        known = self._tables is None or len(self._models) == self._tables.fitting.shape[0]
        if not first and sizes == self._sizes and known:
            return
        if self._meter is not None:
            self._tables = fragment_tables(self._meter.typical, self._models, sizes["G"])
            sizes["M"] = max(len(self._tables.milli), 1)
        self._pool = allocate(EpisodePool, sizes, None if first else self._pool)
        self._rows = allocate(Rows, sizes, None if first else self._rows)
        self._view = allocate(View, sizes, None if first else self._view, self._zeros)
        if self._elastic:
            old = None if self._supply is None else self._supply
            self._supply = Supply(
                allocate(SupplyPool, sizes, old and old.pool, layout=SUPPLY_LAYOUT),
                allocate(SupplyRows, sizes, old and old.rows, layout=SUPPLY_LAYOUT),
            )
        self._work = [_work(sizes, self._elastic) for _ in range(self._threads)]
        self._sizes = sizes

    def _grow(self, which: IntArray) -> bool:
        """Make twice the room for what comes and goes, where a row waits for that; returns whether one does."""
        if not (self._rows.progress["short"][which] > 0).any():
            return False
        self._allocate({letter: size * (2 if letter in _FIRST_SIZES else 1) for letter, size in self._sizes.items()})
        for slot in self._users:
            self._draw(slot, self._plans[slot])
        return True

    def _draw(self, slot: int, supply: SupplyPlan) -> None:
        """Write what nodes are called that may be bought in an episode, and how long they take."""
        if self._supply is not None:
            pool = self._supply.pool
            pool.names[slot], pool.choices[slot], pool.spreads[slot] = supply.draw(self._sizes["L"])

    def _check_kind(self, plan: Plan) -> None:
        """Raise `UserError` for what is not compiled where nodes are bought, or where they stay."""
        if plan.supply is None:
            if self._elastic or self._reward == "bill":
                raise UserError("reward bill: nobody buys nodes here; take a task whose nodes cost, such as bill")
            return
        if self._reward in _NOT_ELASTIC:
            raise bad_value("reward", self._reward, "another one for compiled episodes in which nodes are bought")
        if self._queue_sort is not None:
            self._check_order(self._queue_sort)

    def _check_order(self, order: QueueSort) -> None:
        """Raise `UserError` for an order by the true lifetimes of pods, of which evictions leave less."""
        if order.looks_ahead and isinstance(self._observation_spec.lifetime_model, KnownLifetimes):
            raise UserError("compiled episodes in which nodes are bought know no order of pods by their true lifetimes")

    def _load_supply(self, slot: int, supply: SupplyPlan) -> None:
        """Write who buys the nodes of an episode into its slot."""
        if self._supply is None:
            return
        pool, self._plans[slot] = self._supply.pool, supply
        for name, value in supply.terms().items():
            pool.terms[name][slot] = value
        pool.terms["rule"][slot], pool.terms["descheduler"][slot] = self._look_up(self._supply, slot, supply)
        if self._queue_sort is not None:
            _put_order(pool.terms, slot, self._queue_sort)
        put(pool.offers[slot], supply.offers)
        put(pool.prices[slot], supply.prices)
        put(pool.carbon[slot], np.asarray(supply.carbon, dtype=np.float64))
        put(pool.budgets[slot], supply.budgets)
        put(pool.pods[slot], supply.pods)
        put(pool.kept_s[slot], supply.kept_s)
        pool.devices[slot], pool.may[slot], pool.corners[slot] = 0, True, 0.0
        pool.protected[slot], pool.stuck[slot] = NOBODY, False
        put(pool.alike[slot], supply.alike)
        if len(supply.limits):
            put(pool.protected[slot], supply.protected)
            put(pool.selected[slot], supply.selected)
            put(pool.limits[slot], supply.limits)
            put(pool.stuck[slot], supply.stuck)
        put(pool.amounts[slot], supply.book.amounts)
        put(pool.steps[slot], supply.book.steps)
        put(pool.corners[slot], supply.corners)
        put(pool.devices[slot], supply.devices)
        put(pool.may[slot], supply.may)
        pool.models[slot, : len(supply.models)] = [self._models.index(name) for name in supply.models]
        pool.evicting[slot] = eviction(0)  # pods of compiled episodes have no priority
        self._draw(slot, supply)

    def _look_up(self, memory: Supply, slot: int, supply: SupplyPlan) -> tuple[int, int]:
        """Return where the code is of who provisions nodes, and of the descheduler, 0 without one.

        And say, once, where `next_owned` is.
        """
        known = self._addresses
        if supply.rule not in known or (supply.descheduler is not None and deschedule not in known):
            progress, episodes, work = self._rows.progress[:1].copy(), self._pool.episodes, self._work[0]
            progress["slot"] = slot
            rows = self._rows._replace(progress=progress.view(np.recarray))
            env = interpreted(env_of)(self._pool._replace(episodes=episodes.view(np.recarray)), rows, 0)
            owned: Any = owned_of(memory, env, 0)
            known[supply.rule] = address_of(supply.rule, owned.seen, work.supply.rule)
            episode = env, owned, self._settings, work
            returns(boolean, *episode)
            if not self._settings.next_owned:
                next_at = address_of(next_owned, *episode, self._view.mask[0])
                self._settings = self._settings._replace(next_owned=next_at)
            if supply.descheduler is not None:
                known[deschedule] = address_of(deschedule, *episode)
        return known[supply.rule], 0 if supply.descheduler is None else known[deschedule]

    def _load(self, slot: int, plan: Plan) -> None:
        """Write a plan into its slot."""
        if plan.supply is not None and self._supply is not None:
            put(self._supply.pool.endures[slot], plan.endures)
            self._load_supply(slot, plan.supply)
        pool, state = self._pool, plan.fleet.state
        mean_cpu, mean_memory = plan.fleet.mean_size
        has_gpus = state.gpu_count.any() or (plan.supply is not None and plan.supply.devices.any())
        sizes = len(state), len(plan.arrival_s), has_gpus
        pool.episodes[slot] = (*sizes, plan.supply is not None, plan.until_s, mean_cpu, mean_memory)
        pool.allocatable[slot] = 0  # resources of other plans are columns too
        put(pool.allocatable[slot], state.allocatable)
        number = np.array([self._models.index(name) for name in state.gpu_models])  # a model's number in this batch
        put_columns(pool.node_facts[slot], NODE_FACTS, gpu_count=state.gpu_count, gpu_model=number[state.gpu_model])
        put_columns(pool.node_flags[slot], NODE_FLAGS, cordoned=state.unschedulable, capacity=state.capacity)
        put(pool.node_flags[slot, NODE_FLAGS.allowed :], plan.allowed)
        since_s, (expected, sure, remaining_s) = plan.arrival_s, self._lasting(plan)
        if self._queue_sort is not None:
            since_s = _since_s(plan, remaining_s, self._queue_sort)
        put_columns(
            pool.pod_times[slot], POD_TIMES, arrival_s=plan.arrival_s, lifetime_s=plan.lifetime_s, since_s=since_s,
            expected=expected, sure=sure, limit_s=plan.limit_s, remaining_s=remaining_s,
        )  # fmt: skip
        put_columns(pool.pod_facts[slot], POD_FACTS, owner=plan.owner, shape=plan.shape, kind=plan.kind)
        gpu, bits = plan.gpu.copy(), plan.gpu[:, SHAPE_MODELS]
        ours = sum(((bits >> old & 1) << new for old, new in enumerate(number)), start=np.zeros_like(bits))
        gpu[:, SHAPE_MODELS] = np.where(plan.picky, ours, -1)
        pool.shapes[slot] = 0
        put(pool.shapes[slot], np.column_stack([gpu, plan.tolerance, plan.picky, plan.request]))

    def _lasting(self, plan: Plan) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the features of the pods' lifetimes and their expected rests, each [T]."""
        remaining_s, sure = np.zeros((2, len(plan.kind)))
        if self._lives is not None:
            expected_remaining(self._lives, plan.kind, plan.limit_s, remaining_s, sure)
        expected = log_seconds(remaining_s)
        if self._observation_spec.lifetimes:
            known = np.isfinite(plan.lifetime_s)
            sure[known], expected[known] = 1.0, log_seconds(plan.lifetime_s[known])
        return expected, sure, remaining_s

    def _end(self, row: int) -> Ended:
        """Take down how a row's episode ended."""
        rows, view = self._rows, self._view
        at = rows.progress[row]
        slot, now_s, seconds = at["slot"], float(at["now_s"]), float(at["seconds"])
        n = int(at["nodes"])
        counts = {name: int(at[name]) for name in _COUNTED}
        pending, waits_s = int(_pending(at)), self._waits_s(row)
        billed: Mapping[str, float] = {}
        if self._supply is not None:
            state = self._supply.rows.states[row]
            meter = {name: state[name].item() for name in _METERED}
            billed = self._plans[slot].billed(meter, waits_s, counts["evicted"], now_s)
        means = (rows.totals[row] / seconds).tolist() if seconds else [float("nan")] * len(AVERAGED)
        usage = measure_usage(
            rows.allocatable[row, :n], rows.requested[row, :n], rows.node_flags[row, NODE_FLAGS.capacity, :n],
            rows.gpu_free[row, :n], rows.node_facts[row, NODE_FACTS.gpu_count, :n],
        )  # fmt: skip
        return Ended(
            row,
            int(self._number[row]),
            n,
            int(at["steps"]),
            now_s,
            pending - int(not at["over"]),
            BatchedObservation(
                view.nodes[row].copy(), view.pairs[row].copy(), view.pod[row].copy(), view.mask[row].copy()
            ),
            dict(zip(AVERAGED, means, strict=True)),
            Usage(*usage),
            waits_s,
            counts,
            pending,
            billed,
        )

    def _waits_s(self, row: int) -> FloatArray:
        """Return how long each pod of a row has waited in all: `Journal.waiting_times_s`."""
        at, rows = self._rows.progress[row], self._rows
        arrived, now_s = int(at["arrived"]), float(at["now_s"])
        waits = rows.pods[row, POD_STATES.node, :arrived] == WAITS
        if self._supply is None:
            waited_s = rows.times[row, POD_STATE_TIMES.waited_s, : at["bound"]]
            return np.concatenate(
                [waited_s, now_s - self._pool.pod_times[at["slot"], POD_TIMES.arrival_s, :arrived][waits]]
            )
        supply = self._supply.rows
        since_s, first = supply.pod_times[row, POD_TIME.created_s, :arrived], supply.pods[row, POD.first, :arrived]
        waited_s = rows.times[row, POD_STATE_TIMES.waited_s, : supply.states[row]["firsts"]].copy()
        again = waits & (first >= 0)
        waited_s[first[again]] = waited_s[first[again]] + now_s - since_s[again]
        return np.concatenate([waited_s, now_s - since_s[waits & (first < 0)]])

    # ---- threads -----------------------------------------------------------------------------------------------------

    def _play(self, which: IntArray, actions: IntArray) -> None:
        """Carry out the actions of some rows."""
        self._play_once(which, actions)
        while self._grow(which):
            which = which[self._rows.progress["short"][which] > 0]
            self._play_once(which, np.full(len(self), RESUME))

    def _play_once(self, which: IntArray, actions: IntArray) -> None:
        """Let rows go on, split evenly over the threads that are worth waking."""
        parts = min(self._threads, len(which), 1 + len(which) * self._sizes["N"] // _WORTH_A_THREAD)
        memory = (
            self._pool, self._rows, self._supply, self._view, self._tables, self._lives, self._own, self._settings
        )  # fmt: skip
        if self._executor is None or parts == 1:
            _PLAY(*memory, self._work[0], which, actions)
            return
        mine, *others = np.array_split(which, parts)
        running = [
            self._executor.submit(_PLAY, *memory, work, part, actions)
            for work, part in zip(self._work[1:], others, strict=False)
        ]
        _PLAY(*memory, self._work[0], mine, actions)
        for part in running:
            part.result()


def _put_order(terms: npt.NDArray[np.void], slot: int, order: QueueSort) -> None:
    """Write the order of waiting pods, of which the delays depend on the nodes that there are."""
    for name, value in order.numbers().items():
        terms[name][slot] = value


def _pending(at: npt.NDArray[np.void]) -> IntArray:
    """Return how many pods wait, the one that is shown included."""
    return np.asarray(at["arrived"] + at["recreated"] - at["bound"])


def _since_s(plan: Plan, remaining_s: FloatArray, sort: QueueSort) -> FloatArray:
    """Return when each pod counts as having come, by which waiting ones are tried, float64 [T]."""
    (mean_cpu, mean_memory), requests = plan.fleet.mean_size, plan.request[plan.shape]
    delays_s = sort.delays_s(requests[:, CPU_COLUMN] / mean_cpu, requests[:, MEMORY_COLUMN] / mean_memory, remaining_s)
    return np.asarray(plan.arrival_s + delays_s)


def _checked(
    observation_spec: ObservationSpec, reward: str, expected: FragmentMeter | None, queue: QueueSettings
) -> FragmentMeter | None:
    """Return the meter of fragments, None when nothing needs one; `UserError` for what is not compiled."""
    if reward not in REWARDS:
        raise bad_value("reward", reward, f"for compiled episodes one of {', '.join(REWARDS)}")
    if observation_spec.racks:
        raise UserError("compiled episodes show the star graph only, not racks")
    if queue.flush_after_s < inf:
        raise bad_value("flush_after_s", queue.flush_after_s, "infinity in compiled episodes")
    shown = observation_spec.fragmentation
    if shown is not None and not isinstance(shown, FragmentMeter):
        raise bad_value("fragmentation", shown, "a FragmentMeter in compiled episodes")
    if reward != "fragmentation":
        return shown
    if expected is None:
        raise UserError("reward fragmentation: there are no expected pods to weigh fragments by")
    if shown is not None and shown != expected:
        raise UserError("compiled episodes show fragments as the reward weighs them, by the same expected pods")
    return expected


def _work(sizes: Mapping[str, int], elastic: bool) -> Work:
    supply = None
    if elastic:
        paid = np.zeros((PAID_COLUMNS, sizes["N"]))
        supply = SupplyWork(allocate(RuleWork, sizes, layout=SUPPLY_LAYOUT), paid)
    work = allocate(Work, sizes)._replace(supply=supply)
    work.nothing[PODS_COLUMN] = 1  # no pod takes the room of one, as in `ClusterState.request_vector`
    work.queued[:] = np.log1p(np.arange(sizes["T"])) / 5.0
    return work
