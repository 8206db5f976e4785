"""The faults: each strikes while pods are under way, lasts for a while, and leaves everything as it should be."""

import base64
import json
import os
import random
import resource
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import psutil
import yaml

from aaml.chaos.site import ACCOUNT, Site
from aaml.chaos.webhook import Refusal, refusing_binds
from aaml.cluster.fleet import WORKER
from aaml.errors import UserError
from aaml.kube.transport import STRATEGIC_MERGE, ApiError, Transport

_STORES = ("etcd", "kube-apiserver")
_STATUS_LINE_BYTES = 64  # at most what is read of it
_START_S = 300.0  # a busy machine takes its time to start a server


@dataclass(frozen=True)
class Fault:
    """One kind of trouble: what it does in a sentence, and a function that strikes and returns when it is over."""

    name: str
    about: str
    strike: Callable[[Site], None]
    replicas: int = 1
    """how many schedulers run, with leader election where they are more than one"""
    own: bool = False
    """whether it strikes what only a scheduler of AAML's own has, and no plugin: its learner, its model, its clock"""


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, *, replicas: int = 1, own: bool = False
) -> Callable[[Callable[[Site], None]], Callable[[Site], None]]:
    """Make a fault of a function, which its docstring describes."""

    def register(strike: Callable[[Site], None]) -> Callable[[Site], None]:
        about = " ".join((strike.__doc__ or "").split()).rstrip(".")
        FAULTS[name] = Fault(name, about, strike, replicas, own)
        return strike

    return register


# ---- processes -------------------------------------------------------------------------------------------------------


@fault("nothing")
def _nothing(site: Site) -> None:
    """Nothing happens: what a run takes by itself."""
    del site


@fault("scheduler-killed")
def _scheduler_killed(site: Site) -> None:
    """The scheduler is killed (SIGKILL) and started again by its supervisor."""
    before = site.scheduler.restarts
    site.scheduler.kill()
    site.wait(lambda: site.scheduler.restarts > before, "the scheduler started again", 120.0)


@fault("learner-killed", own=True)
def _learner_killed(site: Site) -> None:
    """The process in which an agent learns is killed, three times within 6 s; nothing for a policy that does not."""
    for _ in range(3):
        for process in site.scheduler.children():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(2.0)


@fault("api-server-killed")
def _api_server_killed(site: Site) -> None:
    """kube-apiserver is killed and started again after 3 s."""
    _killed(site, "kube-apiserver")


@fault("etcd-killed")
def _etcd_killed(site: Site) -> None:
    """The process etcd is killed and started again after 3 s."""
    _killed(site, "etcd")


def _killed(site: Site, component: str) -> None:
    site.cluster.stop_component(component, kill=True)
    time.sleep(3.0)
    site.cluster.start_stopped(wait_s=_START_S)


@fault("stores-paused")
def _stores_paused(site: Site) -> None:
    """kube-apiserver and etcd stand still for 20 s (SIGSTOP)."""
    pids = [pid for each in _STORES if (pid := site.cluster.pid(each)) is not None]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(20.0)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@fault("scheduler-paused")
def _scheduler_paused(site: Site) -> None:
    """The scheduler stands still for 20 s (SIGSTOP), as on a machine that swaps or is moved."""
    pid = site.scheduler.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(20.0)
    finally:
        os.kill(pid, signal.SIGCONT)


# ---- the network -----------------------------------------------------------------------------------------------------


@fault("network-cut")
def _network_cut(site: Site) -> None:
    """Every connection to the API server is closed, and new ones are refused for 10 s."""
    _mode(site, "cut", 10.0)


@fault("network-slow")
def _network_slow(site: Site) -> None:
    """Every piece that goes to or from the API server takes 0.2 s more, for 10 s."""
    _mode(site, "slow", 10.0)


@fault("network-silent")
def _network_silent(site: Site) -> None:
    """Connections stay open and nothing goes through for 20 s, as if a cable was pulled out."""
    _mode(site, "silent", 20.0)


def _mode(site: Site, mode: Any, lasts_s: float) -> None:
    site.proxy.mode = mode
    try:
        time.sleep(lasts_s)
    finally:
        site.proxy.mode = "pass"


@fault("network-reset")
def _network_reset(site: Site) -> None:
    """Every connection to the API server is reset (RST), twice a second for 10 s."""
    for _ in range(20):
        site.proxy.reset()
        time.sleep(0.5)


# ---- the API server's answers ----------------------------------------------------------------------------------------


