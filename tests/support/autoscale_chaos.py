"""A real cluster under two `aaml autoscale --apply`, what goes wrong there, and a check that limits hold.

All goes five times faster than usual: an interval of 60 s takes 12.
"""

import json
import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from aaml.chaos.proxy import Proxy
from aaml.chaos.supervised import Supervised
from aaml.chaos.webhook import validating_webhook
from aaml.karpenter.pool import Pool
from aaml.karpenter.process import start
from aaml.kube.lease import process_prefix
from aaml.kube.objects.wire import DO_NOT_DISRUPT
from aaml.kube.provision import KwokCluster, kubeconfig
from aaml.kube.transport import ApiError, Transport, Unreachable
from aaml.live.node_claims import OURS
from aaml.nodes.catalogue import Catalogue, InstanceType, Offering
from aaml.nodes.catalogue_file import written_catalogue
from aaml.nodes.node_policy import NodePolicy, write_node_policy
from aaml.nodes.settings import KarpenterSettings
from aaml.threads import Background
from support.karpenter_cluster import replica_set
from support.make import GIB
from support.processes import AAML

MOST_NODES, MOVES, INTERVAL_S, SPEED = 4, 2, 60.0, 5
MOST_PODS = 8
LEASE_S = 3.0
LATE_S = 2.0  # within which a decision may be of what was before
RULE = {"apiGroups": ["karpenter.sh"], "apiVersions": ["*"], "operations": ["CREATE", "DELETE"],
        "resources": ["nodeclaims"]}  # fmt: skip
USER = "system:serviceaccount:aaml:aaml-autoscale"
CLAIMS, POOLS = "/apis/karpenter.sh/v1/nodeclaims", "/apis/karpenter.sh/v1/nodepools"
CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
PODS, SETS = "/api/v1/namespaces/default/pods", "/apis/apps/v1/namespaces/default/replicasets"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
MERGE = "application/merge-patch+json"
HELD, TAINT = "chaos.example/held", "chaos.example/closed"
SERVER_FIELDS = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")


def kind(name: str, cores: int, price: float) -> InstanceType:
    room = (("cpu", 1000 * cores), ("memory", 16 * GIB), ("pods", 110))
    return InstanceType(name, room, (Offering(price, zone="zone-a"),))


TYPES = (kind("small", 1, 1.0), kind("large", 2, 1.9))
GHOST = kind("ghost", 2, 1.0)  # the best there is, and Karpenter does not know it
POLICY = NodePolicy(idle_s=2.0, patience_s=10.0, look_s=5.0, eviction_dollars=0.0001)


class Judge:
    """Sees every NodeClaim that is made or deleted before it is, and four times a second what there is.

    `wrong` says what must never be. What a process decides may be of a moment before: an order that a disruption budget
    forbids is wrong only where it was so for `LATE_S`, and the process was neither cut off nor stood still.
    """

    def __init__(self, api: Transport) -> None:
        self._api = api
        self.wrong: list[str] = []
        self.orders = 0
        self.blind_until_s = 0.0
        self._deleted_s: deque[float] = deque()
        self._kept_since_s: dict[str, float] = {}  # by node
        self._ended = threading.Event()

    def __call__(self, request: Mapping[str, Any]) -> None:
        """Look at one request; it is let through whatever it is."""
        if request["userInfo"]["username"] != USER:
            return
        self.orders += 1
        now_s = time.monotonic()
        if request["operation"] == "CREATE":
            if (there := len(self.ours())) >= MOST_NODES:
                self.wrong.append(f"one more is provisioned: there are {there}")
            return
        claim = request["oldObject"]
        name, status = claim["metadata"]["name"], claim.get("status", {})
        if claim["metadata"].get("deletionTimestamp"):
            return
        if not OURS.items() <= claim["metadata"].get("labels", {}).items():
            self.wrong.append(f"{name} is deleted, which is not ours")
        self._deleted_s.append(now_s)
        while self._deleted_s[0] <= now_s - INTERVAL_S / SPEED + 0.5:  # a request is under way for a while
            self._deleted_s.popleft()
        if len(self._deleted_s) > MOVES:
            self.wrong.append(f"{len(self._deleted_s)} are terminated in an interval")
        since_s = self._kept_since_s.get(status.get("nodeName", ""), now_s)
        if now_s - since_s > LATE_S and now_s > self.blind_until_s:
            self.wrong.append(f"{name} is terminated, whose pods have been kept for {now_s - since_s:.1f} s")

    def ours(self) -> list[Any]:
        return [each for each in self._list(CLAIMS) if OURS.items() <= each["metadata"].get("labels", {}).items()]

    def watch(self) -> None:
        """Look at what there is until `end`."""
        while not self._ended.wait(0.25):
            with suppress(ApiError, Unreachable):
                self._look()

    def end(self) -> None:
        self._ended.set()

    def _look(self) -> None:
        if (there := len(self.ours())) > MOST_NODES:
            self.wrong.append(f"there are {there} NodeClaims")
        closed = [each["spec"]["selector"]["matchLabels"] for each in self._list(BUDGETS)
                  if each.get("status", {}).get("disruptionsAllowed", 0) < 1]  # fmt: skip
        kept = set()
        for pod in self._list(PODS):
            meta = pod["metadata"]
            marked = meta.get("annotations", {}).get(DO_NOT_DISRUPT) == "true"
            budgeted = any(labels.items() <= meta.get("labels", {}).items() for labels in closed)
            if not meta.get("deletionTimestamp") and (marked or budgeted):
                kept.add(pod["spec"].get("nodeName", ""))
        now_s = time.monotonic()
        self._kept_since_s = {node: self._kept_since_s.get(node, now_s) for node in kept - {""}}

    def _list(self, path: str) -> list[Any]:
        return json.loads(self._api.request("GET", path))["items"]


