"""The life of a node and of the pods on it: when what happens, as rules that objects and compiled episodes share.

`times` is a `NodeTimes`, or the record `TERMS` of a compiled episode, which has the same fields. Times are in seconds.
"""

import math

from aaml.cluster.kernels import inlined
from aaml.nodes.settings import NodeTimes

READY, DRAIN, STOP, RECREATE, STEP = range(5)
"""What happens: a node joins; a node on its way out is looked at; a pod that was evicted stops; its owner makes the
next one; a node that joins is seen to change."""
STEPS = 2  # in which a node is seen to change before it joins


@inlined
def way_taken(choice: int, ways: int) -> int:
    """Return in which of so many ways at one price a node is launched, by its `chooser`.

    Karpenter's KWOK provider takes any.
    """
    return choice % ways


@inlined
def ready_s(times: NodeTimes, launched_s: float, later_s: float) -> float:
    """Return when a node that is launched joins the cluster; `later_s` is what was drawn."""
    return launched_s + times.registration_delay_s + times.initialization_s + later_s


@inlined
def step_s(times: NodeTimes, launched_s: float, joins_s: float, left: int) -> float:
    """Return when a node that joins is seen to change, with so many of the `STEPS` left, this one too."""
    return max(joins_s - left * times.join_step_s, launched_s)


@inlined
def drained_s(times: NodeTimes, draining_s: float) -> float:
    """Return from when on a node may be terminated whose pods are evicted since `draining_s`."""
    return draining_s + times.min_drain_s


@inlined
def retried_s(times: NodeTimes, now_s: float) -> float:
    """Return when an eviction is tried again that a disruption budget refuses now."""
    return now_s + times.retry_s


@inlined
def has_grace(times: NodeTimes) -> bool:
    """Whether a pod that is evicted runs on for a while."""
    return times.grace_s > 0.0


@inlined
def stop_s(times: NodeTimes, now_s: float) -> float:
    """Return when a pod stops that is evicted now."""
    return now_s + times.grace_s


@inlined
def left_s(lifetime_s: float, bound_s: float, now_s: float) -> float:
    """Return what is left of the lifetime of a pod that leaves the node to which it was bound then."""
    return max(lifetime_s - (now_s - bound_s), 0.0)


@inlined
def recreated_s(times: NodeTimes, now_s: float) -> float:
    """Return when the owner makes the next pod in place of one that is gone now."""
    return now_s + times.recreate_s


@inlined
def waited_s(before_s: float, created_s: float, now_s: float) -> float:
    """Return how long a pod has waited that gets a node now, with its waits before, below 0 where it had none."""
    return max(before_s, 0.0) + now_s - created_s


@inlined
def is_pod_event(times: NodeTimes, last_s: float, now_s: float) -> bool:
    """Whether a pod that is bound or leaves now counts as a pod event of its node, whose last one was then (NaN: none).

    Karpenter keeps its time in whole seconds, and writes it again after a while only (nodeclaim/podevents).
    """
    return math.isnan(last_s) or now_s - math.floor(last_s) >= times.pod_event_s
