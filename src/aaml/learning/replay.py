"""Experience: n-step returns made from single steps, a ring buffer that keeps them, and the scale of rewards."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aaml.learning.storage import Experience, pack, unpack
from aaml.scheduling.ports import Transition
from aaml.scheduling.rewards import check_reward

__all__ = ["Experience", "NStep", "Replay", "RewardScale"]


class NStep:
    """Turns the steps of one stream, in their order, into experience of up to `n` steps."""

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
    """A ring buffer of experience, sampled uniformly or by priority.

    Schaul et al.: Prioritized Experience Replay (2016), the proportional variant: P(i) ~ (|error| + eps)^alpha, with
    importance weights (size * P)^-beta divided by their maximum.
    """

    ALPHA = 0.6
    BETA = 0.4
    LEAST = 1e-3

    def __init__(self, capacity: int, rng: np.random.Generator, prioritized: bool = False) -> None:
        self._capacity = capacity
        self._rng = rng
        self._prioritized = prioritized
        self._items: list[Experience] = []
        self._priority = np.zeros(capacity)
        self._next = 0

    def __len__(self) -> int:
        """Experience kept now."""
        return len(self._items)

    def add(self, item: Experience) -> None:
        """Keep an item, in place of the oldest one when full; it gets the highest priority so far."""
        highest = self._priority[: len(self._items)].max(initial=0.0)
        if len(self._items) < self._capacity:
            self._items.append(item)
        else:
            self._items[self._next] = item
        self._priority[self._next] = highest or 1.0
        self._next = (self._next + 1) % self._capacity

    def forget(self, old: Callable[[Experience], bool]) -> None:
        """Drop the oldest items for as long as they are `old`."""
        count = len(self._items)
        begin = self._next if count == self._capacity else 0
        places = [(begin + i) % count for i in range(count)]
        kept = list(dropwhile(lambda place: old(self._items[place]), places))
        if len(kept) < count:
            priority = self._priority[kept]
            self._priority[:] = 0.0
            self._items, self._priority[: len(kept)], self._next = [self._items[i] for i in kept], priority, len(kept)

    def clear(self) -> None:
        """Forget everything."""
        self._items, self._next = [], 0

    def sample(self, size: int) -> tuple[list[Experience], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return (items, their places, importance weights), `size` of each, drawn with replacement."""
        count = len(self._items)
        if not self._prioritized:
            places = self._rng.integers(count, size=size)
            return [self._items[i] for i in places], places, np.ones(size, dtype=np.float32)
        chance = self._priority[:count] ** self.ALPHA
        chance /= chance.sum()
        places = self._rng.choice(count, size=size, p=chance)
        weights = (count * chance[places]) ** -self.BETA
        return [self._items[i] for i in places], places, (weights / weights.max()).astype(np.float32)

    def reprioritize(self, places: npt.NDArray[np.int64], errors: npt.NDArray[np.floating]) -> None:
        """Set the priority of items to the size of their temporal-difference errors."""
        self._priority[places] = np.abs(errors) + self.LEAST

    def state(self) -> dict[str, Any]:
        """Return the buffer as arrays and plain values."""
        return {
            "items": pack(self._items),
            "priority": torch.from_numpy(self._priority.copy()),
            "next": self._next,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Hold what `state` returned, of a buffer with the same capacity."""
        self._items = unpack(state["items"])
        self._priority = state["priority"].numpy().copy()
        self._next = int(state["next"])

    @property
    def items(self) -> Sequence[Experience]:
        """What is kept, in no particular order."""
        return self._items


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
