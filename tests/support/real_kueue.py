"""The real Kueue of a test: whether it is to be had, and a cluster with it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aaml.kube.provision import ClusterOptions, KwokCluster, Owner, binaries, end_orphans
from aaml.kueue import build
from aaml.kueue.process import start

ADMISSIONS = int(os.environ.get("AAML_KUEUE_ADMISSIONS", "0"))
needs_kueue = pytest.mark.skipif(
    not ADMISSIONS, reason="compiling Kueue takes twenty minutes: `make differential`, or set AAML_KUEUE_ADMISSIONS=100"
)


def check_built() -> None:
    """Fail with the command that builds what is missing."""
    if not (binaries.built() and build.built()):
        pytest.fail("Kueue is not built: run `aaml cluster build --queue` (about 20 minutes of one core, once)")


@contextmanager
def kueue_cluster(name: str, options: ClusterOptions, **features: bool) -> Iterator[KwokCluster]:
    """Start a cluster of a test process with Kueue, and take it down afterwards."""
    check_built()
    end_orphans()
    cluster = KwokCluster(name)
    try:
        cluster.up(options, progress=False)
        start(cluster, features=features)
        yield cluster
    finally:
        cluster.down()


def of_this_process(**options: object) -> ClusterOptions:
    """Return the options of a cluster that ends with the test process."""
    return ClusterOptions(owner=Owner.this_process(), **options)  # type: ignore[arg-type]
