"""Leader election by a Lease: of several replicas of a scheduler one decides, the others stand by.

The rules are client-go's (tools/leaderelection): a candidate takes the lease when it is free or when it has seen no
renewal for `duration_s` on its own clock, renews it every `retry_s`, and stops leading when it could not renew for
`renew_deadline_s`. Writes carry the resource version, so two candidates cannot both win. A renewal counts from when it
was begun, and a second thread watches the deadline: a request that hangs does not put it off.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from aaml import threads
from aaml.kube.transport import CONFLICT, NOT_FOUND, ApiError, Transport, Unreachable

log = logging.getLogger(__name__)

_HELD_S = 60.0  # after its renewal a lease counts as nobody's for who only looks, whatever its duration


@dataclass(frozen=True)
class LeaseOptions:
    """Where the lease is and how long it lasts; the times are kube-scheduler's defaults."""

    name: str = "aaml-scheduler"
    namespace: str = "kube-system"
    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0


class _Spec(msgspec.Struct):
    holder: str | None = msgspec.field(name="holderIdentity", default=None)
    duration_s: float | None = msgspec.field(name="leaseDurationSeconds", default=None)
    renewed: str | None = msgspec.field(name="renewTime", default=None)
    acquired: str | None = msgspec.field(name="acquireTime", default=None)
    transitions: int | None = msgspec.field(name="leaseTransitions", default=None)


class _Lease(msgspec.Struct):
    metadata: dict[str, Any]
    spec: _Spec | None = None


