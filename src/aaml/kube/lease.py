"""Leader election by a Lease: of several replicas of a scheduler one decides, the others stand by.

The rules are client-go's (tools/leaderelection): a candidate takes the lease when it is free or when it has seen no
renewal for `duration_s` on its own clock, renews it every `retry_s`, and stops leading when it could not renew for
`renew_deadline_s`. Writes carry the resource version, so two candidates cannot both win.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from aaml.kube.transport import ApiError, Transport, Unreachable

log = logging.getLogger(__name__)

_NOT_FOUND, _CONFLICT = 404, 409


@dataclass(frozen=True)
class LeaseOptions:
    """Where the lease is and how long it lasts; the times are kube-scheduler's defaults."""

    name: str = "aaml-scheduler"
    namespace: str = "kube-system"
    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0


def process_prefix(pid: int) -> str:
    """Return how the identities of this machine's process `pid` begin."""
    return f"{socket.gethostname()}_{pid}_"


class LeaderLease:
    """One candidate. `acquire` waits for the lease; then a thread renews it and calls `on_lost` when that fails."""

    def __init__(self, transport: Transport, identity: str, options: LeaseOptions | None = None) -> None:
        self._transport, self.identity = transport, identity
        self.options = options or LeaseOptions()
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{self.options.namespace}/leases"
        self._seen: tuple[str, str] | None = None  # holder and renewal as last read
        self._seen_s = 0.0
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, stopped: Callable[[], bool], on_lost: Callable[[], None]) -> bool:
        """Wait until this candidate leads (True) or `stopped()` (False). Raises `UserError` without permission."""
        waiting_for = ""
        while not stopped():
            try:
                holder = self.attempt()
            except Unreachable as error:
                log.warning("lease %s: %s", self.options.name, error)
                holder = ""
            except ApiError as error:
                raise self._transport.explain(error) from error
            if holder == self.identity:
                log.info("%s leads", self.identity)
                self._thread = threading.Thread(target=self._renew, args=(on_lost,), name="lease", daemon=True)
                self._thread.start()
                return True
            if holder not in {"", waiting_for}:
                log.info("standing by: %s leads", holder)
                waiting_for = holder
            self._pause(self.options.retry_s, stopped)
        return False

    def release(self) -> None:
        """Stop renewing and give the lease up, so that another candidate need not wait for it to run out."""
        self._released.set()
        if self._thread is None:
            return
        self._thread.join(self.options.renew_deadline_s)
        self._thread = None
        try:
            lease = self._read()
            if lease is not None and _spec(lease).get("holderIdentity") == self.identity:
                self._write(lease, holder="", duration_s=1)
        except (ApiError, Unreachable) as error:
            log.warning("lease %s: not given up, it runs out by itself: %s", self.options.name, error)

    def attempt(self) -> str:
        """Take or renew the lease if that is allowed now; returns who holds it ("" when that is not known)."""
        try:
            lease = self._read()
            if lease is None:
                lease = {"metadata": {"name": self.options.name, "namespace": self.options.namespace}, "spec": {}}
                self._write(lease, holder=self.identity, create=True)
                return self.identity
            spec = _spec(lease)
            holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
            if self._seen != (holder, renewed):
                self._seen, self._seen_s = (holder, renewed), time.monotonic()
            term_s = float(spec.get("leaseDurationSeconds") or self.options.duration_s)
            if holder not in {"", self.identity} and time.monotonic() < self._seen_s + term_s:
                return holder
            self._write(lease, holder=self.identity)
        except ApiError as error:
            if error.status == _CONFLICT:
                return ""  # another candidate was quicker
            raise
        return self.identity

    def _renew(self, on_lost: Callable[[], None]) -> None:
        renewed_s = time.monotonic()
        while not self._released.wait(self.options.retry_s):
            try:
                holder = self.attempt()
            except (ApiError, Unreachable) as error:
                log.warning("lease %s: not renewed: %s", self.options.name, error)
                holder = ""
            if holder == self.identity:
                renewed_s = time.monotonic()
            elif holder or time.monotonic() - renewed_s > self.options.renew_deadline_s:
                log.error("lease %s lost%s", self.options.name, f" to {holder}" if holder else "")
                on_lost()
                return

    def _pause(self, seconds: float, stopped: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not stopped():
            time.sleep(0.05)

    def _read(self) -> dict[str, Any] | None:
        try:
            return dict(msgspec.json.decode(self._transport.request("GET", f"{self._path}/{self.options.name}")))
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def _write(
        self, lease: dict[str, Any], *, holder: str, duration_s: float | None = None, create: bool = False
    ) -> None:
        spec, now = _spec(lease), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        changes = spec.get("holderIdentity") != holder
        term_s = max(1, round(duration_s if duration_s is not None else self.options.duration_s))
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": lease["metadata"],
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": term_s,
                "acquireTime": now if changes else spec.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + int(changes and not create),
            },
        }
        method, path = ("POST", self._path) if create else ("PUT", f"{self._path}/{self.options.name}")
        self._transport.request(method, path, body)


def _spec(lease: dict[str, Any]) -> dict[str, Any]:
    return dict(lease.get("spec") or {})
