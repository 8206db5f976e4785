"""The in-process cluster that schedulers and workloads in threads share, and a policy at work on it."""

from collections.abc import Iterator
from contextlib import contextmanager

from aaml.cluster.fleet import standard_nodes
from aaml.live.scheduler import Scheduler
from aaml.policies.registry import make_policy
from aaml.sim.threaded import ThreadedCluster
from aaml.threads import Background


def in_process_cluster(nodes: int = 10) -> ThreadedCluster:
    """Return an empty in-process cluster of standard nodes, for a scheduler and a simulator in threads."""
    return ThreadedCluster(standard_nodes(nodes))


@contextmanager
def background_policy(cluster: ThreadedCluster, policy: str) -> Iterator[None]:
    """Schedule on an in-process cluster by a named policy, in a thread, until the block ends.

    What ended the scheduling before that is raised then.
    """
    scheduler = Scheduler(cluster, make_policy(policy))
    with Background(scheduler.run, f"policy-{policy}"):
        try:
            yield
        finally:
            scheduler.stop()
