"""Convert public traces, and the files of the seeds, into a trace that policies train and are evaluated on.

SOURCE is a folder with pods.csv and nodes.csv, openb, CSV files of `aaml record` and of the workload simulator, SWF,
Alibaba 2020 and 2026, Philly, Azure 2020 or Google 2019.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from aaml.outputs import output_folder
from aaml.settings import Count, Settings

_UNFINISHED = ".converting-"


@dataclass(frozen=True)
class Args(Settings):
    """`aaml trace convert`."""

    source: tyro.conf.Positional[str] = "openb"
    """the file or folder, or openb"""
    out: Path | None = None
    """folder for the trace"""
    format: str = ""
    """which format the source has; guessed from its name when not given"""
    nodes: Count = 10
    """how many nodes there are where the source does not say"""
    machine: str = ""
    """the kind of machine, where the source has several (azure2020)"""
    gpus_per_node: Count = 8
    """GPUs of a node (philly); a job of more is a pod group of several pods"""
    nodes_per_rack: Count | None = None
    """nodes of a rack (philly): a job of several nodes then requires one; no racks when not given"""


def run(args: Args) -> int:
    """Convert it, and say what became of it."""
    from shutil import rmtree
    from tempfile import TemporaryDirectory

    from aaml.errors import UserError, bad_value
    from aaml.progress import progress_bar
    from aaml.workload.trace.formats.common import Options, events_of
    from aaml.workload.trace.formats.known import convert, detect
    from aaml.workload.trace.store import TraceWriter, is_trace

    if args.out is None:
        raise UserError("out: is missing; expected a folder for the trace")
    if is_trace(args.out):
        raise bad_value("out", str(args.out), "a folder without a trace")
    source = Path(args.source)
    options = Options(args.nodes, args.machine, args.gpus_per_node, args.nodes_per_rack or 0)
    converted = convert(source, args.format or detect(source), options)
    with output_folder(args.out) as out:
        for cut_off in out.glob(f"{_UNFINISHED}*"):
            rmtree(cut_off)
        with TemporaryDirectory(dir=out, prefix=_UNFINISHED) as folder:  # half a trace would be read as a whole one
            with TraceWriter(Path(folder), flush_s=30.0) as writer:
                for event in progress_bar("convert", None, "event", over=events_of(converted)):
                    writer.write(event)
            for part in sorted(Path(folder).iterdir()):
                part.replace(out / part.name)
    for what, count in converted.left_out.items():
        print(f"left out: {count} {what}")
    print(
        f"{args.out}: {len(converted.lives)} pods, {writer.written} events; `aaml trace summary {args.out}` says more"
    )
    return 0
