"""Record what a scheduler does into data/sched_*.csv, to fill replay buffers from; kube-scheduler's work by default.

It watches until SIGTERM or Ctrl-C, or until `--max_pods` were placed. Nodes' sizes go to data/sched_*.nodes.csv.
"""

from dataclasses import dataclass
from pathlib import Path

from aaml.commands.signals import ends_by
from aaml.experiment.build import DEFAULT_REWARD


@dataclass(frozen=True)
class Args:
    """Settings of the recording."""

    scheduler_name: str = "default-scheduler"
    """whose pods are recorded"""
    max_pods: int | None = None
    """end after so many placements"""
    reward: str = DEFAULT_REWARD
    """the reward that is written to each placement, by name"""
    out: Path | None = None
    """the file; without it data/sched_<time>.csv"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""


def run(args: Args) -> int:
    """Record until the end and print the file's name."""
    from aaml.experiment.build import Folders
    from aaml.experiment.observers import SchedulerRecord
    from aaml.telemetry.console import run_log

    record = SchedulerRecord(
        args.scheduler_name, kubeconfig=args.kubeconfig, reward=args.reward, max_pods=args.max_pods, path=args.out
    )
    with run_log("record", Folders().logs), ends_by(record.stop):
        path = record.run()
    if not path.exists():
        print(f"nothing was placed by {args.scheduler_name}: no file was written")
        return 1
    print(path)
    return 0
