"""A plugin's process, from the start of a block to its end."""

import subprocess
import time
from pathlib import Path
from typing import Self

from aaml.errors import UserError
from aaml.kube.provision.ports import free_port
from aaml.plugin.configuration import DEFAULT
from aaml.plugin.module import PluginModule
from aaml.plugin.run import command, end, fetch, write_configuration

_READY_S = 120.0


class PluginProcess:
    """A plugin at work from the start of a `with` block to its end; its log and configuration are in `folder`."""

    def __init__(
        self,
        module: PluginModule,
        kubeconfig: Path,
        folder: Path,
        *,
        scheduler_name: str = DEFAULT,
    ) -> None:
        self.module, self.port = module, free_port()
        self.log = folder / "kube-scheduler.log"
        file = write_configuration(module, kubeconfig, folder / "kube-scheduler.yaml", scheduler_name=scheduler_name)
        self._line = command(module, file, port=self.port)

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
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
