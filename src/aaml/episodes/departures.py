"""A binary heap of departures in two arrays, in compiled code: when each leaves, and which pod it is."""

from aaml.cluster.kernels import without_refcount
from aaml.episodes.rows import FloatArray, SmallArray


@without_refcount
def push(times: FloatArray, pods: SmallArray, count: int, at_s: float, pod: int) -> None:
    """Add to a binary heap of `count` departures."""
    place = count
    while place > 0 and times[(place - 1) // 2] > at_s:
        parent = (place - 1) // 2
        times[place], pods[place] = times[parent], pods[parent]
        place = parent
    times[place], pods[place] = at_s, pod


@without_refcount
def drop(times: FloatArray, pods: SmallArray, count: int) -> None:
    """Take the first of a binary heap of `count` departures away."""
    last_s, last, place = times[count - 1], pods[count - 1], 0
    while 2 * place + 1 < count - 1:
        child = 2 * place + 1
        if child + 1 < count - 1 and times[child + 1] < times[child]:
            child += 1
        if times[child] >= last_s:
            break
        times[place], pods[place] = times[child], pods[child]
        place = child
    times[place], pods[place] = last_s, last
