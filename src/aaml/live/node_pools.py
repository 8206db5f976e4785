"""NodePools for which Karpenter would provision nodes for the same pods as `aaml autoscale`."""

from collections.abc import Iterable

from aaml.cluster.quantity import amount
from aaml.errors import UserError
from aaml.kube.objects import wire


def active(pools: Iterable[wire.NodePoolObject]) -> list[str]:
    """Return the names of the pools for which Karpenter may provision when pods wait.

    It does not for one that is being deleted, is not ready, keeps a fixed number of nodes, or has used up a limit.
    """
    return sorted(each.metadata.name for each in pools if _provisions(each))


def _provisions(pool: wire.NodePoolObject) -> bool:
    if pool.metadata.deletion_timestamp is not None or pool.spec.replicas is not None:
        return False
    if any(each.type == "Ready" and each.status == "False" for each in pool.status.conditions or ()):
        return False
    return not any(_used_up(pool, resource, limit) for resource, limit in (pool.spec.limits or {}).items())


def _used_up(pool: wire.NodePoolObject, resource: str, limit: str | float) -> bool:
    used = (pool.status.resources or {}).get(resource, 0)
    try:
        return amount(resource, used) >= amount(resource, limit)
    except UserError:  # Karpenter reads it otherwise, or not at all
        return False
