"""Build the programs into the cache, without starting anything (about 11 minutes on two cores, once)."""

from dataclasses import dataclass

from aaml.kube.provision import ensure_programs
from aaml.kube.provision.binaries import versions
from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml cluster build`."""

    kubernetes: str = ""
    """version of Kubernetes, 1.36 for instance; without it the newest"""
    autoscaler: bool = False
    """Karpenter too (about 3 minutes of one core more)"""
    queue: bool = False
    """Kueue too (about 20 minutes of one core more)"""


def run(args: Args) -> int:
    """Build them and say where they are."""
    pinned = versions(args.kubernetes)
    print(f"Kubernetes {pinned.kubernetes} and KWOK {pinned.kwok} are in {ensure_programs(args.kubernetes)}")
    if args.autoscaler:
        from aaml.karpenter.build import build, version

        print(f"Karpenter {version()} is in {build().parent}")
    if args.queue:
        from aaml.kueue import build as kueue

        print(f"Kueue {kueue.version()} is in {kueue.build(args.kubernetes).parent}")
    return 0
