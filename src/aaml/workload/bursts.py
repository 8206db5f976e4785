"""When the pods of a mix come, in compiled code: the draws are those that NumPy makes, one after the other."""

import numpy as np

from aaml.cluster.kernels import compiled


@compiled
def arrival_times(rng, count, burst, rate_per_s):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
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
