"""Go's `math/rand` (version 1), so that runs seeded in a Go program are drawn the same here.

The generator is the additive lagged Fibonacci x[n] = x[n-607] + x[n-273] mod 2^64 of the Go distribution's package
math/rand, seeded by the minimal-standard generator of Park and Miller (multiplier 48271) and a table of constants,
which is shipped as data with Go's notice beside it.
"""

from collections.abc import MutableSequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

_LENGTH, _TAP = 607, 273
_INT31, _MASK63, _MASK64 = (1 << 31) - 1, (1 << 63) - 1, (1 << 64) - 1
_SEED_OF_ZERO = 89482311


@cache
def _cooked() -> tuple[int, ...]:
    raw = files("aaml.workload").joinpath("data", "go_rng_cooked.bin").read_bytes()
    return tuple(int(word) for word in np.frombuffer(raw, dtype="<u8"))


class GoRand:
    """The generator `rand.New(rand.NewSource(seed))` of Go, with the same draws in the same order."""

    def __init__(self, seed: int) -> None:
        state = abs(seed) % _INT31 * (1 if seed >= 0 else -1) % _INT31 or _SEED_OF_ZERO
        for _ in range(20):
            state = state * 48271 % _INT31
        words = []
        for constant in _cooked():
            word = 0
            for shift in (40, 20, 0):
                state = state * 48271 % _INT31
                word ^= state << shift
            words.append((word ^ constant) & _MASK64)
        self._words = words
        self._tap, self._feed = 0, _LENGTH - _TAP

    def uint64(self) -> int:
        """Draw 64 bits: every other draw is made of these."""
        self._tap = self._tap - 1 if self._tap else _LENGTH - 1
        self._feed = self._feed - 1 if self._feed else _LENGTH - 1
        word = (self._words[self._feed] + self._words[self._tap]) & _MASK64
        self._words[self._feed] = word
        return word

    def int63(self) -> int:
        """Draw from [0, 2^63); `Int` on a 64-bit machine is the same."""
        return self.uint64() & _MASK63

    def uint32(self) -> int:
        """Draw from [0, 2^32)."""
        return self.int63() >> 31

    def intn(self, n: int) -> int:
        """Draw from [0, n), each number with the same probability. Raises ValueError unless 0 < n < 2^31."""
        if not 0 < n <= _INT31:
            raise ValueError(f"intn needs 0 < n < 2^31, not {n}")
        draw = self.int63() >> 32
        if n & (n - 1) == 0:
            return draw & (n - 1)
        largest = _INT31 - (1 << 31) % n
        while draw > largest:
            draw = self.int63() >> 32
        return draw % n

    def perm(self, n: int) -> list[int]:
        """Draw a permutation of 0 ... n-1."""
        result = [0] * n
        for i in range(n):
            j = self.intn(i + 1)
            result[i] = result[j]
            result[j] = i
        return result

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Permute `items` in place (`Shuffle` with a swap of two items)."""
        for i in range(len(items) - 1, 0, -1):
            j = self._bounded(i + 1)
            items[i], items[j] = items[j], items[i]

    def _bounded(self, n: int) -> int:
        """Draw from [0, n) by multiplication (Lemire), as `Shuffle` does."""
        product = self.uint32() * n
        low = product & 0xFFFFFFFF
        if low < n:
            threshold = ((1 << 32) - n) % n
            while low < threshold:
                product = self.uint32() * n
                low = product & 0xFFFFFFFF
        return product >> 32
