"""Threads of numerical libraries."""

import os


def one_thread() -> None:
    """Let libraries that are loaded from now on use one thread each, unless the environment says otherwise.

    The products of a decision are too small to share out: threads that wait for such work take the cores from the
    cluster (behind kube-scheduler at 1,000 nodes a GNN took 10 ms of CPU a pod with two threads, 3 ms with one).
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
