"""A plugin at work on this machine: where its program comes from, and the command line of its process."""

import shutil
import ssl
import subprocess
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from aaml.files import write_text
from aaml.folders import cache_dir, private_dir
from aaml.plugin.build import build
from aaml.plugin.cache import prune, used
from aaml.plugin.configuration import DEFAULT, arguments, read
from aaml.plugin.export import ExportOptions, export
from aaml.plugin.module import PREFIX, PluginModule, module_at
from aaml.yaml_text import yaml_text

_END_S = 30.0
_DIGITS = 12  # of a digest, in the name of a folder


def unverified() -> ssl.SSLContext:
    """Return a TLS context for a plugin's process on loopback, which makes itself a certificate at its start."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def fetch(port: int, path: str) -> str:
    """Return what a plugin's process answers at a path: /metrics, /readyz. Raises `OSError` where it does not."""
    with urllib.request.urlopen(f"https://127.0.0.1:{port}{path}", timeout=5.0, context=unverified()) as reply:
        return str(reply.read().decode())


def plugin_of(scheduler: str, kubernetes: str = "") -> PluginModule:
    """Return the plugin that a scheduler's name stands for: a folder, or a model (with `plugin:` before it or not).

    A model is exported into the cache, once, for this version of Kubernetes (`aaml.plugin.export`). Raises `UserError`
    for what is neither, and for a policy that cannot be a plugin.
    """
    spec = scheduler.removeprefix(PREFIX)
    folder = Path(spec)
    if folder.is_dir() and not (folder / "model").is_dir():  # the folder of a training stands for its model
        return module_at(folder)
    exported = private_dir(cache_dir() / "plugin" / "exported")
    with tempfile.TemporaryDirectory(dir=exported) as aside:
        module = export(spec, Path(aside) / "plugin", ExportOptions(kubernetes=kubernetes))
        target = exported / module.digest()[:_DIGITS]
        if not target.exists() or PluginModule(target).digest() != module.digest():
            shutil.rmtree(target, ignore_errors=True)
            module.folder.rename(target)
            prune([each for each in exported.iterdir() if len(each.name) == _DIGITS])
    used(target)
    return module_at(target)


def write_configuration(
    module: PluginModule, kubeconfig: Path, path: Path, *, scheduler_name: str = DEFAULT, lease: str = ""
) -> Path:
    """Write a plugin's configuration for a process of this machine, and return where it is.

    What the folder's own configuration says stays, but for the kubeconfig, the cap on requests, the place of the
    weights (the folder's, so that new ones there are taken), the first profile's name and the leader election: with a
    `lease`, of that name in kube-system, replicas elect a leader, fast.
    """
    changed = read(module.configuration)
    changed["clientConnection"] = {
        **changed.get("clientConnection", {}), "kubeconfig": str(kubeconfig), "qps": 5000, "burst": 10000,
    }  # fmt: skip
    changed["leaderElection"] = {"leaderElect": False}
    if lease:
        changed["leaderElection"] = {
            "leaderElect": True, "resourceNamespace": "kube-system", "resourceName": lease,
            "leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms",
        }  # fmt: skip
    changed["profiles"][0]["schedulerName"] = scheduler_name
    for profile in changed["profiles"]:
        arguments(profile)["weightsFile"] = str(module.weights)
    write_text(path, yaml_text(changed))
    return path


def command(module: PluginModule, configuration: Path, *, port: int = 0, flags: Sequence[str] = ()) -> list[str]:
    """Return the command line of a plugin's process, compiling its program where the cache has none.

    It answers /livez, /readyz and /metrics over HTTPS on `port` of 127.0.0.1, nothing with 0.
    """
    serving = (
        "--bind-address=127.0.0.1", f"--secure-port={port}",
        "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics",
    )  # fmt: skip
    return [str(build(module)), f"--config={configuration}", *serving, *flags]


def end(process: "subprocess.Popen[bytes]", within_s: float = _END_S) -> int:
    """End a scheduler's process with SIGTERM, with SIGKILL where it does not end in time; return its exit status."""
    process.terminate()
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
