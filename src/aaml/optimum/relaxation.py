"""What no policy pays less than: the LP relaxation of a bill, nodes paid for by the second and in fractions.

`fluid_bill` is that of pods which run from their arrival on. No packing of these costs less, but a policy may: a pod
that waits runs into the time after the end, and others may share its time. `relaxed` counts what is left then. Each
pod, for itself, waits for as long as is cheapest, and one price for CPU, memory and GPUs holds at all times (a feasible
point of the dual programme, the best such). Pods that fit no type cost nothing but their wait.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Pod
from aaml.cluster.quantity import CPU, MEMORY
from aaml.nodes.catalogue import Catalogue
from aaml.nodes.fluid import Fluid
from aaml.nodes.settings import Prices
from aaml.nodes.successors import is_made_again

_HOUR_S = 3600.0
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Dollars up to the end.

    `cost`: what nodes, waits and evictions come to at least, whatever a policy does. `bill`: the nodes alone, at least,
    where no pod waits for longer than costs nothing, and none is evicted. There is none without that: who places no pod
    provisions no node.
    """

    bill: float
    cost: float


def end_s(pod: Pod, until_s: float) -> float:
    """Return when a pod ends that runs from its arrival on, at most `until_s`."""
    return until_s if pod.lifetime_s is None else min(pod.created_s + pod.lifetime_s, until_s)


def fluid_bill(pods: Iterable[Pod], catalogue: Catalogue, until_s: float) -> float:
    """Return the dollars of pods that run from their arrival on, paid for by the second in fractions of nodes.

    Pods that fit no type, and those that come after the end, are left out.
    """
    changes = sorted(
        (at_s, sign * pod.requests.get(CPU, 0), sign * pod.requests.get(MEMORY, 0), sign * pod.gpu.total_milli)
        for pod in pods
        if max(pod.created_s, 0.0) < end_s(pod, until_s) and catalogue.fits(pod).any()
        for at_s, sign in ((max(pod.created_s, 0.0), 1), (end_s(pod, until_s), -1))
    )
    fluid, dollars, cpu, memory, gpu, now_s = Fluid(catalogue), 0.0, 0, 0, 0, 0.0
    for at_s, more_cpu, more_memory, more_gpu in changes:
        dollars += fluid.price(cpu, memory, gpu) * (at_s - now_s) / _HOUR_S
        cpu, memory, gpu, now_s = cpu + more_cpu, memory + more_memory, gpu + more_gpu, at_s
    return dollars


def relaxed(
    pods: Iterable[Pod],
    catalogue: Catalogue,
    until_s: float,
    prices: Prices,
    recreate_s: float = 0.0,
    removed: Container[str] = (),
) -> Relaxed:
    """Return what no policy is below. An evicted pod is made again after `recreate_s`, one without an owner never.

    Pods that are `removed` (uids) at some time count for nothing: a policy may let them wait till then.
    """
    here = [pod for pod in pods if pod.created_s < until_s and pod.uid not in removed]
    if not here:
        return Relaxed(0.0, 0.0)
    created_s = np.array([pod.created_s for pod in here])
    lives_s = np.array([np.inf if pod.lifetime_s is None else pod.lifetime_s for pod in here])
    lost = np.array([not is_made_again(pod) for pod in here])
    fits = np.array([catalogue.fits(pod).any() for pod in here])
    first_s = np.maximum(created_s, 0.0)
    free_s = np.minimum(first_s + prices.wait_target_s, until_s)
    # What a pod costs by when it begins is made of straight lines: it is least at one of their ends.
    last_s = np.clip(until_s - lives_s, created_s, until_s)
    begins_s = np.stack([created_s, first_s, free_s, last_s, np.full(len(here), until_s)])  # [5, P]
    requested = np.array([
        (pod.requests.get(CPU, 0), pod.requests.get(MEMORY, 0), pod.gpu.total_milli) for pod in here
    ])  # fmt: skip
    corners = Fluid(catalogue).corners
    an_hour = corners @ requested[:, : corners.shape[1]].T * fits  # [C, P]

    def nodes(at_s: FloatArray) -> FloatArray:
        ran_s = np.maximum(np.minimum(at_s + lives_s, until_s) - np.maximum(at_s, 0.0), 0.0)
        return np.asarray(an_hour[:, np.newaxis] * ran_s / _HOUR_S)  # [C, 5, P]

    # A pod may be put off by evictions too: each costs, the next pod is there a little later, and waits for free anew.
    put_off_s = recreate_s + prices.wait_target_s
    delay = min(prices.wait_per_hour, prices.eviction * _HOUR_S / put_off_s if put_off_s else np.inf)
    waits = np.maximum(begins_s - first_s - prices.wait_target_s, 0.0) * np.where(fits, delay, prices.wait_per_hour)
    cost = np.where(fits, (nodes(begins_s) + waits / _HOUR_S).min(axis=1), waits[-1] / _HOUR_S)
    bill = nodes(np.minimum(begins_s, free_s)).min(axis=1)
    cost, bill = np.where(lost, np.minimum(cost, prices.eviction), cost), np.where(lost, 0.0, bill)
    return Relaxed(float(bill.sum(axis=1).max()), float(cost.sum(axis=1).max()))
