"""Traces: convert public ones, say what is in one, split it for training and judging, fetch and verify data.

`convert SOURCE`: a folder with pods.csv and nodes.csv, openb, the seeds' CSV files, SWF, Alibaba 2020 and 2026, Azure
2020 or Google 2019 into --out FOLDER.

`summary TRACE`: how long, how many nodes and pods, who placed them, lifetimes, waits, load, gaps.

`split TRACE`: choose the windows (--window-s) and the share at the end that is for judging alone (--holdout).

`table TRACE`: what one scheduler did as data/sched_*.csv has it, to fill replay buffers from: --out FILE.csv.

`fetch NAME`: bring the public files of a format into --out FOLDER (openb when nothing is named).

`verify`: check the openb files that are there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from aaml.outputs import output_folder, writes
from aaml.settings import Count, Positive, Settings, Share

_OPENB = Path("data/openb")
_UNFINISHED = ".converting-"


@dataclass(frozen=True)
class Args(Settings):
    """What to do with which trace."""

    action: tyro.conf.Positional[Literal["convert", "summary", "split", "table", "fetch", "verify"]]
    """what to do"""
    trace: tyro.conf.Positional[str] = "openb"
    """the source, the trace, or the name of public data"""
    out: Path | None = None
    """folder for the files, or for the trace; the table's file"""
    source: Annotated[str, tyro.conf.arg(name="from", metavar="URL|FOLDER")] = ""
    """fetch: where the files are; their public addresses when not given"""
    format: str = ""
    """convert: which format the source has; told by its name when not given"""
    nodes: Count = 10
    """convert: how many nodes there are where the source does not say"""
    machine: str = ""
    """convert: the kind of machine, where the source has several (azure2020)"""
    window_s: Positive | None = None
    """split: seconds of a window; a twentieth of the trace when not given"""
    holdout: Share = 0.3
    """split: the share of the windows, at the end, that is for judging alone"""
    scheduler: str = "default-scheduler"
    """table: whose placements"""
    json: bool = False
    """summary: as JSON"""


def run(args: Args) -> int:
    """Do it, and say what was done."""
    return {
        "convert": _convert, "summary": _summary, "split": _split, "table": _table, "fetch": _fetch, "verify": _verify,
    }[args.action](args)  # fmt: skip


def _convert(args: Args) -> int:
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
    source = Path(args.trace)
    converted = convert(source, args.format or detect(source), Options(args.nodes, args.machine))
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


def _summary(args: Args) -> int:
    import json

    from aaml.workload.trace.summary import summarise
    from aaml.workload.trace.trace import Trace

    summary = summarise(Trace.read(args.trace))
    print(json.dumps(summary.plain(), indent=2) if args.json else summary)
    return 0


def _split(args: Args) -> int:
    from aaml.workload.trace.trace import Trace
    from aaml.workload.trace.windows import Windows, make_split, read_split, usual_split, write_split

    trace, folder = Trace.read(args.trace), Path(args.trace)
    split = make_split(trace, args.window_s or usual_split(trace).window_s, args.holdout)
    if read_split(folder) not in (None, split):
        print("the trace had another split: what was trained on it so far may have seen what is for judging now")
    write_split(folder, split)
    windows = Windows(trace, split)
    early = sum(number * split.window_s < split.holdout_from_s for number in windows.numbers)
    print(
        f"{folder}: windows of {split.window_s:g} s, {early} for training and validation, "
        f"{len(windows.numbers) - early} from {split.holdout_from_s:g} s on for judging"
    )
    for each in windows.cautions(windows.part("holdout")):
        print(f"Caution: {each}.")
    return 0


@writes(file="out")
def _table(args: Args) -> int:
    from aaml.errors import UserError
    from aaml.live.record import PlacementTable
    from aaml.live.settings import DEFAULT_REWARD
    from aaml.policies.registry import make_reward
    from aaml.workload.trace.trace import Trace

    if args.out is None:
        raise UserError("out: is missing; expected the table's file")
    table = PlacementTable(args.out, args.scheduler, make_reward(DEFAULT_REWARD))
    table.take_all(Trace.read(args.trace).events)
    if not table.written:
        print(f"nothing was placed by {args.scheduler}: no file was written")
        return 1
    print(f"{args.out}: {table.written} placements, {table.skipped} on nodes that came later left out")
    return 0


def _fetch(args: Args) -> int:
    from aaml.errors import UserError, bad_value
    from aaml.progress import progress_bar
    from aaml.workload.fetch import SOURCES, fetch, fetch_files, openb_checksums
    from aaml.workload.trace.formats.known import FORMATS

    if args.trace == "openb":
        out, checksums = args.out or _OPENB, openb_checksums()
        with output_folder(out), progress_bar("fetch", len(checksums), "file") as bar:
            fetched = fetch(out, [args.source] if args.source else SOURCES, lambda _name: bar.update())
        print(f"{len(checksums)} files are in {out}, {len(fetched)} of them fetched now, every MD5 verified")
        return 0
    if args.trace not in FORMATS:
        raise bad_value(
            "trace", args.trace, f"one of openb, {', '.join(name for name, each in FORMATS.items() if each.files)}"
        )
    known = FORMATS[args.trace]
    if not known.files:
        raise UserError(f"trace: {args.trace} has no files that can be fetched; {known.where}")
    out = args.out or Path("data") / args.trace
    with output_folder(out), progress_bar("fetch", len(known.files), "file") as bar:
        fetch_files(out, [(each.url, each.sha256) for each in known.files], args.source, lambda _name: bar.update())
    print(f"{len(known.files)} files are in {out}, every SHA-256 verified; {known.where or 'ready to convert'}")
    return 0


def _verify(args: Args) -> int:
    from aaml.workload.fetch import is_whole, openb_checksums

    out, checksums = args.out or _OPENB, openb_checksums()
    bad = [name for name, checksum in checksums.items() if not is_whole(out / name, checksum)]
    for name in bad:
        print(f"{out / name}: missing or damaged")
    print(f"{len(checksums) - len(bad)} of {len(checksums)} files are whole")
    return 1 if bad else 0
