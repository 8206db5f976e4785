"""Experience as it is kept to be learned from again: a ring of single decisions, or the last rounds of each size."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aaml.learning.collate import Batch, collate
from aaml.learning.storage import Experience, pack, unpack
from aaml.scheduling.observation import Observation
from aaml.scheduling.ports import Transition
from aaml.scheduling.rewards import check_reward

ROUNDS = 4  # of each cluster size that are kept where nobody says how many decisions


@dataclass(frozen=True)
class Observations:
    """Observations of any sizes and graphs, which are padded as they are taken."""

    items: Sequence[Observation]
    graphs: bool

    def __len__(self) -> int:
        return len(self.items)

    def take(self, rows: Tensor) -> Batch:
        """Return some of them as a batch."""
        return collate([self.items[row] for row in rows.tolist()], self.graphs)


Seen = Observations | Batch
"""What was seen in M decisions."""


@dataclass(frozen=True)
class Transitions:
    """A batch of B decisions and what followed them, for action values.

    =========  =====================  =============================================================================
    seen       Batch of B             what was seen
    action     int64 [B]              what was done
    reward     float [B]              the next n discounted rewards, in units of their scale
    discount   float [B]              of the value of what followed
    goes_on    bool [B]               where something followed: K in all
    following  Batch of K, None       what was seen then
    weight     float [B], None        importance of each; None: all count alike
    log_prob   float [B, N], None     of each node under the policy that sampled the action, where that is known
    =========  =====================  =============================================================================
    """

    seen: Batch
    action: Tensor
    reward: Tensor
    discount: Tensor
    goes_on: Tensor
    following: Batch | None = None
    weight: Tensor | None = None
    log_prob: Tensor | None = None


class Priorities:
    """How often each of some decisions is drawn: all alike, or by their errors.

    Schaul et al.: Prioritized Experience Replay (2016), the proportional variant: P(i) ~ (|error| + eps)^alpha, with
    importance weights (size * P)^-beta divided by their maximum.
    """

    ALPHA, BETA, LEAST = 0.6, 0.4, 1e-3

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def draw(
        self, count: int, size: int, generator: torch.Generator, *, by_error: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return (rows int64 [size] of the first `count`, importance weights or None where all count alike)."""
        if not by_error:
            return torch.randint(count, (size,), generator=generator, device=generator.device), None
        chance = self.values[:count] ** self.ALPHA
        rows = torch.multinomial(chance, size, replacement=True, generator=generator)
        weight = (count * chance[rows] / chance.sum()) ** -self.BETA
        return rows, (weight / weight.max()).to(torch.float32)

    def update(self, rows: Tensor, error: Tensor) -> None:
        """Set the priority of rows to the size of their errors."""
        self.values[rows] = (error.abs() + self.LEAST).to(self.values.dtype)


class NStep:
    """Turns the steps of one stream, in their order, into experience of up to `n` steps, 0: to the episode's end."""

    def __init__(self, n: int, gamma: float) -> None:
        self._n = n
        self._gamma = gamma
        self._pending: deque[Transition] = deque()

    def push(self, step: Transition) -> Iterator[Experience]:
        """Yield what is complete with this step.

        The last step before a pause, whose continuation nobody has seen, is left out; those before it bootstrap from
        that last state.
        """
        self._pending.append(step)
        if step.terminated or (step.truncated and step.next_observation is not None):
            while self._pending:
                yield self._first(len(self._pending))
                self._pending.popleft()
        elif step.next_observation is None:
            while len(self._pending) > 1:
                yield self._first(len(self._pending) - 1)
                self._pending.popleft()
            self._pending.clear()
        elif len(self._pending) == self._n:
            yield self._first(self._n)
            self._pending.popleft()

    def _first(self, length: int) -> Experience:
        first, last = self._pending[0], self._pending[length - 1]
        reward = sum(self._gamma**i * self._pending[i].reward for i in range(length))
        if last.terminated:
            return Experience(first.observation, first.action, reward, 0.0, None)
        return Experience(first.observation, first.action, reward, self._gamma**length, last.next_observation)


