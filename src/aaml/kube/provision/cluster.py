"""A whole Kubernetes control plane as plain processes on loopback, with KWOK in the place of the kubelets.

kwokctl writes the certificates and starts etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK's
controller; from then on this module looks after the processes.
https://kwok.sigs.k8s.io/docs/user/kwokctl-platform-specific-binaries/
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from aaml.cluster.fleet import standard_nodes
from aaml.errors import UserError, bad_value
from aaml.files import write_text
from aaml.folders import private_dir, state_dir
from aaml.kube.provision import kubeconfig, records
from aaml.kube.provision.binaries import ensure_programs, minor, programs_dir, release
from aaml.kube.provision.components import Component, add_component, kill_strays, read_components
from aaml.kube.provision.nodes import create_nodes
from aaml.kube.provision.owner import Owner
from aaml.kube.provision.paths import PRIVATE, exclusive
from aaml.kube.provision.ports import check_port, choose_ports
from aaml.kube.provision.records import ClusterOptions, Record
from aaml.kube.provision.waits import until, wait_ready, wait_schedulable, wait_service_account
from aaml.kube.transport import Transport
from aaml.yaml_text import yaml_text

API_TIMEOUT_S = 30.0  # the server shares this machine with whatever else runs on it
_HOLD_OBJECTS = ("etcd", "kube-apiserver")
_KUBELETS = "kwok-controller"


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
        return programs_dir(minor(records.load(self.name).kubernetes)) / "kubectl"

    def api(self) -> Transport:
        """Return a connection as an administrator."""
        return Transport(self.kubeconfig, timeout_s=API_TIMEOUT_S)

    def service_account_kubeconfig(self, namespace: str, account: str) -> Path:
        """Write a kubeconfig with a service account's token, good for an hour, and return where it is."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        token = json.loads(self.api().request("POST", path, request))["status"]["token"]
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
        self._start(self.component(component))
        if component == "kube-apiserver":
            self._wait_ready(wait_s)

    def add_component(self, component: Component) -> None:
        """Start one more process, which from now on is one of the cluster's: started again and taken down with it."""
        add_component(component)
        component.start()

    def stopped(self) -> tuple[str, ...]:
        """Return the names of the processes that should run and do not, in the order in which they start."""
        return tuple(name for name, component in self.components().items() if component.pid() is None)

    def running(self) -> bool:
        """Say whether there is a cluster and every process of it is alive."""
        return bool(self.components()) and not self.stopped()

    def start_stopped(self, *, wait_s: float = 60.0) -> tuple[str, ...]:
        """Start every stopped process again, wait until each serves, and return their names.

        What etcd holds is kept. Raises `UserError` with the last words of a part that ends again.
        """
        stopped, parts = self.stopped(), self.components().values()
        for holds_objects in (True, False):  # the others end themselves when no API server answers at their start
            for part in parts:
                if (part.name in _HOLD_OBJECTS) == holds_objects:
                    self._start(part)
            self._wait_ready(wait_s)

        def serving() -> bool:
            _check_alive(parts)
            return all(part.listens() for part in parts)

        until(serving, wait_s, f"cluster {self.name!r} did not serve again")
        return stopped

    def up(self, options: ClusterOptions | None = None, *, progress: bool = True) -> tuple[str, ...]:
        """Start the cluster, add its nodes and wait until pods can be placed on them.

        Where the cluster is there already, only its stopped processes are started: everything on it is kept, the other
        options do not apply, and the names of those processes are returned. They are empty for a new cluster. Builds
        the programs when the cache has none. Nothing of a new cluster stays behind when its start fails or is
        interrupted. Raises `UserError` when every process runs already, the port is taken, or a part does not come up
        in time.
        """
        options = options or ClusterOptions()
        nodes = standard_nodes(options.nodes, options.shape)
        with records.locked(self.name):
            record = records.existing(self.name, "binary")
            if record is not None and not record.orphaned:
                if self.running():
                    raise UserError(
                        f"name: cluster {self.name!r} is up already; see `aaml cluster status --name {self.name}`"
                    )
                return self.start_stopped(wait_s=options.wait_s)
            check_port(options.port)
            self.down()
            programs = ensure_programs(options.kubernetes)  # minutes the first time: never without a word
            try:
                made = self._create(programs, options)
                self.start_stopped(wait_s=options.wait_s)  # a slow API server: the others have ended meanwhile
                api = self.api()
                create_nodes(api, nodes, progress=progress)
                wait_schedulable(api, options.nodes, wait_s=options.wait_s, progress=progress)
                wait_service_account(api, options.wait_s)
                _check_alive(self.components().values())
                records.save(replace(made, owner=options.owner))
            except BaseException:
                self.down()
                raise
            return ()

    def down(self) -> None:
        """Stop every process, last started first, and remove the cluster's files. Does nothing where there is none."""
        for component in reversed(self.components().values()):
            component.stop(kill=True)
        kill_strays(self.directory)
        if self.directory.exists():
            records.forget(self.name)

    def _create(self, programs: Path, options: ClusterOptions) -> Record:
        """Let kwokctl write the files and start the processes; one at a time, as each has to see the others' ports."""
        private_dir(self.directory)
        settings = self.directory / "kwokctl.yaml"
        command = [str(programs / "kwokctl"), "create", "cluster", f"--name={self.name}", f"--config={settings}",
                   "--kubeconfig="]  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KWOK_")}
        environment["KWOK_WORKDIR"] = str(state_dir())
        environment["KUBECACHEDIR"] = str(self.directory / "kubectl-cache")  # kwokctl asks kubectl, which fills ~/.kube
        with exclusive(state_dir() / "create.lock", "creates a cluster"):
            ports = choose_ports(self.directory.parent, options.port)
            port = ports["kubeApiserverPort"]
            address, maker = f"https://127.0.0.1:{port}", Owner.this_process()
            kubernetes = release(options.kubernetes)
            record = Record(self.name, "binary", kubernetes, address, options.nodes, options.scheduler, maker)
            records.save(record)
            content = yaml_text(kwokctl_configuration(programs, options, ports))
            write_text(settings, content, mode=PRIVATE)
            status, output = _run_aside(command, environment, options.wait_s)
        if status != 0 or not self.components():
            raise UserError(f"kwokctl failed (exit status {status}): {' / '.join(output.strip().splitlines()[-2:])}")
        kubeconfig.write(self.kubeconfig, kubeconfig.mutual_tls(self.name, port, self.directory / "pki"))
        return record

    def _start(self, component: Component) -> None:
        if component.name == _KUBELETS and component.pid() is None:
            # The new process would take over the nodes of the dead one only when their leases end, after minutes.
            api = self.api()
            with api.explained():
                api.request("DELETE", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
        component.start()

    def _wait_ready(self, wait_s: float) -> None:
        parts = [self.component(name) for name in _HOLD_OBJECTS]
        wait_ready(self.api(), wait_s, lambda: _check_alive(parts))


def _check_alive(components: Iterable[Component]) -> None:
    """Raise `UserError` with the last words of a part that has ended."""
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
        "kubeVersion": f"v{release(options.kubernetes)}",
        **ports,
        "disableQPSLimits": True,
        "etcdBinary": str(programs / "etcd"),
        "kubeApiserverBinary": str(programs / "kube-apiserver"),
        "kubeControllerManagerBinary": str(programs / "kube-controller-manager"),
        "kubeSchedulerBinary": str(options.scheduler_program or programs / "kube-scheduler"),
        "kubectlBinary": str(programs / "kubectl"),
        "kwokControllerBinary": str(programs / "kwok"),
    }
    if not options.scheduler:
        settings["disable"] = ["kube-scheduler"]
    if options.scheduler_config is not None:
        if not options.scheduler_config.is_file():
            raise bad_value("scheduler_config", str(options.scheduler_config), "a KubeSchedulerConfiguration file")
        settings["kubeSchedulerConfig"] = str(options.scheduler_config.absolute())
    # With leader election a part ends itself when the API server is away for more than ten seconds. One worker, which
    # is the default, takes 20 s to delete a collection of 2,000 pods, and 16 take 7 s.
    flags = {name: {"leader-elect": "false"} for name in ("kube-controller-manager", "kube-scheduler")}
    flags["kube-apiserver"] = {"delete-collection-workers": "16"}
    for name, more in options.arguments.items():
        flags[name] = {**flags.get(name, {}), **more}
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokctlConfiguration",
        "options": settings,
        "componentsPatches": [
            {"name": name, "extraArgs": [{"key": key, "value": value} for key, value in extra_args.items()]}
            for name, extra_args in flags.items()
        ],
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
