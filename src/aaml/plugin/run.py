"""A plugin at work on this machine: where its program comes from, and the command line of its process."""

import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import yaml

from aaml.errors import UserError
from aaml.files import write_text
from aaml.folders import cache_dir, private_dir
from aaml.kube.provision.ports import free_port
from aaml.plugin.build import build
from aaml.plugin.cache import prune, used
from aaml.plugin.configuration import DEFAULT, on_this_machine, read
from aaml.plugin.export import export
from aaml.plugin.module import PREFIX, PluginModule, module_at

_READY_S, _END_S = 120.0, 30.0
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


def plugin_of(scheduler: str) -> PluginModule:
    """Return the plugin that a scheduler's name stands for: a folder, or a model (with `plugin:` before it or not).

    A model is exported into the cache, once. Raises `UserError` for what is neither, and for a policy that cannot be a
    plugin.
    """
    spec = scheduler.removeprefix(PREFIX)
    folder = Path(spec)
    if folder.is_dir() and not (folder / "model").is_dir():  # the folder of a training stands for its model
        return module_at(folder)
    exported = private_dir(cache_dir() / "plugin" / "exported")
    with tempfile.TemporaryDirectory(dir=exported) as aside:
        module = export(spec, Path(aside) / "plugin")
        target = exported / module.digest()[:_DIGITS]
        if not target.exists() or PluginModule(target).digest() != module.digest():
            shutil.rmtree(target, ignore_errors=True)
            module.folder.rename(target)
            prune([each for each in exported.iterdir() if len(each.name) == _DIGITS])
    used(target)
    return module_at(target)


def write_configuration(
    module: PluginModule,
    kubeconfig: Path,
    path: Path,
    *,
    scheduler_name: str = DEFAULT,
    lease: str = "",
    nodes_percentage: int | None = None,
) -> Path:
    """Write a plugin's configuration for a process of this machine, and return where it is.

    What the folder's own configuration says stays, but for the kubeconfig, the place of the weights (the folder's, so
    that new ones there are taken), the first profile's name and the leader election, which is on with a `lease`.
    """
    changed = on_this_machine(
        read(module.configuration), kubeconfig, module.weights,
        scheduler_name=scheduler_name, lease=lease, nodes_percentage=nodes_percentage,
    )  # fmt: skip
    write_text(path, yaml.safe_dump(changed, sort_keys=False))
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


class PluginProcess:
    """A plugin at work from the start of a `with` block to its end; its log and configuration are in `folder`."""

    def __init__(
        self,
        module: PluginModule,
        kubeconfig: Path,
        folder: Path,
        *,
        scheduler_name: str = DEFAULT,
        nodes_percentage: int | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self.module, self.port = module, free_port()
        self.log = folder / "kube-scheduler.log"
        file = write_configuration(
            module, kubeconfig, folder / "kube-scheduler.yaml",
            scheduler_name=scheduler_name, nodes_percentage=nodes_percentage,
        )  # fmt: skip
        self._line = command(module, file, port=self.port, flags=flags)

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603  (our own command line, no shell)
                self._line, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)

    def ask(self, path: str) -> str:
        """Return what the process answers at a path."""
        return fetch(self.port, path)

    def output(self) -> str:
        """Return what it has written so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + _READY_S
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                last = " ".join(self.output().strip().splitlines()[-1:])
                raise UserError(f"scheduler: {self.module.folder} does not work: {last[-300:]}")
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            return self.ask("/readyz") == "ok"
        except OSError:
            return False
