"""KubeView: a live cluster that is watched, not driven, for services that answer about it."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aaml.cluster.filters import feasible
from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.kube import rights
from aaml.kube.binder import Binder, BindJob
from aaml.kube.cluster import KubeCluster, LiveOptions
from aaml.kube.transport import Transport

_NOBODY = "aaml-view"  # no pod names this scheduler, so the queue stays empty


@dataclass(frozen=True)
class _Looking(LiveOptions):
    """It never decides on a pod: which volumes one would get is kube-scheduler's affair."""

    dry_run: bool = True
    binds: bool = False

    @property
    def rights(self) -> rights.Rights:
        return (*rights.FILTER, *(rights.BIND if self.binds else ()))

    @property
    def granted_by(self) -> str:
        return "extender-bind" if self.binds else "extender"


class KubeView:
    """Nodes and pods of a live cluster, kept current by `refresh`, which has to be called now and then.

    One that `binds` needs the rights for it. All methods but `bind_now` have to be called from one thread.
    """

    def __init__(
        self,
        kubeconfig: Path | str | None = None,
        *,
        server: str | None = None,
        binds: bool = False,
    ) -> None:
        """Connect, wait for the first lists of nodes and pods, and take them in.

        Raises `UserError` when there is no cluster, or no permission to read it.
        """
        self._cluster = KubeCluster.connect(
            _NOBODY, kubeconfig=kubeconfig, server=server, options=_Looking(binds=binds)
        )
        self._transport = Transport(kubeconfig, server=server, connections=2)
        self._binder = Binder(self._transport, lambda _result: None, at_once=1, give_up_s=10.0)
        self.refresh()

    @property
    def state(self) -> ClusterState:
        """The nodes and what runs on them, as of the last `refresh`."""
        return self._cluster.state

    def refresh(self) -> None:
        """Take in what has happened since the last call, without waiting for more.

        Raises `ThreadError` once a thread that watches has ended.
        """
        self._cluster.next_pod(0.0)

    def feasible(self, pod: Pod) -> npt.NDArray[np.bool_]:
        """Return bool [N], the nodes that pass kube-scheduler's filters for the pod, without its resource claims.

        kube-scheduler, which sends the request, allocates their devices itself.
        """
        return feasible(self.state, replace(pod, resource_claims=())).mask

    def failures(self, pod: Pod) -> dict[str, tuple[str, bool]]:
        """Return for each node that does not pass: the reason, and whether evicting pods could make it pass."""
        diagnosis = feasible(self.state, replace(pod, resource_claims=())).diagnosis
        return {
            name: (", ".join(reasons), not unresolvable)
            for name, reasons, unresolvable in zip(
                self.state.names, diagnosis.by_node, diagnosis.unresolvable.tolist(), strict=True
            )
            if reasons
        }

    def bind_now(self, namespace: str, name: str, uid: str, node_name: str) -> str:
        """Bind a pod and wait for the answer; returns "" when it is bound, or else what went wrong.

        Any thread may call it.
        """
        pod = Pod(name, namespace, uid)
        status, message = self._binder.bind(BindJob(pod, node_name))
        return "" if status == "bound" else f"{status}: {message}"

    def close(self) -> None:
        """Stop watching."""
        self._cluster.close()
        self._binder.close(1.0)
        self._transport.close()