class Site:
    """The cluster, the two processes, and what strikes them."""

    def __init__(self, cluster: KwokCluster, folder: Path) -> None:
        self.cluster, self.api, self.folder = cluster, cluster.api(), folder
        self.judge = Judge(cluster.api())
        self.processes: list[Supervised] = []
        self._paused: set[int] = set()

    @contextmanager
    def run(self) -> Iterator["Site"]:
        """Begin; ends with the block."""
        with ExitStack() as stack:
            self.proxy = stack.enter_context(Proxy(urlsplit(self.api.server).port or 0))
            stack.enter_context(
                validating_webhook(self.cluster.api(), self.cluster.directory / "pki", RULE, self.judge)
            )
            watching = Background(self.judge.watch, "judge")
            stack.callback(watching.result)
            stack.callback(self.judge.end)
            self.node_class = self._kept(CLASSES, "default")
            self.binding = self._kept(BINDINGS, "aaml-autoscale")
            self.pool = self._kept(POOLS, "default")
            self.api.request("DELETE", f"{POOLS}/default")
            for number in range(2):
                self.processes.append(stack.enter_context(self._process(number)))
            yield self

    def _process(self, number: int) -> Supervised:
        account = self.cluster.service_account_kubeconfig("aaml", "aaml-autoscale")
        document = yaml.safe_load(account.read_text(encoding="utf-8"))
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.proxy.port}"
        access, types, policy = (self.folder / name for name in ("kubeconfig", "types.json", "policy.yaml"))
        kubeconfig.write(access, document)
        types.write_text(written_catalogue((*TYPES, GHOST)))
        write_node_policy(policy, POLICY)
        command = (
            AAML, "autoscale", "--apply", f"--kubeconfig={access}", f"--instance-types={types}", f"--nodes={policy}",
            f"--most-nodes={MOST_NODES}", f"--moves={MOVES}", f"--interval={INTERVAL_S}", f"--speed={SPEED}",
            f"--lease-duration-s={LEASE_S}", "--renew-deadline-s=2", "--retry-period-s=0.5",
        )  # fmt: skip
        return Supervised(command, self.folder, self.folder / f"autoscale-{number}.log")

    def output(self) -> str:
        """Return the last words of both processes."""
        return "\n".join(each.output()[-3000:] for each in self.processes)

    # ---- what there is -----------------------------------------------------------------------------------------------

    def items(self, path: str) -> list[Any]:
        return json.loads(self.api.request("GET", path))["items"]

    def ours(self) -> list[Any]:
        return self.judge.ours()

    def placed(self) -> int:
        return sum(bool(each["spec"].get("nodeName")) for each in self.items(PODS))

    def leader(self) -> Supervised:
        holder = json.loads(self.api.request("GET", f"{LEASES}/aaml-autoscale"))["spec"].get("holderIdentity") or ""
        led = [each for each in self.processes if each.pid and holder.startswith(process_prefix(each.pid))]
        return (led or self.processes)[0]

    # ---- what is done to it ------------------------------------------------------------------------------------------

    def scale(self, replicas: int) -> None:
        body = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"replicas": replicas}}
        self.api.request("PUT", f"{SETS}/web/scale", body)

    def patch(self, path: str, change: Any) -> None:
        with suppress(ApiError):  # it has gone or changed meanwhile
            self.api.request("PATCH", path, change, content_type=MERGE)

    def delete(self, path: str) -> None:
        with suppress(ApiError):
            self.api.request("DELETE", path)

    def create(self, path: str, body: Any) -> None:
        with suppress(ApiError):  # it is there
            self.api.request("POST", path, body)

    def blind(self) -> None:
        """The processes may decide by what was before."""
        self.judge.blind_until_s = time.monotonic() + LEASE_S + 2 * LATE_S

    def heal(self) -> None:
        """Make all well again."""
        for pid in self._paused:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._paused.clear()
        self.proxy.mode = "pass"
        self.cluster.start_stopped(wait_s=120.0)
        self.create(CLASSES, self.node_class)
        self.create(BINDINGS, self.binding)
        self.delete(f"{POOLS}/default")
        self.delete(f"{BUDGETS}/web")
        for pod in self.items(PODS):
            if DO_NOT_DISRUPT in pod["metadata"].get("annotations", {}):
                self.patch(f"{PODS}/{pod['metadata']['name']}", {"metadata": {"annotations": {DO_NOT_DISRUPT: None}}})
        for node in self.items("/api/v1/nodes"):
            meta, spec, taints = node["metadata"], node["spec"], node["spec"].get("taints", [])
            left = [each for each in taints if each["key"] != TAINT]
            if left != taints or spec.get("unschedulable") or DO_NOT_DISRUPT in meta.get("annotations", {}):
                well = {"annotations": {DO_NOT_DISRUPT: None}, "resourceVersion": meta["resourceVersion"]}
                change = {"metadata": well, "spec": {"unschedulable": None, "taints": left}}
                self.patch(f"/api/v1/nodes/{meta['name']}", change)
        for claim in self.items(CLAIMS):
            if HELD in (finalizers := claim["metadata"].get("finalizers", [])):
                left = [each for each in finalizers if each != HELD]
                self.patch(f"{CLAIMS}/{claim['metadata']['name']}", {"metadata": {"finalizers": left}})

    def pause(self, pid: int) -> None:
        if pid:
            os.kill(pid, signal.SIGSTOP)
            self._paused.add(pid)

    def _kept(self, path: str, name: str) -> Any:
        found = json.loads(self.api.request("GET", f"{path}/{name}"))
        found.pop("status", None)
        found["metadata"] = {key: value for key, value in found["metadata"].items() if key not in SERVER_FIELDS}
        return found


