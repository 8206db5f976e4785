"""The openb GPU trace of Alibaba (cluster-trace-gpu-v2023): get it and verify it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Args:
    """What to get, from where."""

    action: tyro.conf.Positional[Literal["fetch", "verify"]]
    """fetch: bring what is missing or damaged; verify: check what is there"""
    trace: tyro.conf.Positional[Literal["openb"]] = "openb"
    """which trace"""
    source: Annotated[str, tyro.conf.arg(name="from", metavar="URL|FOLDER")] = ""
    """where the CSV files are; the trace's public repositories when not given"""
    out: Path = Path("data/openb")
    """folder for the files (AAML_TRACES names another one to the other commands)"""


def run(args: Args) -> int:
    """Fetch or verify, and say what was done."""
    from aaml.workload.fetch import SOURCES, fetch, is_whole, openb_checksums

    checksums = openb_checksums()
    if args.action == "verify":
        bad = [name for name, checksum in checksums.items() if not is_whole(args.out / name, checksum)]
        for name in bad:
            print(f"{args.out / name}: missing or damaged")
        print(f"{len(checksums) - len(bad)} of {len(checksums)} files are whole")
        return 1 if bad else 0
    from tqdm import tqdm

    with tqdm(total=len(checksums), unit="file") as bar:
        fetched = fetch(args.out, [args.source] if args.source else SOURCES, lambda _name: bar.update())
    print(f"{len(checksums)} files are in {args.out}, {len(fetched)} of them fetched now, every MD5 verified")
    return 0
