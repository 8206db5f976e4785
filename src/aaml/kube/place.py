"""The cluster that a command is about to write to, and whether real workloads run there."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from aaml.errors import UserError
from aaml.extras import lazily
from aaml.kube.objects import wire
from aaml.kube.provision import cluster_of, records
from aaml.kube.transport import Transport

if TYPE_CHECKING:
    import kubernetes
else:  # an extra
    kubernetes = lazily("kubernetes")

KWOK_NODE = "kwok.x-k8s.io/node"
"""The annotation by which KWOK knows the nodes whose kubelet it plays."""
_NAMED = 3  # nodes in a message


@dataclass(frozen=True)
class Place:
    """A cluster: the context of the kubeconfig that names it, its server, its nodes, and the real ones of them.

    `made_here` says whether it is one that `aaml cluster up` runs on this machine.
    """

    context: str
    server: str
    names: frozenset[str]
    real: tuple[str, ...]
    made_here: bool

    @classmethod
    def look(cls, transport: Transport, kubeconfig: Path | str | None = None) -> "Place":
        """Look at the cluster of a transport that was made of `kubeconfig`; raises `UserError` where it cannot."""
        with transport.explained():
            answer = transport.request("GET", "/api/v1/nodes")
        nodes = msgspec.json.decode(answer, type=wire.ListOf[wire.Named]).items or ()
        real = tuple(each.metadata.name for each in nodes if KWOK_NODE not in (each.metadata.annotations or {}))
        names = frozenset(each.metadata.name for each in nodes)
        return cls(context_of(kubeconfig), transport.server, names, real, _made_here(transport.server))

    @property
    def ours(self) -> bool:
        """Whether nothing real runs there: AAML made it, or KWOK plays all of its nodes."""
        return self.made_here or not self.real

    def check(self, flag: str, *, confirmed: bool) -> None:
        """Raise `UserError` for a cluster that somebody may work on, unless a person has `confirmed` it by `flag`."""
        if not (self.ours or confirmed):
            raise UserError(
                f"kubeconfig: {self}; expected a cluster of `aaml cluster up` or of KWOK nodes, or --{flag}"
            )

    def __str__(self) -> str:
        """Return it in words: context, server and nodes."""
        more = ", ..." if len(self.real) > _NAMED else ""
        real = (
            f"{len(self.real)} of them real ({', '.join(self.real[:_NAMED])}{more})"
            if self.real
            else "none of them real"
        )
        return f"{self.context} at {self.server}, {len(self.names)} nodes, {real}"


def _made_here(server: str) -> bool:
    """Say whether a cluster of this machine has that address and runs: one that is gone may have left its port."""
    for name in records.names():
        try:
            record = records.load(name)
            if record.server == server:
                return cluster_of(name, record.runtime).running()
        except UserError:
            continue  # its record is damaged, or no container engine answers
    return False


def context_of(kubeconfig: Path | str | None) -> str:
    """Return "context NAME" of a kubeconfig's current context; in a pod "the cluster of this pod"."""
    config: Any = kubernetes.config  # untyped
    try:
        _, current = config.list_kube_config_contexts(None if kubeconfig is None else str(kubeconfig))
    except config.ConfigException:
        return "the cluster of this pod"
    return f"context {current['name']}"
