"""The schedulers that are compared, each as a process of its own: the real kube-scheduler, a plugin in it, AAML's."""

import sys
from collections.abc import Mapping
from pathlib import Path

from aaml.evaluation.policies import in_any_folder, load_policy
from aaml.kube.provision.binaries import programs_dir
from aaml.learning.config import LIVE
from aaml.perf.cluster import PerfCluster, gates_text
from aaml.plugin.module import is_plugin
from aaml.plugin.process import SchedulerProcess
from aaml.plugin.run import command as plugin_command
from aaml.plugin.run import plugin_of, write_configuration
from aaml.yaml_text import yaml_text

REAL = "kube-scheduler"
"""The real kube-scheduler, uncapped."""
_PROFILE = "default-scheduler"
_HINTS, _BATCHING = "SchedulerQueueingHints", "OpportunisticBatching"
_BEFORE_HINTS = "--emulated-version=kube=1.33"  # the last version in which they could be turned off
_PROBE, _PODS = "perf-probe", "/api/v1/namespaces/default/pods"


def check_scheduler(scheduler: str) -> None:
    """Raise `UserError` for what is no scheduler, before anything is started."""
    if is_plugin(scheduler):
        plugin_of(scheduler)
    elif scheduler != REAL and scheduler not in LIVE:
        load_policy(scheduler)


def command(scheduler: str, kubeconfig: Path, gates: Mapping[str, bool], folder: Path) -> list[str]:
    """Return the command line of a scheduler; kube-scheduler's has the feature gates, as its benchmark sets them."""
    file = folder / "kube-scheduler.yaml"
    emulated = [_BEFORE_HINTS] if gates.get(_HINTS) is False else []
    gates = gates if emulated else {_BATCHING: False, **gates}
    flags = [*emulated, f"--feature-gates={gates_text(gates)}"]
    if is_plugin(scheduler):
        module = plugin_of(scheduler)
        return plugin_command(module, write_configuration(module, kubeconfig, file), flags=flags)
    if scheduler != REAL:
        scheduler = in_any_folder(scheduler)  # its process works in another one
        kind = [scheduler] if scheduler in LIVE else ["policy", "--policy", scheduler]
        this = [sys.executable, "-m", "aaml", "schedule", *kind, "--scheduler-name", _PROFILE]
        return [*this, "--kubeconfig", str(kubeconfig), "--no-records"]
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 5000},
    }
    file.write_text(yaml_text(config), encoding="utf-8")
    return [str(programs_dir() / REAL), f"--config={file}", "--secure-port=0", *flags]


class ProbedScheduler(SchedulerProcess):
    """A scheduler's process on a cluster, ready once it has placed a pod; its log is `folder`/`scheduler`.log."""

    def __init__(self, scheduler: str, cluster: PerfCluster, line: list[str], folder: Path) -> None:
        super().__init__(scheduler, line, folder / f"{Path(scheduler).name}.log", folder=folder)
        self._cluster = cluster

    def _wait_ready(self) -> None:
        """Wait until it has placed a pod, which is taken away again."""
        offered = {"cpu": "1", "memory": "1Gi", "pods": "1"}
        spec = {"containers": [{"name": "pause", "image": "pause"}]}
        self._cluster.create("/api/v1/nodes", {"metadata": {"name": _PROBE}, "status": {"capacity": offered}})
        self._cluster.create(_PODS, {"metadata": {"name": _PROBE}, "spec": spec})
        super()._wait_ready()
        self._cluster.delete(f"{_PODS}/{_PROBE}", gracePeriodSeconds="0")
        self._cluster.delete(f"/api/v1/nodes/{_PROBE}")

    def ready(self) -> bool:
        """Whether it has placed a pod."""
        return any(each["spec"].get("nodeName") for each in self._cluster.get(_PODS))
