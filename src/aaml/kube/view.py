"""KubeView: a live cluster that is watched, not driven, for services that answer about it."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from aaml.cluster.filters import feasible
from aaml.cluster.objects import Pod
from aaml.cluster.state import ClusterState
from aaml.kube.binder import Binder, BindJob
from aaml.kube.cluster import KubeCluster, LiveOptions
from aaml.kube.transport import Transport

_NOBODY = "aaml-view"  # no pod names this scheduler, so the queue stays empty


class KubeView:
    """The watch cache behind an extender; every method belongs to one thread."""

    def __init__(
        self, kubeconfig: Path | str | None = None, *, context: str | None = None, server: str | None = None
    ) -> None:
        """Connect and wait for the first lists; `UserError` when there is no cluster or no permission."""
        options = LiveOptions(dry_run=True, binders=1)
        self._cluster = KubeCluster.connect(
            _NOBODY, kubeconfig=kubeconfig, context=context, server=server, options=options
        )
        self._transport = Transport(kubeconfig, context=context, server=server, connections=2)
        self._binder = Binder(self._transport, lambda _result: None, threads=0, give_up_s=10.0)

    @property
    def state(self) -> ClusterState:
        """What runs where, as of the last `refresh`."""
        return self._cluster.state

    @property
    def synced(self) -> bool:
        """True: the first lists were awaited."""
        return True

    def refresh(self) -> None:
        """Take in what happened, without waiting."""
        self._cluster.next_pod(0.0)

    def feasible(self, pod: Pod) -> npt.NDArray[np.bool_]:
        """Return [N], which rows pass kube-scheduler's filters."""
        return feasible(self.state, pod).mask

    def failures(self, pod: Pod) -> dict[str, tuple[str, bool]]:
        """Return for each infeasible node why, and whether evicting pods could help."""
        diagnosis = feasible(self.state, pod).diagnosis
        return {
            name: (", ".join(reasons), not unresolvable)
            for name, reasons, unresolvable in zip(
                self.state.names, diagnosis.by_node, diagnosis.unresolvable.tolist(), strict=True
            )
            if reasons
        }

    def bind_now(self, namespace: str, name: str, uid: str, node_name: str) -> str:
        """Bind and wait; returns "" or what went wrong."""
        pod = Pod(name, namespace, uid)
        status, message = self._binder.bind(BindJob(pod, node_name))
        return "" if status == "bound" else f"{status}: {message}"

    def close(self) -> None:
        """Stop watching."""
        self._cluster.close()
        self._binder.close(1.0)
        self._transport.close()
