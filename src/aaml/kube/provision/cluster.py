"""A whole Kubernetes control plane as plain processes on loopback, with KWOK in the place of the kubelets.

kwokctl writes the certificates and starts etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK's
controller; from then on this module looks after the processes.
https://kwok.sigs.k8s.io/docs/user/kwokctl-platform-specific-binaries/
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from aaml.errors import UserError, bad_value
from aaml.kube.provision import kubeconfig, records
from aaml.kube.provision.api import Api, ApiError
from aaml.kube.provision.binaries import ensure_programs, programs_dir, versions
from aaml.kube.provision.components import Component, kill_strays, read_components
from aaml.kube.provision.nodes import create_nodes, standard_nodes, wait_schedulable
from aaml.kube.provision.paths import exclusive, private_dir, state_dir, write_private
from aaml.kube.provision.ports import check_port, choose_ports
from aaml.kube.provision.records import ClusterOptions, Record

_LOOK_EVERY_S = 0.1
_NOT_FOUND = 404


class KwokCluster:
    """The cluster called `name`, running or not. Its processes outlive this one until `down`."""

    def __init__(self, name: str = "aaml") -> None:
        self.name = name
        self.directory = records.cluster_dir(name)

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of an administrator, mode 0600, certificates inside."""
        return records.kubeconfig_path(self.name)

    @property
    def kubectl(self) -> Path:
        """The kubectl of the cluster's own version."""
        return programs_dir() / "kubectl"

    def api(self) -> Api:
        """Return a connection as an administrator."""
        return Api(self.kubeconfig)

    def service_account_kubeconfig(self, namespace: str, account: str) -> Path:
        """Write a kubeconfig with a service account's token, good for an hour, and return where it is."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        token = json.loads(self.api().send("POST", path, request))["status"]["token"]
        administrator = yaml.safe_load(self.kubeconfig.read_text(encoding="utf-8"))
        file = self.directory / f"{namespace}-{account}.kubeconfig"
        kubeconfig.write(file, kubeconfig.with_token(administrator, token))
        return file

    def components(self) -> dict[str, Component]:
        """Return the cluster's processes by name, in the order in which they start; empty when there is no cluster."""
        return read_components(self.directory)

    def component(self, name: str) -> Component:
        """Return one process, for instance "kube-apiserver"; raise `UserError` with the names there are."""
        found = self.components()
        if name not in found:
            raise bad_value("component", name, f"one of {', '.join(found) or 'a running cluster'}")
        return found[name]

    def pid(self, component: str) -> int | None:
        """Return the process id of a component, None while it is stopped."""
        return self.component(component).pid()

    def stop_component(self, component: str, *, kill: bool = False) -> None:
        """Stop one process and wait until it is gone; `kill` ends it as a crash does."""
        self.component(component).stop(kill=kill)

    def start_component(self, component: str, *, wait_s: float = 60.0) -> None:
        """Start one process again; the API server is waited for until it is ready."""
        self.component(component).start()
        if component == "kube-apiserver":
            self._wait_ready(wait_s)

    def running(self) -> bool:
        """Say whether every process of the cluster is alive."""
        found = self.components().values()
        return bool(found) and all(component.pid() is not None for component in found)

    def up(self, options: ClusterOptions | None = None, *, progress: bool = True) -> None:
        """Start the cluster, add its nodes and wait until pods can be placed on them.

        Builds the programs when the cache has none. Nothing stays behind when it fails or is interrupted. Raises
        `UserError` when a cluster of this name runs, the port is taken, or a part does not come up in time.
        """
        options = options or ClusterOptions()
        manifests = standard_nodes(options.nodes, options.shape)
        check_port(options.port)
        if any(component.pid() is not None for component in self.components().values()):
            raise UserError(f"name: cluster {self.name!r} is up already; see `aaml cluster status --name {self.name}`")
        self.down()
        programs = ensure_programs()  # minutes the first time: never without a word
        try:
            self._create(programs, options)
            self._wait_ready(options.wait_s)
            api = self.api()
            create_nodes(api, manifests, progress=progress)
            wait_schedulable(api, options.nodes, wait_s=options.wait_s, progress=progress)
            _wait_service_account(api, options.wait_s)
            self._check_alive(self.components().values())
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Stop every process, last started first, and remove the cluster's files. Does nothing where there is none."""
        for component in reversed(self.components().values()):
            component.stop(kill=True)
        kill_strays(self.directory)
        if self.directory.exists():
            records.forget(self.name)

    def _create(self, programs: Path, options: ClusterOptions) -> None:
        """Let kwokctl write the files and start the processes; one at a time, as each has to see the others' ports."""
        private_dir(state_dir())
        private_dir(self.directory)
        settings = self.directory / "kwokctl.yaml"
        command = [str(programs / "kwokctl"), "create", "cluster", f"--name={self.name}", f"--config={settings}",
                   "--kubeconfig="]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KWOK_")}
        environment["KWOK_WORKDIR"] = str(state_dir())
        environment["KUBECACHEDIR"] = str(self.directory / "kubectl-cache")  # kwokctl asks kubectl, which fills ~/.kube
        with exclusive(state_dir() / "create.lock", _say_waiting):
            ports = choose_ports(self.directory.parent, options.port)
            write_private(settings, yaml.safe_dump(kwokctl_configuration(programs, options, ports), sort_keys=False))
            status, output = _run_aside(command, environment, options.wait_s)
        components = self.components()
        if status != 0 or not components:
            raise UserError(f"kwokctl failed (exit status {status}): {' / '.join(output.strip().splitlines()[-2:])}")
        port = ports["kubeApiserverPort"]
        kubeconfig.write(self.kubeconfig, kubeconfig.mutual_tls(self.name, port, self.directory / "pki"))
        address = f"https://127.0.0.1:{port}"
        records.save(Record(self.name, "binary", versions().kubernetes, address, options.nodes, options.scheduler))

    def _wait_ready(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        api = self.api()
        while not api.ready():
            self._check_alive(self.component(name) for name in ("etcd", "kube-apiserver"))
            if time.monotonic() >= deadline:
                raise UserError(
                    f"wait_s: the API server of {self.name!r} was not ready in {wait_s:g} s; give it longer"
                )
            time.sleep(_LOOK_EVERY_S)

    def _check_alive(self, components: Iterable[Component]) -> None:
        for component in components:
            if component.pid() is None:
                raise UserError(f"{component.name} has ended: {component.last_words()}")


def kwokctl_configuration(programs: Path, options: ClusterOptions, ports: Mapping[str, int]) -> dict[str, object]:
    """Return kwokctl's settings: these programs, loopback only, mutual TLS with RBAC, no client-side rate limits.

    Without its limits the controller-manager takes the not-ready taint off 1,000 nodes in seconds, not in minutes.
    """
    settings: dict[str, object] = {
        "runtime": "binary",
        "bindAddress": "127.0.0.1",
        "securePort": True,
        "kubeAuthorization": True,
        "kubeAdmission": True,
        "kubeVersion": f"v{versions().kubernetes}",
        **ports,
        "disableQPSLimits": True,
        "etcdBinary": str(programs / "etcd"),
        "kubeApiserverBinary": str(programs / "kube-apiserver"),
        "kubeControllerManagerBinary": str(programs / "kube-controller-manager"),
        "kubeSchedulerBinary": str(programs / "kube-scheduler"),
        "kubectlBinary": str(programs / "kubectl"),
        "kwokControllerBinary": str(programs / "kwok"),
    }
    if not options.scheduler:
        settings["disable"] = ["kube-scheduler"]
    if options.scheduler_config is not None:
        if not options.scheduler_config.is_file():
            raise bad_value("scheduler_config", str(options.scheduler_config), "a KubeSchedulerConfiguration file")
        settings["kubeSchedulerConfig"] = str(options.scheduler_config.absolute())
    alone = {"extraArgs": [{"key": "leader-elect", "value": "false"}]}
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokctlConfiguration",
        "options": settings,
        # With leader election a part ends itself when the API server is away for more than ten seconds.
        "componentsPatches": [{"name": name, **alone} for name in ("kube-controller-manager", "kube-scheduler")],
    }


def _run_aside(command: list[str], environment: dict[str, str], wait_s: float) -> tuple[int, str]:
    """Run kwokctl out of reach of the terminal's Ctrl-C, which must end it before its processes are looked for."""
    with subprocess.Popen(  # noqa: S603  (our own command line, no shell)
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=wait_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise UserError(f"wait_s: kwokctl did not finish in {wait_s:g} s; give it longer") from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output


def _wait_service_account(api: Api, wait_s: float) -> None:
    """Wait for the default service account: without it the API server takes no pod."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            api.send("GET", "/api/v1/namespaces/default/serviceaccounts/default")
        except ApiError as error:
            if error.status != _NOT_FOUND or time.monotonic() >= deadline:
                raise UserError(f"the default service account is missing: {error.message}") from error
        else:
            return
        time.sleep(_LOOK_EVERY_S)


def _say_waiting() -> None:
    print("another cluster is being created; waiting for it", file=sys.stderr)
