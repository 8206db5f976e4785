"""A plugin's folder: the Go module that `aaml export` writes, and a scheduler's name that stands for one."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from aaml.errors import UserError, bad_value
from aaml.plugin.source import EMBEDDED

CONFIGURATION, WEIGHTS = "kube-scheduler-configuration.yaml", "weights.json"
_PINNED = re.compile(r"^\s*(?:require )?k8s\.io/kubernetes v(\d+\.\d+\.\d+)", re.MULTILINE)
PREFIX = "plugin:"
"""The prefix of a model's name in `--scheduler`: the model as a plugin, not as a scheduler of its own."""


@dataclass(frozen=True)
class PluginModule:
    """The folder, whose go.mod and configuration are there."""

    folder: Path

    @property
    def configuration(self) -> Path:
        """The KubeSchedulerConfiguration, as it is deployed."""
        return self.folder / CONFIGURATION

    @property
    def weights(self) -> Path:
        """The policy, for a ConfigMap or a running scheduler of this machine: it may be replaced at any time."""
        return self.folder / WEIGHTS

    @property
    def embedded(self) -> Path:
        """The policy that is compiled in, which decides where there is no such file."""
        return self.folder / EMBEDDED

    @property
    def kubernetes(self) -> str:
        """The version of Kubernetes that it is pinned to. Raises `UserError` where its go.mod names none."""
        file = self.folder / "go.mod"
        pinned = _PINNED.search(file.read_text(encoding="utf-8"))
        if pinned is None:
            raise UserError(f"{file}: no requirement of k8s.io/kubernetes")
        return pinned[1]

    def compiled(self) -> list[Path]:
        """Return the files that the program is made of, in a stable order."""
        found = [*self.folder.rglob("*.go"), *self.folder.rglob("*.s"), *self.embedded.parent.glob("*")]
        return sorted([*found, *(self.folder / name for name in ("go.mod", "go.sum"))])

    def digest(self) -> str:
        """Return a hash of these files and of where they are in the folder."""
        digest = hashlib.sha256()
        for path in self.compiled():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(self.folder)} {len(content)}\n".encode() + content)
        return digest.hexdigest()


def is_module(folder: Path) -> bool:
    """Whether a folder is one that `aaml export` wrote."""
    return (folder / "go.mod").is_file() and (folder / CONFIGURATION).is_file()


def is_plugin(scheduler: str) -> bool:
    """Whether the name of a scheduler stands for a plugin: its folder, or `plugin:` and a model."""
    return scheduler.startswith(PREFIX) or is_module(Path(scheduler))


def module_at(folder: Path) -> PluginModule:
    """Return the plugin in a folder. Raises `UserError` where it holds none."""
    if not is_module(folder):
        raise bad_value("scheduler", str(folder), "a folder that `aaml export` wrote, or a model")
    return PluginModule(folder.absolute())
