"""A plugin's process, from the start of a block to its end."""

from pathlib import Path

from aaml.kube.provision.ports import free_port
from aaml.plugin.configuration import DEFAULT
from aaml.plugin.module import PluginModule
from aaml.plugin.process import SchedulerProcess
from aaml.plugin.run import command, fetch, write_configuration


class PluginProcess(SchedulerProcess):
    """A plugin at work from the start of a `with` block to its end; its log and configuration are in `folder`."""

    def __init__(self, module: PluginModule, kubeconfig: Path, folder: Path, *, scheduler_name: str = DEFAULT) -> None:
        self.module, self.port = module, free_port()
        file = write_configuration(module, kubeconfig, folder / "kube-scheduler.yaml", scheduler_name=scheduler_name)
        line = command(module, file, port=self.port)
        super().__init__(str(module.folder), line, folder / "kube-scheduler.log", ready_s=120.0)

    def ready(self) -> bool:
        """Whether it says so."""
        try:
            return self.ask("/readyz") == "ok"
        except OSError:
            return False

    def ask(self, path: str) -> str:
        """Return what the process answers at a path."""
        return fetch(self.port, path)