def annotation_of(transport: Transport, annotation: str, *, name: str, namespace: str = "kube-system") -> str:
    """Return an annotation of a lease that somebody holds, "" where there is none, or none that may be read."""
    try:
        body = transport.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
        lease = msgspec.json.decode(body, type=_Lease)
    except (ApiError, Unreachable, msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return _annotations(lease).get(annotation, "") if lease.spec is not None and _is_held(lease.spec) else ""


def _annotations(lease: _Lease) -> Mapping[str, str]:
    return lease.metadata.get("annotations") or {}


def _is_held(spec: _Spec) -> bool:
    """Whether a lease has a holder that renewed it within the minute, by the clock of this machine."""
    try:
        renewed = datetime.fromisoformat(spec.renewed or "")
    except ValueError:
        return False
    return bool(spec.holder) and abs((datetime.now(UTC) - renewed).total_seconds()) < _HELD_S


def _nothing() -> str:
    return ""


def process_prefix(pid: int) -> str:
    """Return how the identities of this machine's process `pid` begin."""
    return f"{socket.gethostname()}_{pid}_"


class LeaderLease:
    """One candidate. `acquire` waits for the lease; then a thread renews it and calls `on_lost` when that fails.

    While this candidate leads, the lease has the annotation `annotation` with what `tell` returns at each renewal,
    none where that is "".
    """

    def __init__(self, transport: Transport, identity: str, options: LeaseOptions | None = None) -> None:
        self._transport, self.identity = transport, identity
        self.options = options or LeaseOptions()
        self.annotation, self.tell = "", _nothing
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{self.options.namespace}/leases"
        self._seen: tuple[str, str] | None = None  # holder and renewal as last read
        self._seen_s = 0.0
        self._renewed_s = 0.0  # when the latest attempt that succeeded was begun
        self._ended = threading.Event()  # given up or lost: nothing is renewed any more
        self._renewing: threading.Thread | None = None

    def acquire(self, stopped: Callable[[], bool], on_lost: Callable[[], None]) -> bool:
        """Wait until this candidate leads (True) or `stopped()` (False). Raises `UserError` without permission."""
        waiting_for = ""
        while not stopped():
            self._renewed_s = time.monotonic()
            try:
                holder = self.attempt()
            except Unreachable as error:
                log.warning("lease %s: %s", self.options.name, error)
                holder = ""
            except ApiError as error:
                raise self._transport.explain(error) from error
            if holder == self.identity:
                log.info("%s leads", self.identity)
                self._lead(on_lost)
                return True
            if holder not in {"", waiting_for}:
                log.info("standing by: %s leads", holder)
                waiting_for = holder
            self._pause(self.options.retry_s, stopped)
        return False

    def release(self) -> None:
        """Stop renewing and give the lease up, so that another candidate need not wait for it to run out."""
        self._ended.set()
        if self._renewing is None:
            return
        self._renewing.join(self.options.renew_deadline_s)
        self._renewing = None
        try:
            lease = self._read()
            if lease is not None and lease.spec is not None and lease.spec.holder == self.identity:
                self._write(lease, holder="", duration_s=1)
        except (ApiError, Unreachable) as error:
            log.warning("lease %s: not given up, it runs out by itself: %s", self.options.name, error)

    @property
    def holds(self) -> bool:
        """Whether no other replica can lead now: the renewal deadline has not passed, by this thread's clock."""
        return not self._ended.is_set() and time.monotonic() < self._renewed_s + self.options.renew_deadline_s

    def attempt(self) -> str:
        """Take or renew the lease if that is allowed now; returns who holds it ("" when that is not known)."""
        try:
            lease = self._read()
            if lease is None:
                lease = _Lease({"name": self.options.name, "namespace": self.options.namespace})
                self._write(lease, holder=self.identity, create=True)
                return self.identity
            spec = lease.spec or _Spec()
            holder, renewed = spec.holder or "", spec.renewed or ""
            if self._seen != (holder, renewed):
                self._seen, self._seen_s = (holder, renewed), time.monotonic()
            term_s = spec.duration_s or self.options.duration_s
            if holder not in {"", self.identity} and time.monotonic() < self._seen_s + term_s:
                return holder
            self._write(lease, holder=self.identity)
        except ApiError as error:
            if error.status == CONFLICT:
                return ""  # another candidate was quicker
            raise
        return self.identity

    # ---- in the threads ----------------------------------------------------------------------------------------------

    def _lead(self, on_lost: Callable[[], None]) -> None:
        lock = threading.Lock()

        def lose(why: object) -> None:
            with lock:
                if self._ended.is_set():
                    return
                self._ended.set()
            log.error("lease %s lost%s", self.options.name, why and f" {why}")
            on_lost()

        self._renewing = threads.start(lambda: self._renew(lose), "lease", lose)
        threads.start(lambda: self._keep_time(lose), "lease-deadline", lose)

    def _renew(self, lose: Callable[[str], None]) -> None:
        while not self._ended.wait(self.options.retry_s):
            begun_s = time.monotonic()
            try:
                holder = self.attempt()
            except (ApiError, Unreachable) as error:
                log.warning("lease %s: not renewed: %s", self.options.name, error)
                continue
            if holder == self.identity:
                self._renewed_s = begun_s
            elif holder:
                lose(f"to {holder}")

    def _keep_time(self, lose: Callable[[str], None]) -> None:
        while not self._ended.wait(self._renewed_s + self.options.renew_deadline_s - time.monotonic()):
            if time.monotonic() >= self._renewed_s + self.options.renew_deadline_s:
                lose("")

    def _pause(self, seconds: float, stopped: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not stopped():
            time.sleep(0.05)

    def _read(self) -> _Lease | None:
        try:
            return msgspec.json.decode(self._transport.request("GET", f"{self._path}/{self.options.name}"), type=_Lease)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unreachable(f"what answers is no API server ({error})") from error

    def _write(self, lease: _Lease, *, holder: str, duration_s: float | None = None, create: bool = False) -> None:
        spec, now = lease.spec or _Spec(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        changes = (spec.holder or "") != holder
        term_s = max(1, round(duration_s if duration_s is not None else self.options.duration_s))
        text = self.tell() if holder else ""
        kept = {key: value for key, value in _annotations(lease).items() if key != self.annotation}
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": lease.metadata | {"annotations": kept | ({self.annotation: text} if text else {})},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": term_s,
                "acquireTime": now if changes else spec.acquired or now,
                "renewTime": now,
                "leaseTransitions": (spec.transitions or 0) + int(changes and not create),
            },
        }
        method, path = ("POST", self._path) if create else ("PUT", f"{self._path}/{self.options.name}")
        self._transport.request(method, path, body)
