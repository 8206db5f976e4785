"""Place a workload from YAML on a cluster from YAML, in the simulator; the placements come out as YAML and a table.

Give a `simon` configuration (-f) and a scheduler configuration (-s), or the cluster, the apps and a policy by name.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aaml.outputs import writes
from aaml.settings import Natural, Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml apply`."""

    config: Annotated[Path | None, tyro.conf.arg(aliases=["-f"])] = None
    """`simon` configuration: cluster folder, app list, tuning."""
    scheduler_config: Annotated[Path | None, tyro.conf.arg(aliases=["-s"])] = None
    """KubeSchedulerConfiguration that is the policy, as kube-scheduler:FILE is, or with score plugins of `simon`."""
    cluster: tuple[Path, ...] = ()
    """Files or folders with the cluster's objects (instead of -f)."""
    apps: tuple[Path, ...] = ()
    """Files or folders with more workloads."""
    policy: str | None = None
    """Policy by name, FILE.py:NAME, or a model file; kube-scheduler when neither it nor -s is given."""
    extended_resources: tuple[str, ...] = ()
    """Taken for compatibility: extended resources always count."""
    out: Path = Path("runs/apply")
    """Folder for placements.yaml and nodes.csv."""
    limit: Natural = 30
    """Nodes shown in the table."""


@writes(folder="out")
def run(args: Args) -> int:
    """Place everything and report."""
    from aaml.errors import UserError
    from aaml.evaluation.apply import apply, order, weighted_policy, write
    from aaml.evaluation.policies import load_policy
    from aaml.evaluation.scheduler_config import read_scheduler_config
    from aaml.evaluation.tables import text_table
    from aaml.kube.objects.manifests import SimonConfig, load, read_simon

    if (args.config is None) == (not args.cluster):
        raise UserError("config, cluster: expected one of -f CONFIG and --cluster PATH")
    if args.scheduler_config is not None and args.policy is not None:
        raise UserError("scheduler-config, policy: expected only one of them")
    setup = read_simon(args.config) if args.config else SimonConfig(args.cluster[0])
    read = load([setup.cluster, *args.cluster[1:], *setup.apps, *args.apps])
    pods = order(read, shuffle=setup.shuffle, tune_ratio=setup.tune_ratio, seed=setup.seed)
    policy = (
        load_policy(args.policy or "kube-scheduler", expected=read.pods)
        if args.scheduler_config is None
        else weighted_policy(read_scheduler_config(args.scheduler_config), read.pods)
    )
    applied = apply(read, pods, policy)
    print(text_table(applied.node_table().head(args.limit)))
    if len(applied.state) > args.limit:
        print(f"... and {len(applied.state) - args.limit} nodes more")
    for pod, reason in applied.pending[:10]:
        print(f"pending: {pod.key}: {reason}")
    if len(applied.pending) > 10:
        print(f"... and {len(applied.pending) - 10} pending pods more")
    print(f"\n{policy.name}: " + ", ".join(f"{name} {value:.6g}" for name, value in applied.summary().items()))
    print("wrote " + ", ".join(map(str, write(applied, args.out))))
    return 0