@fault("history-compacted")
def _history_compacted(site: Site) -> None:
    """The scheduler is cut off, etcd forgets all history and kube-apiserver starts anew: watches end with 410."""
    site.proxy.mode = "cut"
    try:
        label = {"metadata": {"labels": {"chaos": str(time.time_ns())}}}
        for node in _workers(site):
            site.api.request("PATCH", f"/api/v1/nodes/{node}", label, content_type=STRATEGIC_MERGE)
        command = site.cluster.component("etcd").command
        etcd = next(each.partition("=")[2] for each in command if each.startswith("--advertise-client-urls="))
        revision = _etcd(etcd, "range", {"key": "AA=="})["header"]["revision"]
        _etcd(etcd, "compaction", {"revision": revision, "physical": True})
        site.cluster.stop_component("kube-apiserver")
        site.cluster.start_stopped(wait_s=_START_S)
    finally:
        site.proxy.mode = "pass"


def _etcd(address: str, verb: str, question: dict[str, Any]) -> Any:
    """Ask etcd's JSON gateway (https://etcd.io/docs/latest/dev-guide/api_grpc_gateway/)."""
    request = Request(f"{address}/v3/kv/{verb}", json.dumps(question).encode())  # noqa: S310  (http on loopback)
    with urlopen(request, timeout=30.0) as reply:  # noqa: S310
        return json.loads(reply.read())


@fault("server-busy")
def _server_busy(site: Site) -> None:
    """For 10 s the API server answers every bind with 429 and Retry-After, 500, 503 or 504, in turn."""
    answers = (
        Refusal(429, "TooManyRequests", 1), Refusal(500, "InternalError"), Refusal(503, "ServiceUnavailable", 1),
        Refusal(504, "Timeout"),
    )  # fmt: skip
    with refusing_binds(site.api, site.cluster.directory / "pki", answers):
        time.sleep(10.0)


