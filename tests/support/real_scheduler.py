"""A real kube-scheduler, or a plugin in it, that says which nodes passed its filters and what it scored.

It is the oracle of differential tests. Only etcd and the API server run beside it, so that nothing but the test changes
the cluster. The scheduler calls an extender with the names of the nodes that passed, and logs every plugin's score.
"""

import json
import re
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import yaml

from aaml.kube.provision import ClusterOptions, KwokCluster, Owner
from aaml.kube.provision.binaries import programs_dir
from aaml.kube.provision.gates import with_gates
from aaml.kube.provision.ports import free_port
from aaml.kube.transport import Unreachable
from aaml.plugin.configuration import arguments
from aaml.plugin.module import PluginModule
from aaml.plugin.run import command, fetch, write_configuration
from support.kwok import until

_SCORE = re.compile(r'"Plugin scored node for pod" pod="([^"]+)" plugin="([^"]+)" node="([^"]+)" score=(-?\d+)')
_FINAL = re.compile(r'"Calculated node\'s final score for pod" pod="([^"]+)" node="([^"]+)" score=(-?\d+)')
_WAIT_S = 30.0


@dataclass
class Verdict:
    """What the scheduler made of a pod.

    `passed`: names of the nodes that passed the filters, where an extender sees them. `scores`: plugin -> node ->
    weighted score, empty when there was nothing to choose. `node`: where it went, "" when nowhere, with `message`
    saying why.
    """

    pod: dict[str, Any]  # as it was when the scheduler was done with it
    passed: frozenset[str] = frozenset()
    scores: dict[str, dict[str, int]] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    message: str = ""

    @property
    def node(self) -> str:
        return self.pod["spec"].get("nodeName", "")