@contextmanager
def karpenter(cluster: KwokCluster) -> Iterator[None]:
    """Start Karpenter, which knows all types but one."""
    start(cluster, Pool(KarpenterSettings(consolidate_after_s=5.0), registration_delay_s=5.0, speed=SPEED),
          Catalogue(TYPES))  # fmt: skip
    yield


# ---- faults ----------------------------------------------------------------------------------------------------------

Strike = Callable[[Site, random.Random], None]
FAULTS: dict[str, Strike] = {}


def fault(strike: Strike) -> Strike:
    FAULTS[strike.__name__] = strike
    return strike


def some(site: Site, rng: random.Random, path: str = "") -> str:
    """Return the path of a claim of ours or, with `path`, of what that lists and is on a node of ours; "" for none."""
    claims = site.ours()
    if not claims:
        return ""
    claim = rng.choice(claims)
    if path:
        node = claim.get("status", {}).get("nodeName", "")
        return f"/api/v1/nodes/{node}" if node else ""
    return f"{CLAIMS}/{claim['metadata']['name']}"


@fault
def more_or_fewer_pods(site: Site, rng: random.Random) -> None:
    site.scale(rng.randint(0, MOST_PODS))


@fault
def a_disruption_budget(site: Site, rng: random.Random) -> None:
    least = rng.choice([0, 1, MOST_PODS])
    selector = {"matchLabels": {"app": "web"}}
    site.create(BUDGETS, {"metadata": {"name": "web"}, "spec": {"minAvailable": least, "selector": selector}})
    site.scale(rng.randint(0, 3))


@fault
def pods_that_may_not_be_disrupted(site: Site, rng: random.Random) -> None:
    for pod in rng.sample(pods := site.items(PODS), min(2, len(pods))):
        site.patch(f"{PODS}/{pod['metadata']['name']}", {"metadata": {"annotations": {DO_NOT_DISRUPT: "true"}}})
    site.scale(rng.randint(2, 4))


@fault
def the_leader_is_killed(site: Site, _rng: random.Random) -> None:
    site.leader().kill()


