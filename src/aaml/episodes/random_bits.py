"""Random bits in compiled code."""

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import without_refcount

BitState = npt.NDArray[np.uint64]


@without_refcount
def draw(state: BitState) -> np.int64:
    """Draw 62 random bits (splitmix64, Steele et al. 2014) and advance `state` uint64 [1]; returns an int64."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    word = state[0]
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return np.int64(word >> np.uint64(2))
