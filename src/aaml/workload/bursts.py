"""When the pods of a mix come, in compiled code: the draws are those that NumPy makes, one after the other."""

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import compiled

FloatArray = npt.NDArray[np.float64]


@compiled
def arrival_times(rng: np.random.Generator, count: int, burst: float, rate_per_s: float) -> FloatArray:
    """Return float64 [count], seconds: bursts come as a Poisson process, their sizes are geometric with mean `burst`.

    `rng` is a `numpy.random.Generator`, which is advanced.
    """
    times, at_s, made = np.empty(count), 0.0, 0
    while made < count:
        at_s += rng.exponential(burst / rate_per_s)
        size = min(rng.geometric(1.0 / burst), count - made)
        times[made : made + size] = at_s
        made += size
    return times