@fault
def both_are_killed(site: Site, _rng: random.Random) -> None:
    for each in site.processes:
        each.kill()


@fault
def the_leader_stands_still(site: Site, rng: random.Random) -> None:
    site.blind()
    pid = site.leader().pid
    site.pause(pid)
    site.scale(rng.randint(0, MOST_PODS))  # it will have much to do
    time.sleep(LEASE_S + 2.0)
    site.blind()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@fault
def the_network_is_cut(site: Site, _rng: random.Random) -> None:
    _network(site, "cut")


@fault
def the_network_is_silent(site: Site, _rng: random.Random) -> None:
    _network(site, "silent")


def _network(site: Site, mode: Any) -> None:
    site.blind()
    site.proxy.mode = mode
    time.sleep(LEASE_S)
    site.proxy.mode = "pass"
    site.blind()


@fault
def connections_are_reset(site: Site, _rng: random.Random) -> None:
    for _ in range(5):
        site.blind()
        site.proxy.reset()
        time.sleep(0.4)


@fault
def the_api_server_is_killed(site: Site, _rng: random.Random) -> None:
    site.blind()
    site.cluster.stop_component("kube-apiserver", kill=True)
    time.sleep(1.0)
    site.cluster.start_stopped(wait_s=120.0)
    site.blind()


@fault
def karpenter_is_killed(site: Site, _rng: random.Random) -> None:
    site.cluster.stop_component("karpenter", kill=True)
    time.sleep(2.0)
    site.cluster.start_stopped(wait_s=120.0)


@fault
def a_claim_is_deleted_by_hand(site: Site, rng: random.Random) -> None:
    if path := some(site, rng):
        site.delete(path)


@fault
def a_claim_does_not_go(site: Site, rng: random.Random) -> None:
    if path := some(site, rng):
        with suppress(ApiError):
            claim = json.loads(site.api.request("GET", path))
            site.patch(path, {"metadata": {"finalizers": [*claim["metadata"].get("finalizers", []), HELD]}})
            site.delete(path)


@fault
def a_node_is_deleted_by_hand(site: Site, rng: random.Random) -> None:
    if path := some(site, rng, "nodes"):
        site.delete(path)


@fault
def a_node_is_cordoned(site: Site, rng: random.Random) -> None:
    if path := some(site, rng, "nodes"):
        site.patch(path, {"spec": {"unschedulable": True}})


@fault
def a_node_is_tainted(site: Site, rng: random.Random) -> None:
    if path := some(site, rng, "nodes"):
        with suppress(ApiError):
            node = json.loads(site.api.request("GET", path))
            taints = [*node["spec"].get("taints", []), {"key": TAINT, "effect": "NoSchedule"}]
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            site.patch(path, {"metadata": version, "spec": {"taints": taints}})


@fault
def a_node_is_to_stay(site: Site, rng: random.Random) -> None:
    if path := some(site, rng, "nodes"):
        site.patch(path, {"metadata": {"annotations": {DO_NOT_DISRUPT: "true"}}})


@fault
def nothing_can_be_had(site: Site, rng: random.Random) -> None:
    """Without its class Karpenter finds no capacity."""
    site.delete(f"{CLASSES}/default")
    site.scale(rng.randint(1, MOST_PODS))


@fault
def karpenter_buys_itself(site: Site, rng: random.Random) -> None:
    pool = json.loads(json.dumps(site.pool))
    pool["spec"]["limits"] = {"cpu": "2"}
    site.create(POOLS, pool)
    site.scale(rng.randint(1, MOST_PODS))


@fault
def its_rights_are_taken(site: Site, _rng: random.Random) -> None:
    site.delete(f"{BINDINGS}/aaml-autoscale")


RARE = frozenset({"the_api_server_is_killed", "nothing_can_be_had", "karpenter_is_killed"})
"""Faults after which all is well again only half a minute later."""


def strike(site: Site, rng: random.Random) -> str:
    """Let one to three faults strike one after the other; returns their names."""
    often = [name for name in FAULTS if name not in RARE]
    names = [rng.choice(sorted(RARE)) if rng.random() < 0.1 else rng.choice(often) for _ in range(rng.randint(1, 3))]
    for name in names:
        FAULTS[name](site, rng)
        time.sleep(rng.uniform(0.2, 2.0))
    return ", ".join(names).replace("_", " ")


def web() -> dict[str, Any]:
    return replica_set("web", 0, "1", "1Gi", terminationGracePeriodSeconds=1)
