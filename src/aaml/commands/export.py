"""Write a policy as a plugin of kube-scheduler: a Go module with its weights, configuration, manifests and Dockerfile.

kube-scheduler goes on to filter, preempt, bind and write events; the policy says which of the feasible nodes a pod goes
to. An output that ends in .json is the weights alone, which a running plugin takes without a restart.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from msgspec import Meta

from aaml.commands.kinds import Flag
from aaml.settings import Settings

_OF_A_FOLDER = (
    "kubernetes", "scheduler_name", "weight", "alone", "percentage_of_nodes_to_score", "image", "learn", "overwrite",
)  # fmt: skip


@dataclass(frozen=True)
class Args(Settings):
    """What is written, and how much the policy counts."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """a model file, the name of one that ships, a formula, kube-scheduler:FILE.yaml, or a policy by name"""
    out: Path = Path("plugin")
    """folder for the plugin, new, empty or of an earlier export; NAME.json writes the weights alone"""
    overwrite: Flag = False
    """replace also files that you changed since the earlier export"""
    build: Flag = False
    """compile it too, into the cache: seconds after `aaml cluster build`, minutes without"""
    kubernetes: str = ""
    """version of Kubernetes; without it the one that is built and tested"""
    scheduler_name: str = "aaml-kube-scheduler"
    """what pods name in schedulerName; default-scheduler for the place of the cluster's own"""
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """what a rank of the policy's counts beside the default score plugins: from 1,501 on it decides, and they where it
    skips itself; below it is a voice among others"""
    alone: Flag = False
    """ask the default score plugins only where the policy cannot decide, not for every pod: faster"""
    percentage_of_nodes_to_score: Annotated[int, Meta(ge=0, le=100)] | None = None
    """share of the feasible nodes that are scored for a pod; 0 for as many as kube-scheduler takes by itself; without
    it all, or what kube-scheduler:FILE.yaml says"""
    image: str = ""
    """where the container image will be: REGISTRY/NAME:TAG"""
    learn: Annotated[Path | None, tyro.conf.arg(metavar="SOCKET")] = None
    """Unix socket at which `aaml learn` listens: the plugin tells it each decision"""
    expected_pods: str | None = None
    """pods like those to come, by which policies such as fgd weigh fragments of GPUs: an openb trace by name, a pod
    list (.csv), or YAML with pods and workloads"""


def run(args: Args) -> int:
    """Write the plugin, compile it where that is asked for, and say what to do with it."""
    from aaml.errors import UserError
    from aaml.kube.objects.manifests import pods_like
    from aaml.plugin.build import build
    from aaml.plugin.configuration import ProfileOptions
    from aaml.plugin.export import SUFFIX, ExportOptions, export, export_weights

    expected = pods_like(args.expected_pods) if args.expected_pods else ()
    if args.out.suffix == SUFFIX:
        if args.build:
            raise UserError(f"build: a file of weights, {args.out}, is not compiled; give --out a folder")
        for name in _OF_A_FOLDER:
            if getattr(args, name) != getattr(Args, name):
                raise UserError(f"{name}: a file of weights, {args.out}, does not say that; give --out a folder")
        export_weights(args.model, args.out, expected)
        print(f"wrote {args.out}; a plugin that reads this file decides by it within seconds")
        return 0
    profile = ProfileOptions(
        args.scheduler_name, args.weight, args.alone, args.percentage_of_nodes_to_score,
        "" if args.learn is None else str(args.learn.absolute()),
    )  # fmt: skip
    module = export(args.model, args.out, ExportOptions(profile, args.kubernetes, args.image, expected, args.overwrite))
    print(f"wrote {args.out}: {args.out / 'README.md'} has the three commands that take it to a cluster")
    if args.build:
        print(f"compiled {build(module, progress=sys.stderr.isatty())}")
    print(f"to try it on this machine: aaml cluster up --scheduler {args.out}")
    return 0
