"""Record what happens on a cluster: as a trace (--out FOLDER), or what one scheduler does as a table.

A trace holds nodes, pods as scheduling sees them, who was bound where and when, ends and evictions; it takes read-only
rights (deploy/kubernetes/recorder), goes on after a restart in the same folder, and is what `aaml replay` and
`--task FOLDER` read. Without --out, or with a file: the placements of one scheduler go to data/sched_*.csv, to fill
replay buffers from, and the nodes' sizes to data/sched_*.nodes.csv. Both end at SIGTERM or Ctrl-C.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from aaml.commands.signals import ends_by
from aaml.errors import UserError, bad_value
from aaml.live.settings import DEFAULT_REWARD
from aaml.outputs import writes
from aaml.settings import Count, Positive, Settings

_TABLE = ".csv"
_KINDS = {"node": "events of nodes", "pod": "of pods", "bound": "binds", "ended": "ends"}


@dataclass(frozen=True)
class Args(Settings):
    """Settings of the recording."""

    scheduler_name: str = "default-scheduler"
    """table: whose pods are recorded; a trace has everybody's"""
    max_pods: Count | None = None
    """table: end after so many placements"""
    reward: str = DEFAULT_REWARD
    """table: the reward that is written to each placement, by name"""
    out: Path | None = None
    """a folder for a trace, or a .csv file for a table; without it data/sched_<time>.csv"""
    kubeconfig: Path | None = None
    """of the Kubernetes cluster; without it $KUBECONFIG and ~/.kube/config"""
    duration_s: Positive | None = None
    """trace: end after so many seconds"""
    hash_names: bool = False
    """trace: replace every name that a person chose by a keyed hash"""
    key: Path | None = None
    """trace: the file with the key of the hashes, made where there is none; without it OUT.key beside the folder. Who
    has it can find out whether a name is in the trace: keep it to yourself, and the same for all parts"""


def run(args: Args) -> int:
    """Record until the end and say where."""
    if args.out is None or args.out.suffix == _TABLE:
        return _table(args)
    if args.max_pods is not None:
        raise bad_value("max_pods", args.max_pods, f"nothing for a trace; a table's --out ends in {_TABLE}")
    return _trace(args, args.out)


def _trace(args: Args, folder: Path) -> int:
    from aaml.live.record import TraceRecord
    from aaml.telemetry.console import Bar, terminal_log
    from aaml.workload.trace.names import read_key

    if folder.exists() and not folder.is_dir():
        raise bad_value("out", str(folder), f"a folder, or a file that ends in {_TABLE}")
    key, made = None, None
    if args.hash_names:
        file = args.key or folder.resolve().with_name(f"{folder.resolve().name}.key")
        if file.resolve().is_relative_to(folder.resolve()):
            raise bad_value("key", str(file), "a file outside the trace, which may be given away without it")
        made = None if file.exists() else file
        key = read_key(file)
    elif args.key is not None:
        raise UserError("key: is of use with --hash-names only")
    record = TraceRecord(folder, kubeconfig=args.kubeconfig, seconds=args.duration_s, key=key)
    with terminal_log(), ends_by(record.stop) as ended:
        bar = Bar("record", enabled=sys.stderr.isatty())
        shown = 0

        def show(record: TraceRecord) -> None:
            nonlocal shown
            binds = record.counts.get("bound", 0)
            bar.advance(binds - shown, pods=record.counts.get("pod", 0), ended=record.counts.get("ended", 0))
            shown = binds

        try:
            record.run(show)
        except UserError:
            if made is not None and not folder.exists():  # nothing was written by this key
                made.unlink(missing_ok=True)
            raise
        finally:
            bar.close()
    events = {text: record.counts.get(kind, 0) for kind, text in _KINDS.items()}
    print(f"{folder}: {', '.join(f'{count} {text}' for text, count in events.items())}")
    print(f"next: aaml trace summary {folder}")
    return ended.service_status


@writes(file="out")
def _table(args: Args) -> int:
    from aaml.live.record import SchedulerRecord
    from aaml.telemetry.console import terminal_log

    record = SchedulerRecord(
        args.scheduler_name, kubeconfig=args.kubeconfig, reward=args.reward, max_pods=args.max_pods, path=args.out
    )
    with terminal_log(), ends_by(record.stop):
        path = record.run()
    if not path.exists():
        print(f"nothing was placed by {args.scheduler_name}: no file was written")
        return 1
    print(path)
    return 0
