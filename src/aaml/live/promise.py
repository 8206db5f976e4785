"""What `aaml autoscale` promises, how far it is kept and what it costs now: an annotation of its Lease, and a line."""

import time
from collections.abc import Iterator
from contextlib import suppress
from math import inf, isfinite

import msgspec

from aaml.errors import UserError
from aaml.kube import rights
from aaml.kube.lease import annotation_of
from aaml.kube.transport import Transport
from aaml.nodes.node_policy import Promise

LEASE = "aaml-autoscale"
"""The name of the Lease where the command does not say another."""
ANNOTATION = "aaml.dev/promise"
_EVERY_S = 5.0  # between two looks at the Lease


class PromiseState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A promise and what was measured of it since the process began.

    `served` pods got a node, of which `late` waited longer than `wait_p99_s`; all together waited `waited_s`. `evicted`
    pods and `pod_hours` forget what was days ago. `second_dollars_per_hour`: what the last second of waiting costs.
    `eviction_dollars`: what evicting a pod counts now, None where none may be evicted.
    """

    wait_p99_s: float | None = None
    wait_mean_s: float | None = None
    evictions_per_pod_hour: float | None = None
    served: int = 0
    late: int = 0
    waited_s: float = 0.0
    evicted: float = 0.0
    pod_hours: float = 0.0
    second_dollars_per_hour: float = 0.0
    eviction_dollars: float | None = None

    def to_json(self) -> str:
        """Return it as a line of JSON, "" where nothing is promised."""
        return msgspec.json.encode(self).decode() if any(self._facts()) else ""

    @property
    def text(self) -> str:
        """All of it as a line."""
        return f"promise: {'; '.join(self._facts())}"

    def _facts(self) -> Iterator[str]:
        second = f"the last second costs ${self.second_dollars_per_hour:.4f} an hour"
        if self.wait_p99_s is not None:
            yield f"99% wait at most {self.wait_p99_s:g} s ({self.late} of {self.served} pods did not), {second}"
        if self.wait_mean_s is not None:
            mean = f"{self.waited_s / self.served:.1f} s so far" if self.served else "no pod yet"
            yield f"mean wait at most {self.wait_mean_s:g} s ({mean})" + (f", {second}" if not self.wait_p99_s else "")
        if self.evictions_per_pod_hour is not None:
            there = f"{self.evicted / self.pod_hours:.2f} so far" if self.pod_hours else "none yet"
            price = self.eviction_dollars
            next_one = "no more now" if price is None else f"the next one counts ${price:.4f}"
            yield f"evictions for a pod's hour at most {self.evictions_per_pod_hour:g} ({there}), {next_one}"


class PromiseMeter:
    """Counts what is served, for a `PromiseState`."""

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self.served = self.late = 0
        self.waited_s = 0.0

    def serve(self, waited_s: float) -> bool:
        """Count a pod that got a node after so many seconds; returns whether that was later than promised."""
        most_s = self._promise.wait_p99_s
        late = most_s is not None and waited_s > most_s
        self.served, self.late, self.waited_s = self.served + 1, self.late + late, self.waited_s + waited_s
        return late

    def state(
        self, *, evicted: float, pod_hours: float, second_dollars_per_hour: float, eviction_dollars: float
    ) -> PromiseState:
        """Return how it stands now."""
        return PromiseState(
            **self._promise.promised, served=self.served, late=self.late, waited_s=self.waited_s, evicted=evicted,
            pod_hours=pod_hours, second_dollars_per_hour=second_dollars_per_hour,
            eviction_dollars=eviction_dollars if isfinite(eviction_dollars) else None,
        )  # fmt: skip


class LatestPromise:
    """The promise of the process that holds the Lease, read anew every few seconds; one thread at a time asks."""

    def __init__(self, transport: Transport) -> None:
        self._transport, self._read_s, self._text = transport, -inf, ""

    def text(self) -> str:
        """Return it as a line, "" where there is none, or none that may be read."""
        if self._read_s == -inf:
            with suppress(UserError):  # the API is away: the cluster's own watch says so
                rights.check(self._transport, rights.PROMISE)
        if time.monotonic() - self._read_s >= _EVERY_S:
            state = read_promise(self._transport)
            self._read_s, self._text = time.monotonic(), "" if state is None else state.text
        return self._text


def read_promise(transport: Transport) -> PromiseState | None:
    """Return the promise of the process that holds the Lease; None where there is none, or none that may be read."""
    text = annotation_of(transport, ANNOTATION, name=LEASE)
    try:
        return msgspec.json.decode(text, type=PromiseState) if text else None
    except msgspec.MsgspecError:
        return None
