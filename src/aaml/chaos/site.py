"""Where faults strike: a real cluster, a proxy before its API server, supervised schedulers, and pods under way."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import yaml

from aaml.chaos.clock import WRONG
from aaml.chaos.proxy import Proxy
from aaml.chaos.supervised import Supervised
from aaml.chaos.workload import ChaosWorkload, ask
from aaml.errors import UserError
from aaml.evaluation.policies import in_any_folder
from aaml.kube.lease import LeaseOptions, process_prefix
from aaml.kube.provision import KwokCluster, kubeconfig
from aaml.kube.provision.ports import free_port
from aaml.kube.provision.waits import says_ready
from aaml.kube.transport import CONFLICT, ApiError, Unreachable, allowing
from aaml.learning.config import LIVE
from aaml.plugin.module import is_plugin
from aaml.plugin.run import command as plugin_command
from aaml.plugin.run import fetch, plugin_of, write_configuration

SCHEDULER = "aaml-chaos"
LIMITED = {
    "kube-apiserver": {
        "enable-priority-and-fairness": "true", "max-requests-inflight": "400", "max-mutating-requests-inflight": "200",
    }
}  # fmt: skip
"""flags by which the API server limits requests as it usually does, which kwokctl does not let it"""
_ACQUIRED = "Successfully acquired lease"
ACCOUNT = {"name": "aaml-chaos", "namespace": "kube-system"}  # the schedulers' service account: what strikes them alone


class Site:
    """One run's surroundings, from the start of a `with` block to its end.

    `decides` is an agent that learns, by name, any policy, or a plugin in kube-scheduler. `replicas` of it run, with
    leader election where there are more than one. Their folders, logs and models are in `folder`. With `serves` what
    decides only serves, as an extender that is asked nothing: kube-scheduler, which the cluster has to have then,
    places the pods.
    """

    def __init__(self, cluster: KwokCluster, decides: str, *, replicas: int = 1, serves: bool = False) -> None:
        self.cluster, self.decides = cluster, decides
        self.api = cluster.api()
        self._replicas, self._serves = replicas, serves
        self._plugin = plugin_of(decides) if is_plugin(decides) else None
        self._stack = ExitStack()
        self.schedulers: list[Supervised] = []
        self._ports: list[int] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aaml-chaos-")))
            self.clock = self.folder / "clock"
            self.proxy = stack.enter_context(Proxy(urlsplit(self.api.server).port or 0))
            self.workload = self._workload(f"chaos-{time.time_ns():x}")
            stack.callback(self.workload.close)
            for _ in range(self._replicas):
                self.add_scheduler(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def scheduler(self) -> Supervised:
        """The first scheduler."""
        return self.schedulers[0]

    @property
    def ends_with(self) -> tuple[int, ...]:
        """The exit statuses of a scheduler that ends properly on request."""
        return (0, 1) if self._plugin else (0,)  # kube-scheduler ends with 1 unless it elects a leader

    def leader(self) -> Supervised:
        """Return the scheduler that holds the lease of this run. Raises `UserError` when none of them does."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{LeaseOptions.namespace}/leases/{self.workload.namespace}"
        holder = json.loads(self.api.request("GET", path))["spec"].get("holderIdentity") or ""
        for scheduler in self.schedulers:
            # kube-scheduler holds a lease by a name that it draws, and tells of it.
            leads = (
                _ACQUIRED in scheduler.output() if self._plugin else holder.startswith(process_prefix(scheduler.pid))
            )
            if leads:
                return scheduler
        raise UserError(f"chaos: no scheduler of this run holds the lease; {holder or 'nobody'} does")

    def add_scheduler(self, stack: ExitStack | None = None) -> Supervised:
        """Start one more scheduler of the same name; it ends with the site."""
        number = len(self.schedulers)
        folder = self.folder / f"scheduler-{number}"
        folder.mkdir()
        port = free_port()
        access = self._kubeconfig(folder)
        lease = self.workload.namespace if self._replicas > 1 else ""
        if self._plugin:
            file = folder / "kube-scheduler.yaml"
            write_configuration(self._plugin, access, file, scheduler_name=SCHEDULER, lease=lease)
            command = plugin_command(self._plugin, file, port=port)
        else:
            command = [
                sys.executable, "-m", "aaml.chaos.clock", str(self.clock), *self._which(port),
                "--kubeconfig", str(access),
            ]  # fmt: skip
            if lease:
                times = ("--lease-duration-s", "3", "--renew-deadline-s", "2", "--retry-period-s", "0.5")
                command += ["--leader-elect", "--lease-name", lease, *times]
        scheduler = Supervised(command, folder, self.folder / f"scheduler-{number}.log")
        (stack or self._stack).enter_context(scheduler)
        self.schedulers.append(scheduler)
        self._ports.append(port)
        return scheduler

    def ready(self, number: int = 0) -> bool:
        """Say whether a scheduler answers that it is ready."""
        port = self._ports[number]
        if not self._plugin:
            return says_ready(port)
        try:
            return fetch(port, "/readyz") == "ok"
        except OSError:
            return False

    def wrong_states(self) -> list[str]:
        """Return the schedulers' log lines about a state that contradicts pods and nodes."""
        lines = [line for scheduler in self.schedulers for line in scheduler.output().splitlines()]
        return [line.partition(WRONG)[2].strip() for line in lines if WRONG in line]

    def models(self) -> list[Path]:
        """Return the model files that the schedulers have left so far."""
        return sorted(self.folder.glob("scheduler-*/models/*.pth"))

    def wait(self, condition: Callable[[], Any], what: str, wait_s: float = 60.0) -> None:
        """Wait for a condition; raises `UserError` with `what` was not seen."""
        deadline_s = time.monotonic() + wait_s
        while not condition():
            if time.monotonic() > deadline_s:
                ends = (line for each in self.schedulers for line in each.output().strip().splitlines()[-2:])
                raise UserError(f"chaos: {what}: not seen in {wait_s:g} s; the schedulers wrote: {' / '.join(ends)}")
            time.sleep(0.05)

    def _which(self, port: int) -> Sequence[str]:
        """Return the words of the command line that say what runs, and where it answers."""
        schedules = ("--scheduler-name", SCHEDULER, "--health-port", str(port))
        if self.decides in LIVE and not self._serves:
            return ("schedule", self.decides, "--save-every-s", "2", *schedules)
        spec = in_any_folder(self.decides)  # its process works in another one
        if self._serves:
            return ("serve", "--policy", "kube-scheduler" if self.decides in LIVE else spec, "--port", str(port))
        return ("schedule", "policy", "--policy", spec, *schedules)

    def _workload(self, namespace: str) -> ChaosWorkload:
        ask(self.api, "POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})

        def account() -> bool:
            with suppress(ApiError, Unreachable):
                self.api.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
                return True
            return False

        self.wait(account, "the service account of a new namespace", 120.0)
        return ChaosWorkload(self.api, namespace, "default-scheduler" if self._serves else SCHEDULER)

    def _kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig of the schedulers' account, whose way to the API server goes through the proxy."""
        self._account()
        theirs = self.cluster.service_account_kubeconfig(ACCOUNT["namespace"], ACCOUNT["name"])
        document = yaml.safe_load(theirs.read_text(encoding="utf-8"))
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.proxy.port}"
        path = folder / "kubeconfig"
        kubeconfig.write(path, document)
        return path

    def _account(self) -> None:
        """Make the schedulers' account, which may do everything here, unless it is there from the run before."""
        namespace, name = ACCOUNT["namespace"], {"name": ACCOUNT["name"]}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        binding = {"metadata": name, "roleRef": role, "subjects": [{"kind": "ServiceAccount", **ACCOUNT}]}
        for path, document in (
            (f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": name}),
            ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding),
        ):
            with allowing(CONFLICT):
                self.api.request("POST", path, document)
