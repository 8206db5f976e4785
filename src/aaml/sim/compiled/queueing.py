"""The scheduling queue of compiled episodes: which pods are tried at a moment, in which order.

It is `aaml.scheduling.queue` for what a simulated cluster does to it: time only moves when every ready pod has been
tried, so that whoever waits then is unschedulable, or was left by the policy. A departure helps all the former.
"""

import numpy as np

from aaml.cluster.kernels import part, uncounted

_RUN = 16


@uncounted
def stable_sort(keys, pods, count, other_keys, other):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
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


@part
def give_up(env):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Take the first ready pod out of the queue's first list; returns it."""
    pod = env.queue.ready[env.at.cursor]
    env.pods.failures[pod] += 1
    env.pods.added_s[pod] = env.at.now_s
    env.at.cursor += 1
    return pod


@uncounted
def backoff_window(added_s, failures, settings):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the second with which a pod's backoff ends, -inf where it does not back off."""
    if settings.sorted or settings.initial_backoff_s <= 0.0:
        return -np.inf
    doubled = 2.0 ** min(failures - 1, 60)
    return np.floor(added_s + min(settings.max_backoff_s, settings.initial_backoff_s * doubled))


@part
def make_ready(env, settings, keys, late, helped):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Line up the pods to try now: those that departures helped, those that come, those that the policy left.

    `keys` and `late` [2, T] are overwritten.
    """
    at, pods, queue = env.at, env.pods, env.queue
    ready, active, held_back = queue.ready, 0, 0
    if helped:
        for i in range(at.unschedulable):
            pod = queue.waiting[i]
            if backoff_window(pods.added_s[pod], pods.failures[pod], settings) + 1.0 > at.now_s:
                late[0, held_back], keys[0, held_back] = pod, pods.added_s[pod]
                held_back += 1
            else:
                ready[active] = pod
                active += 1
        at.unschedulable = 0
        stable_sort(keys[0], late[0], held_back, keys[1], late[1])  # of one window who waits longest comes first
        for i in range(held_back):
            pod = late[0, i]
            keys[0, i] = backoff_window(pods.added_s[pod], pods.failures[pod], settings)
        stable_sort(keys[0], late[0], held_back, keys[1], late[1])
    while at.arrived < env.episode.pods and pods.arrival_s[at.arrived] <= at.now_s:
        pod = at.arrived
        pods.added_s[pod] = at.now_s
        ready[active] = pod
        active += 1
        at.arrived += 1
    for i in range(at.deferred):
        ready[active] = queue.left[i]
        active += 1
    at.deferred = 0
    for i in range(held_back):
        ready[active + i] = late[0, i]
    if active > 1:
        for i in range(active):
            keys[0, i] = pods.since_s[ready[i]] if settings.sorted else pods.added_s[ready[i]]
        stable_sort(keys[0], ready, active, keys[1], late[1])
    at.ready, at.cursor = active + held_back, 0
