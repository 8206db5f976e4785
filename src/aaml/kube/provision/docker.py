"""The same cluster from KWOK's public all-in-one image, for machines with a container engine."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from aaml.cluster.fleet import standard_nodes
from aaml.errors import UserError
from aaml.kube.provision import kubeconfig, records
from aaml.kube.provision.binaries import versions
from aaml.kube.provision.nodes import create_nodes
from aaml.kube.provision.ports import check_port
from aaml.kube.provision.records import ClusterOptions, Record
from aaml.kube.provision.waits import wait_ready, wait_schedulable
from aaml.kube.transport import Transport

_KUBERNETES = "1.36"
_PORT = 8080  # where the image serves plain HTTP; it must not be published beyond this machine


def image() -> str:
    """Return KWOK's image, of the Kubernetes that the compose stack has too."""
    pinned = versions(_KUBERNETES)
    return f"registry.k8s.io/kwok/cluster:v{pinned.kwok}-k8s.v{pinned.kubernetes}"


def run_command(name: str, options: ClusterOptions) -> list[str]:
    """Return the `docker run` of a cluster: published on loopback alone, kwokctl's own flags after the image."""
    publish = f"127.0.0.1:{options.port or ''}:{_PORT}"
    command = ["docker", "run", "--detach", "--name", container(name), "--label", "aaml.cluster=" + name]
    if options.scheduler_config is not None:
        mounted = "/etc/aaml/scheduler.yaml"
        command += ["--volume", f"{options.scheduler_config.absolute()}:{mounted}:ro"]
    command += ["--publish", publish, image(), "--disable-qps-limits"]
    if not options.scheduler:
        command += ["--disable", "kube-scheduler"]
    if options.scheduler_config is not None:
        command += ["--kube-scheduler-config", mounted]
    return command


def container(name: str) -> str:
    """Return the name of a cluster's container."""
    return f"aaml-{name}"


class DockerCluster:
    """The cluster called `name` in one container."""

    def __init__(self, name: str = "aaml") -> None:
        self.name = name
        self.directory = records.cluster_dir(name)

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the published port, mode 0600."""
        return records.kubeconfig_path(self.name)

    def api(self) -> Transport:
        """Return a connection; the image asks for no credentials."""
        return Transport(self.kubeconfig)

    def running(self) -> bool:
        """Say whether the container runs."""
        found = json.loads(_docker(["container", "ls", "--format", "json", "--no-trunc", *self._filter()]) or "null")
        return bool(found)

    def stopped(self) -> tuple[str, ...]:
        """Return ("container",) when the container does not run, else nothing."""
        return () if self.running() else ("container",)

    def _filter(self) -> list[str]:
        return ["--filter", f"name=^{container(self.name)}$"]

    def up(self, options: ClusterOptions | None = None, *, progress: bool = True) -> tuple[str, ...]:
        """Start a new container, add the nodes and wait for them; nothing stays behind when it fails.

        Returns the parts that were started again, as `KwokCluster.up` does: none, as a stopped container is replaced by
        a new one. Raises `UserError` in one line where no engine answers, or when the cluster runs already.
        """
        options = options or ClusterOptions()
        nodes = standard_nodes(options.nodes, options.shape)
        check_port(options.port)
        records.existing(self.name, "docker")
        if self.running():
            raise UserError(f"name: cluster {self.name!r} is up already; see `aaml cluster status --name {self.name}`")
        self.down()
        try:
            _docker(run_command(self.name, options)[1:])
            published = _docker(["port", container(self.name), str(_PORT)]).splitlines()[0]
            server = f"http://127.0.0.1:{published.rpartition(':')[2]}"
            kubernetes = versions(_KUBERNETES).kubernetes
            records.save(
                Record(self.name, "docker", kubernetes, server, options.nodes, options.scheduler, options.owner)
            )
            kubeconfig.write(self.kubeconfig, kubeconfig.plain(self.name, server))
            api = self.api()
            wait_ready(api, options.wait_s)
            create_nodes(api, nodes, progress=progress)
            wait_schedulable(api, options.nodes, wait_s=options.wait_s, progress=progress)
        except BaseException:
            self.down()
            raise
        return ()

    def down(self) -> None:
        """Remove the container and the cluster's files. Does nothing where there is none."""
        if _docker(["container", "ls", "--all", "--quiet", *self._filter()]):
            _docker(["rm", "--force", "--volumes", container(self.name)])
        if self.directory.exists():
            records.forget(self.name)


def _docker(arguments: Sequence[str]) -> str:
    """Run docker and return what it printed; one line says what is missing where there is no engine."""
    program = shutil.which("docker")
    if program is None:
        raise UserError("runtime: 'docker' needs the docker command on PATH; `--runtime binary` works without it")
    command = [program, *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (no shell)
    if answer.returncode != 0:
        reason = (answer.stderr.strip() or answer.stdout.strip() or "no reason given").splitlines()[-1]
        raise UserError(f"docker {arguments[0]} failed: {reason} (`--runtime binary` works without an engine)")
    return answer.stdout.strip()
