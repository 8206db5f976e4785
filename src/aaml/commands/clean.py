"""Delete the workload of a cluster: deployments, jobs, pods and what else makes pods; waits until no pod is left.

Nodes stay, and so does what runs in Kubernetes' own namespaces (kube-*).
"""

from dataclasses import dataclass
from pathlib import Path

from aaml.settings import NotNegative, Settings


@dataclass(frozen=True)
class Args(Settings):
    """What to delete."""

    namespace: str = ""
    """only this namespace"""
    wait_s: NotNegative = 300.0
    """how long the pods may take to go"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""


def run(args: Args) -> int:
    """Delete, wait and say how many pods there were."""
    from aaml.kube.submit import clean
    from aaml.kube.watcher import ClusterWatch

    watch = ClusterWatch.connect(args.kubeconfig)
    try:
        count = clean(watch.transport, watch, namespace=args.namespace, timeout_s=args.wait_s)
    finally:
        watch.close()
    print(f"{count} pods deleted, none left")
    return 0