class Replay:
    """A ring buffer of single decisions; `divisor` says what to divide their rewards by as they are drawn."""

    def __init__(
        self,
        capacity: int,
        *,
        prioritized: bool = False,
        graphs: bool = True,
        divisor: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._capacity, self._prioritized, self._graphs, self._divisor = capacity, prioritized, graphs, divisor
        self._items: list[Experience] = []
        self._priorities = Priorities(torch.zeros(capacity, dtype=torch.float64))
        self._next, self._drawn = 0, torch.zeros(0, dtype=torch.int64)

    def __len__(self) -> int:
        """Experience kept now."""
        return len(self._items)

    @property
    def items(self) -> Sequence[Experience]:
        """What is kept, in no particular order."""
        return self._items

    def add(self, item: Experience) -> None:
        """Keep an item, in place of the oldest one when full; it gets the highest priority so far."""
        values = self._priorities.values
        highest = float(values[: len(self._items)].max()) if self._prioritized and self._items else 0.0
        if len(self._items) < self._capacity:
            self._items.append(item)
        else:
            self._items[self._next] = item
        values[self._next] = highest or 1.0
        self._next = (self._next + 1) % self._capacity

    def forget(self, old: Callable[[Experience], bool]) -> None:
        """Drop the oldest items for as long as they are `old`."""
        count = len(self._items)
        begin = self._next if count == self._capacity else 0
        places = [(begin + i) % count for i in range(count)]
        kept = list(dropwhile(lambda place: old(self._items[place]), places))
        if len(kept) < count:
            values = self._priorities.values
            priority = values[kept].clone()
            values.zero_()
            values[: len(kept)] = priority
            self._items, self._next = [self._items[i] for i in kept], len(kept)

    def sample(self, size: int, generator: torch.Generator) -> Transitions:
        """Return `size` items, drawn with replacement."""
        rows, weight = self._priorities.draw(len(self._items), size, generator, by_error=self._prioritized)
        self._drawn = rows
        items = [self._items[row] for row in rows.tolist()]
        following = [item.next_observation for item in items if item.next_observation is not None]
        divisor = self._divisor()
        return Transitions(
            collate([item.observation for item in items], self._graphs),
            torch.tensor([item.action for item in items]),
            torch.tensor([item.reward / divisor for item in items]),
            torch.tensor([item.discount for item in items]),
            torch.tensor([item.next_observation is not None for item in items]),
            collate(following, self._graphs) if following else None,
            weight,
        )

    def reprioritize(self, error: Tensor) -> None:
        """Set the priority of the items drawn last to the size of their temporal-difference errors."""
        if self._prioritized:
            self._priorities.update(self._drawn, error)

    def state(self) -> dict[str, Any]:
        """Return the buffer as tensors and plain values."""
        return {"items": pack(self._items), "priority": self._priorities.values.clone(), "next": self._next}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Hold what `state` returned, of a buffer with the same capacity."""
        self._items = unpack(state["items"])
        self._priorities = Priorities(state["priority"].clone())
        self._next = int(state["next"])


class LastRounds:
    """The last rounds of each cluster size, up to `most` decisions of it, 0: four rounds.

    What is learned of one size is soon lost without it. A batch is drawn from one round, each as likely as any other.
    """

    def __init__(self, most: int, *, prioritized: bool = False) -> None:
        self._most, self._prioritized = most, prioritized
        self._by_size: dict[int, deque[tuple[Transitions, Priorities]]] = {}
        self._drawn = Priorities(torch.ones(0)), torch.zeros(0, dtype=torch.int64)

    def __len__(self) -> int:
        """Rounds kept."""
        return sum(map(len, self._by_size.values()))

    def add(self, played: Transitions) -> None:
        """Keep a round, in place of the oldest of its size where there are enough."""
        highest = max((float(each.values.max()) for _, each in self._rounds), default=1.0)
        kept = self._by_size.setdefault(played.seen.mask.shape[1], deque())
        kept.append((played, Priorities(torch.full((len(played.action),), highest, device=played.action.device))))
        while len(kept) > 1 and self._too_many(kept):
            kept.popleft()

    def sample(self, size: int, generator: torch.Generator) -> Transitions:
        """Return `size` decisions of one of the rounds, drawn with replacement."""
        number = torch.randint(len(self), (1,), generator=generator, device=generator.device)
        played, priorities = self._rounds[int(number)]
        rows, weight = priorities.draw(len(played.action), size, generator, by_error=self._prioritized)
        self._drawn, goes_on, log_prob = (priorities, rows), played.goes_on[rows], played.log_prob
        following = None
        if played.following is not None and bool(goes_on.any()):
            following = played.following.take((played.goes_on.cumsum(0) - 1)[rows][goes_on])
        return Transitions(
            played.seen.take(rows), played.action[rows], played.reward[rows], played.discount[rows], goes_on, following,
            weight, None if log_prob is None else log_prob[rows],
        )  # fmt: skip

    def reprioritize(self, error: Tensor) -> None:
        """Set the priority of the decisions drawn last to the size of their errors."""
        if self._prioritized:
            priorities, rows = self._drawn
            priorities.update(rows, error)

    def forget(self) -> None:
        """Keep nothing."""
        self._by_size.clear()

    def _too_many(self, kept: Sequence[tuple[Transitions, Priorities]]) -> bool:
        return sum(len(each.action) for each, _ in kept) > self._most if self._most else len(kept) > ROUNDS

    @property
    def _rounds(self) -> list[tuple[Transitions, Priorities]]:
        return [each for size in self._by_size.values() for each in size]


Buffer = Replay | LastRounds
"""What action values are learned from."""


@dataclass
class RewardScale:
    """The running root mean square of rewards: learning rates, the Huber threshold and margins then fit any reward."""

    count: float = 0.0
    square_sum: float = 0.0

    def add(self, reward: float) -> None:
        """Take one reward into account; raises `UserError` for one that is no finite number, and nothing is taken."""
        check_reward(reward)
        self.count += 1.0
        self.square_sum += reward * reward

    @property
    def divisor(self) -> float:
        """What to divide rewards by: 1 until there was a reward other than 0."""
        return float(np.sqrt(self.square_sum / self.count)) if self.square_sum > 0.0 else 1.0
