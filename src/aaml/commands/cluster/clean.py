"""Delete what the workload simulator left on a cluster: deployments with their pods; waits until none is left.

It says first which cluster that is and what will go, and asks at a terminal; elsewhere it wants --yes. Only on clusters
that `aaml cluster up` made or whose nodes are all KWOK's. Nodes stay, and so does what runs in kube-* namespaces.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from aaml.commands.kinds import Flag
from aaml.errors import UserError
from aaml.settings import NotNegative, Settings


@dataclass(frozen=True)
class Args(Settings):
    """What to delete."""

    namespaces: tuple[str, ...] = ()
    """only in these namespaces"""
    all: Flag = False
    """everything that is or makes a pod there, whoever made it, not only what the simulator did"""
    dry_run: Flag = False
    """say what would be deleted, and delete nothing"""
    yes: Flag = False
    """do not ask"""
    real: Flag = False
    """on a cluster with nodes that KWOK does not play too; there what the simulator made is the most that goes"""
    wait_s: NotNegative = 300.0
    """how long the pods may take to go"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""


def run(args: Args) -> int:
    """Say what goes, ask, delete, and wait."""
    from contextlib import closing

    from aaml.errors import bad_value
    from aaml.kube import rights
    from aaml.kube.clean import OURS, delete, workload
    from aaml.kube.place import Place
    from aaml.kube.transport import Transport

    with closing(Transport(args.kubeconfig)) as api:
        rights.check(api, rights.CLEAN)
        place = Place.look(api, args.kubeconfig)
        place.check("real", confirmed=args.real or args.dry_run)
        if args.all and not place.ours:
            raise bad_value("all", True, f"what the simulator made, without --all: {place}")
        label = "" if args.all else OURS
        found, everything = workload(api, args.namespaces, label), workload(api, args.namespaces)
        print(place)
        if others := everything.pods - found.pods:
            print(f"{others} pods stay, which the simulator did not make (--all takes them too)")
        if not found.objects:
            print("nothing to delete")
            return 0
        whose = "all that is or makes a pod" if args.all else f"what the workload simulator made ({OURS})"
        print(f"{'would be' if args.dry_run else 'will be'} deleted, {whose}:\n{found}")
        if args.dry_run:
            return 0
        if not ask("delete?", yes=args.yes):
            print("nothing deleted")
            return 1
        delete(api, found.counts, label, at_once=place.ours, timeout_s=args.wait_s, wait=time.sleep)
    print(f"{found.pods} pods deleted, none left")
    return 0


def ask(question: str, *, yes: bool) -> bool:
    """Return whether a person agrees: asked at a terminal, taken for granted with `yes`.

    Raises `UserError` without a terminal and without `yes`.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError("yes: is missing; it is only asked for at a terminal (--dry-run says what would be done)")
    return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}
