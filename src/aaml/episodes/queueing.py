"""The scheduling queue of compiled episodes: which pods are tried at a moment, in which order.

It is `aaml.scheduling.queue` for what a simulated cluster does to it: time only moves when every ready pod has been
tried, so that whoever waits then is unschedulable, or was left by the policy. A departure helps all the former.
"""

import numpy as np

from aaml.cluster.kernels import inlined, without_refcount
from aaml.episodes.rows import BatchSettings, Env, FloatArray, SmallArray

_RUN = 16


@without_refcount
def stable_sort(keys: FloatArray, pods: SmallArray, count: int, other_keys: FloatArray, other: SmallArray) -> None:  # noqa: C901
    """Sort the first `count` pods by their keys; those of equal keys keep their order. `other*` are overwritten."""
    in_order = True
    for i in range(1, count):
        if keys[i] < keys[i - 1]:
            in_order = False
            break
    if in_order:
        return
    for start in range(0, count, _RUN):
        for i in range(start + 1, min(start + _RUN, count)):
            key, pod, place = keys[i], pods[i], i
            while place > start and keys[place - 1] > key:
                keys[place], pods[place] = keys[place - 1], pods[place - 1]
                place -= 1
            keys[place], pods[place] = key, pod
    width = _RUN
    while width < count:
        for start in range(0, count, 2 * width):
            middle, end = min(start + width, count), min(start + 2 * width, count)
            left, right = start, middle
            for place in range(start, end):
                if left < middle and (right >= end or keys[left] <= keys[right]):
                    other_keys[place], other[place] = keys[left], pods[left]
                    left += 1
                else:
                    other_keys[place], other[place] = keys[right], pods[right]
                    right += 1
        for i in range(count):
            keys[i], pods[i] = other_keys[i], other[i]
        width *= 2


@inlined
def give_up(env: Env) -> int:
    """Take the first ready pod out of the queue's first list; returns it."""
    pod = env.queue.ready[env.at.cursor]
    env.pods.failures[pod] += 1
    env.pods.added_s[pod] = env.at.now_s
    env.at.cursor += 1
    return pod


@without_refcount
def backoff_window(added_s: float, failures: int, settings: BatchSettings) -> float:
    """Return the second with which a pod's backoff ends, -inf where it does not back off."""
    if settings.sorted or settings.initial_backoff_s <= 0.0:
        return -np.inf
    doubled = 2.0 ** min(failures - 1, 60)
    return np.floor(added_s + min(settings.max_backoff_s, settings.initial_backoff_s * doubled))


@inlined
def enqueue(env: Env, pod: int) -> None:
    """Let a pod that comes, or comes again, be tried next."""
    env.pods.added_s[pod] = env.at.now_s
    env.queue.ready[env.at.ready] = pod
    env.at.ready += 1


@inlined
def help_waiting(env: Env, settings: BatchSettings, late: SmallArray) -> None:
    """Let the pods that fitted nowhere be tried next; those that back off go to `late` [T]."""
    at, pods, queue = env.at, env.pods, env.queue
    at.freed += 1
    for i in range(at.unschedulable):
        pod = queue.waiting[i]
        if backoff_window(pods.added_s[pod], pods.failures[pod], settings) + 1.0 > at.now_s:
            late[at.late] = pod
            at.late += 1
        else:
            queue.ready[at.ready] = pod
            at.ready += 1
    at.unschedulable = 0


@inlined
def activate(env: Env) -> None:
    """Let the pods be tried next that the policy left."""
    at, queue = env.at, env.queue
    for i in range(at.deferred):
        queue.ready[at.ready] = queue.left[i]
        at.ready += 1
    at.deferred = 0


@inlined
def put_back(env: Env, settings: BatchSettings, late: SmallArray) -> None:
    """Take those that were not tried for those that are to be put in order; those that back off go to `late` [T]."""
    at, pods, queue, count = env.at, env.pods, env.queue, 0
    for i in range(at.cursor, at.ready):
        pod = queue.ready[i]
        if i >= at.ready - at.backing:
            late[at.late] = pod
            at.late += 1
        else:
            queue.ready[count] = pod
            count += 1
    at.ready, at.cursor, at.backing, waits = count, 0, 0, 0
    for i in range(at.late):
        pod = late[i]
        if backoff_window(pods.added_s[pod], pods.failures[pod], settings) + 1.0 > at.now_s:
            late[waits] = pod
            waits += 1
        else:
            queue.ready[at.ready] = pod
            at.ready += 1
    at.late = waits


@inlined
def line_up(env: Env, settings: BatchSettings, keys: FloatArray, late: SmallArray) -> None:
    """Put those that are to be tried next in order, behind them those that back off: of these who waits longest.

    `keys` and `late` [2, T] are overwritten.
    """
    at, pods, queue = env.at, env.pods, env.queue
    for i in range(at.late):
        keys[0, i] = pods.added_s[late[0, i]]
    stable_sort(keys[0], late[0], at.late, keys[1], late[1])
    for i in range(at.late):
        pod = late[0, i]
        keys[0, i] = backoff_window(pods.added_s[pod], pods.failures[pod], settings)
    stable_sort(keys[0], late[0], at.late, keys[1], late[1])
    for i in range(at.late):
        queue.ready[at.ready + i] = late[0, i]
    if at.ready > 1:
        for i in range(at.ready):
            keys[0, i] = pods.since_s[queue.ready[i]] if settings.sorted else pods.added_s[queue.ready[i]]
        stable_sort(keys[0], queue.ready, at.ready, keys[1], late[1])
    at.ready += at.late
    at.backing, at.late = at.late, 0
