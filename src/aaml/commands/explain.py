"""Say why a pod went to its node: which filter refused which nodes, the score of each node, and what it is made of.

The pod is one of a live cluster (as it is now), or with `--run` one of a run: a folder of `aaml evaluate` or `aaml
train`, played again up to the decision, or the log of `aaml schedule ... --explain`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aaml.commands.kinds import Flag
from aaml.settings import Count, Natural, Settings

_OF_A_RUN, _OF_A_CLUSTER = ("task", "seed", "nodes"), ("expected_pods", "kubeconfig")
_WITHOUT_USE = {
    "a live pod": _OF_A_RUN,
    "the log of a scheduler": ("policy", *_OF_A_RUN, *_OF_A_CLUSTER),
    "a decision of a run": _OF_A_CLUSTER,
}


@dataclass(frozen=True)
class Args(Settings):
    """`aaml explain`."""

    pod: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="POD")]
    """NAME or NAMESPACE/NAME, or with --run the number of a decision, from 0"""
    run: Path | None = None
    """a folder of `aaml evaluate` or `aaml train`, or a log (logs/*.explained.jsonl); without it the live cluster"""
    policy: str = ""
    """whose decision of an evaluation, or whose opinion of a live pod (a name, FILE.py:NAME or a model file); the first
    one of the results, and kube-scheduler, when empty"""
    task: str = ""
    """task of the run; the first one of the results when empty"""
    seed: Natural | None = None
    """seed of the run; the first one of the results when not given"""
    nodes: Count | None = None
    """cluster size of the run; the first one of the results when not given"""
    expected_pods: str | None = None
    """for a live pod: pods like those to come, by which policies such as fgd weigh fragments of GPUs (an openb trace by
    name, a pod list (.csv), or YAML with pods and workloads)"""
    kubeconfig: Path | None = None
    """of the live cluster; without it $KUBECONFIG and ~/.kube/config"""
    json: Flag = False
    """print every number of every node as JSON"""


def run(args: Args) -> int:
    """Print the explanation."""
    import json

    from aaml.errors import UserError
    from aaml.kube.objects.manifests import pods_like
    from aaml.lab.runs import played
    from aaml.live.explaining import live, logged

    which = int(args.pod) if args.pod.isdecimal() else args.pod
    of_log = args.run is not None and args.run.suffix == ".jsonl"
    what = "a live pod" if args.run is None else "the log of a scheduler" if of_log else "a decision of a run"
    for name in _WITHOUT_USE[what]:
        if getattr(args, name) != getattr(Args, name):
            raise UserError(f"{name}: is of no use for {what}; leave it out")
    if args.run is None:
        expected = pods_like(args.expected_pods) if args.expected_pods else ()
        explained = live(args.pod, args.policy or "kube-scheduler", kubeconfig=args.kubeconfig, expected=expected)
    elif of_log:
        explained = logged(args.run, which)
    else:
        explained = played(args.run, which, args.policy, args.task, args.seed, args.nodes)
    print(json.dumps(explained.to_dict()) if args.json else explained)
    return 0