@fault("server-overloaded")
def _server_overloaded(site: Site) -> None:
    """For 10 s the API server has no time for the scheduler: watches end, every request gets 429 and Retry-After."""
    # A priority level without a share turns requests away.
    # https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
    path, name = "/apis/flowcontrol.apiserver.k8s.io/v1", {"name": ACCOUNT["name"]}
    nothing = {
        "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Reject"},
    }  # fmt: skip
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    schema = {
        "priorityLevelConfiguration": name, "matchingPrecedence": 100,
        "rules": [
            {
                "subjects": [{"kind": "ServiceAccount", "serviceAccount": ACCOUNT}],
                "resourceRules": [everything], "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            }
        ],
    }  # fmt: skip
    level = {"type": "Limited", "limited": nothing}
    site.api.request("POST", f"{path}/prioritylevelconfigurations", {"metadata": name, "spec": level})
    site.api.request("POST", f"{path}/flowschemas", {"metadata": name, "spec": schema})
    kubeconfig = site.cluster.service_account_kubeconfig(ACCOUNT["namespace"], ACCOUNT["name"])
    theirs = Transport(kubeconfig)
    try:
        with ExitStack() as held:

            def turned_away() -> bool:
                held.close()
                under_way = held.enter_context(_unfinished_request(kubeconfig))
                return under_way and all(_status(theirs) == HTTPStatus.TOO_MANY_REQUESTS for _ in range(3))

            site.wait(turned_away, "that requests are turned away")
            for _ in range(10):
                site.proxy.reset()
                time.sleep(1.0)
                if (status := _status(theirs)) != HTTPStatus.TOO_MANY_REQUESTS:
                    raise UserError(f"chaos: a request of the schedulers' account got {status}, not 429")
    finally:
        theirs.close()
        for kind in ("flowschemas", "prioritylevelconfigurations"):
            site.api.request("DELETE", f"{path}/{kind}/{ACCOUNT['name']}")


@contextmanager
def _unfinished_request(kubeconfig: Path) -> Iterator[bool]:
    """Keep a request under way while the block runs, unless it is turned away: whether it is under way.

    Its body never comes, for which the API server waits a minute. A level without a share still takes a request while
    it has no other under way, which is this one then (`canAccommodateSeatsLocked` in
    https://github.com/kubernetes/apiserver/blob/master/pkg/util/flowcontrol/fairqueuing/queueset/queueset.go).
    """
    document = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    cluster, token = document["clusters"][0]["cluster"], document["users"][0]["user"]["token"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode("ascii")
    connection = HTTPSConnection(
        urlsplit(cluster["server"]).netloc, timeout=_START_S, context=ssl.create_default_context(cadata=authority)
    )
    try:
        connection.putrequest("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        for header, value in (
            ("Authorization", f"Bearer {token}"), ("Content-Type", "application/json"), ("Content-Length", "2"),
            ("Expect", "100-continue"),  # which is answered when the body is asked for, by a request that was let in
        ):  # fmt: skip
            connection.putheader(header, value)
        connection.endheaders()
        yield connection.sock.recv(_STATUS_LINE_BYTES).startswith(b"HTTP/1.1 100")
    finally:
        connection.close()


def _status(api: Transport) -> int:
    """Return the HTTP status of a small request."""
    try:
        api.request("GET", "/api/v1/nodes?limit=1")
    except ApiError as error:
        return error.status
    return HTTPStatus.OK


@fault("binds-refused")
def _binds_refused(site: Site) -> None:
    """For 10 s an admission webhook refuses every bind (403)."""
    with refusing_binds(site.api, site.cluster.directory / "pki", (Refusal(403, "Forbidden"),)):
        time.sleep(10.0)


# ---- the cluster's objects -------------------------------------------------------------------------------------------


def _workers(site: Site) -> list[str]:
    nodes = json.loads(site.api.request("GET", "/api/v1/nodes"))["items"]
    return sorted(node["metadata"]["name"] for node in nodes if node["metadata"]["name"].startswith(f"{WORKER}-"))


@fault("nodes-change")
def _nodes_change(site: Site) -> None:
    """For 5 s one node is gone, one cordoned, one tainted, and one offers four fifths of what it did."""
    removed, cordoned, tainted, resized = _workers(site)[:4]
    path = "/api/v1/nodes/{}"
    kept = json.loads(site.api.request("GET", path.format(removed)))
    whole = json.loads(site.api.request("GET", path.format(resized)))["status"]["allocatable"]

    def patch(node: str, change: dict[str, Any], part: str = "") -> None:
        site.api.request("PATCH", path.format(node) + part, change, content_type=STRATEGIC_MERGE)

    taints = json.loads(site.api.request("GET", path.format(tainted)))["spec"].get("taints", [])  # written as a whole
    taint = {"key": "chaos", "value": "now", "effect": "NoSchedule"}
    smaller = {**whole, "cpu": f"{int(float(whole['cpu'].removesuffix('m')) * 0.8)}m" if "m" in whole["cpu"] else "1"}
    site.api.request("DELETE", path.format(removed))
    patch(cordoned, {"spec": {"unschedulable": True}})
    patch(tainted, {"spec": {"taints": [*taints, taint]}})
    patch(resized, {"status": {"allocatable": smaller, "capacity": smaller}}, "/status")
    try:
        time.sleep(5.0)
    finally:
        for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
            kept["metadata"].pop(field, None)
        site.api.request("POST", "/api/v1/nodes", kept)
        patch(cordoned, {"spec": {"unschedulable": None}})
        patch(tainted, {"spec": {"taints": taints}})
        patch(resized, {"status": {"allocatable": whole, "capacity": whole}}, "/status")


@fault("pods-deleted")
def _pods_deleted(site: Site) -> None:
    """A fifth of the pods, bound, waiting or about to be bound, is deleted within 5 s."""
    chance = random.Random(0)
    for _ in range(5):
        names = [pod["metadata"]["name"] for pod in site.workload.pods()]
        site.workload.delete(chance.sample(names, len(names) // 25))
        time.sleep(1.0)


# ---- other schedulers ------------------------------------------------------------------------------------------------


@fault("second-scheduler")
def _second_scheduler(site: Site) -> None:
    """A second scheduler of the same name decides on the same pods for 10 s, and is then stopped."""
    other = site.add_scheduler()
    site.wait(lambda: site.ready(len(site.schedulers) - 1), "the second scheduler ready", 120.0)
    time.sleep(10.0)
    other.stop()


@fault("leader-killed", replicas=2)
def _leader_killed(site: Site) -> None:
    """Of two replicas the one that leads is killed; the other one takes over when its lease runs out."""
    site.leader().kill()
    seen = -1
    while site.workload.bound() > seen:  # binds that were on their way arrive
        seen = site.workload.bound()
        time.sleep(1.0)


# ---- the machine -----------------------------------------------------------------------------------------------------


@fault("disk-full", own=True)
def _disk_full(site: Site) -> None:
    """For 8 s the scheduler cannot write a file beyond 4 KiB, while its model is due to be saved every 2 s."""
    pid = site.scheduler.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        time.sleep(8.0)
    finally:
        with suppress(ProcessLookupError):  # it ended of that, which the run tells
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@fault("clock-stepped", own=True)
def _clock_stepped(site: Site) -> None:
    """The time of day jumps an hour ahead, two hours back, and to where it was, 3 s apart."""
    for offset_s in (3600.0, -3600.0, 0.0):
        site.clock.write_text(str(offset_s), encoding="ascii")
        time.sleep(3.0)