class RealScheduler:
    """The cluster and its scheduler: with profiles of a KubeSchedulerConfiguration, or a plugin. A context manager.

    `kubernetes` is the release, the newest where it is empty.

    `gates` are those of `aaml cluster up --gates`.

    Without `extender` nobody tells which nodes passed the filters: a plugin may then hand kube-scheduler the best ones.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        profiles: Sequence[Mapping[str, Any]] = (),
        plugin: PluginModule | None = None,
        *,
        extender: bool = True,
        kubernetes: str = "",
        gates: str = "",
    ) -> None:
        self._kubernetes, self._gates = kubernetes, gates
        self.cluster, self._plugin, self.sees = KwokCluster(name), plugin, extender
        self._directory, self._profiles = directory, list(profiles)
        self._passed: dict[str, frozenset[str]] = {}
        self._pods: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        # Nobody is there to take the finalizers off that protect claims and volumes in use.
        admission = {"kube-apiserver": {"disable-admission-plugins": "StorageObjectInUseProtection"}}
        options = ClusterOptions(nodes=1, scheduler=False, owner=Owner.this_process(), arguments=admission,
                                 kubernetes=self._kubernetes)  # fmt: skip
        self.cluster.up(with_gates(options, self._gates), progress=False)
        try:
            for component in ("kwok-controller", "kube-controller-manager"):
                self.cluster.stop_component(component, kill=True)
            self.api = self.cluster.api()
            if self.sees:
                self._start_extender()
            self._start_scheduler()
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        process = getattr(self, "_process", None)
        if process is not None:
            process.kill()
            process.wait()
            self._log_reader.close()
        if hasattr(self, "_extender"):
            self._extender.shutdown()
            self._extender.server_close()
        self.cluster.down()

    # ---- what the test does ------------------------------------------------------------------------------------------

    def decide(self, manifest: Mapping[str, Any], nominated: str = "") -> Verdict:
        """Create a pod, nominated to a node or to none, and wait until the scheduler has bound it or given it up."""
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        key = f"{namespace}/{name}"
        self._passed.pop(key, None)
        path = f"/api/v1/namespaces/{namespace}/pods"
        if nominated:  # it is gated until the scheduler can see both at once
            manifest = {**manifest, "spec": {**manifest["spec"], "schedulingGates": [{"name": "test/nominated"}]}}
        created = json.loads(self.api.request("POST", path, manifest))
        uid = created["metadata"]["uid"]
        if nominated:
            created["status"]["nominatedNodeName"] = nominated
            created = json.loads(self.api.request("PUT", f"{path}/{name}/status", created))
            created["spec"]["schedulingGates"] = []
            self.api.request("PUT", f"{path}/{name}", created)
        pod = self.wait(uid, lambda pod: pod["spec"].get("nodeName") or condition(pod))
        verdict = Verdict(pod, message=(condition(pod) or {}).get("message", ""))
        verdict.passed = self._passed.pop(key, frozenset())
        if verdict.node and (len(verdict.passed) > 1 or not self.sees):
            verdict.scores, verdict.totals = self._read_scores(key)
        return verdict

    def wait(self, uid: str, wanted: Any, wait_s: float = _WAIT_S) -> dict[str, Any]:
        """Wait until a pod is as wanted and return it."""
        deadline = time.monotonic() + wait_s
        with self._changed:
            while not (uid in self._pods and wanted(self._pods[uid])):
                if self._process.poll() is not None:
                    raise AssertionError(f"kube-scheduler has ended: {self._log.read_text()[-2000:]}")
                if not self._changed.wait(min(1.0, deadline - time.monotonic())) and time.monotonic() > deadline:
                    raise AssertionError(f"no decision on pod {uid} in {wait_s:g} s: {self._pods.get(uid)}")
            return self._pods[uid]

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return all pods by uid, as the watch has shown them."""
        with self._changed:
            return dict(self._pods)

    def output(self) -> str:
        """Return what the scheduler has written so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _start_extender(self) -> None:
        passed = self._passed

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                arguments = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                meta = arguments["Pod"]["metadata"]
                passed[f"{meta['namespace']}/{meta['name']}"] = frozenset(arguments["NodeNames"])
                body = json.dumps({"NodeNames": arguments["NodeNames"]}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        self._extender = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._extender.daemon_threads = True
        threading.Thread(target=self._extender.serve_forever, daemon=True).start()

    def _start_scheduler(self) -> None:
        configuration: dict[str, Any] = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "percentageOfNodesToScore": 100,
            "profiles": self._profiles,
            "clientConnection": {"kubeconfig": str(self.cluster.kubeconfig), "qps": 5000, "burst": 10000},
        }
        path = self._directory / "scheduler.yaml"
        line = [str(programs_dir(self._kubernetes) / "kube-scheduler"), f"--config={path}", "--secure-port=0"]
        if self._plugin is not None:
            self.port = free_port()
            line = command(self._plugin, path, port=self.port)
            write_configuration(self._plugin, self.cluster.kubeconfig, path)
            configuration = yaml.safe_load(path.read_text())
            arguments(configuration["profiles"][0])["deadline"] = "30s"  # decisions are compared here, not timed
        if self.sees:
            configuration["extenders"] = [
                {
                    "urlPrefix": f"http://127.0.0.1:{self._extender.server_port}",
                    "filterVerb": "filter",
                    "nodeCacheCapable": True,
                    "weight": 1,
                }
            ]
        path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
        opened = with_gates(ClusterOptions(), self._gates).arguments.get("kube-scheduler", {}).get("feature-gates", "")
        self._log = self._directory / "scheduler.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *line, "--v=0", "--vmodule=schedule_one=10",
                    # It would reuse the order of the last pod's nodes, and the extender would see one node only.
                    f"--feature-gates=OpportunisticBatching=false,{opened}".rstrip(","),
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._log_reader = self._log.open(encoding="utf-8", errors="replace")
        if self._plugin is not None:
            until(self._ready, "a plugin that is ready", 60.0)

    def _ready(self) -> bool:
        try:
            return fetch(self.port, "/readyz") == "ok"
        except OSError:
            return False

    def _read_scores(self, key: str) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
        scores: dict[str, dict[str, int]] = defaultdict(dict)
        totals: dict[str, int] = {}
        deadline = time.monotonic() + _WAIT_S
        unread = ""
        while True:
            unread += self._log_reader.read()
            *lines, unread = unread.split("\n")
            for line in lines:
                if (match := _SCORE.search(line)) and match[1] == key:
                    scores[match[2]][match[3]] = int(match[4])
                elif (match := _FINAL.search(line)) and match[1] == key:
                    totals[match[2]] = int(match[3])
                elif "Successfully bound pod to node" in line and f'pod="{key}"' in line:
                    return dict(scores), totals
            if time.monotonic() > deadline:
                raise AssertionError(f"kube-scheduler logged no scores of {key}")
            if not lines:
                time.sleep(0.002)

    def _watch(self) -> None:
        query = {
            "sendInitialEvents": "true", "allowWatchBookmarks": "true", "resourceVersionMatch": "NotOlderThan",
        }  # fmt: skip
        while not self._stop.is_set():
            version = json.loads(self.api.request("GET", "/api/v1/pods?limit=1"))["metadata"]["resourceVersion"]
            with self._changed:
                self._pods.clear()
            try:
                watch = self.api.watch("/api/v1/pods", {**query, "resourceVersion": version}, silence_s=600)
                for lines in watch.lines():
                    self._take([json.loads(line) for line in lines])
            except Unreachable:
                if self._stop.wait(0.1):
                    return

    def _take(self, events: list[dict[str, Any]]) -> None:
        with self._changed:
            for event in events:
                pod = event["object"]
                uid = pod["metadata"].get("uid")
                if event["type"] == "DELETED":
                    self._pods.pop(uid, None)
                elif event["type"] in {"ADDED", "MODIFIED"}:
                    self._pods[uid] = pod
            self._changed.notify_all()


def condition(pod: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the PodScheduled condition when it says that the pod was tried and not scheduled."""
    for each in pod.get("status", {}).get("conditions", ()):
        if each["type"] == "PodScheduled" and each["status"] == "False" and each["reason"] != "SchedulingGated":
            return each
    return None
