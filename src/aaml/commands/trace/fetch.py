"""Bring the public files of a format into a folder, each held to its checksum."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aaml.outputs import output_folder
from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml trace fetch`."""

    name: tyro.conf.Positional[str] = "openb"
    """which format"""
    out: Path | None = None
    """folder for the files; data/NAME when not given"""
    source: Annotated[str, tyro.conf.arg(name="from", metavar="URL|FOLDER")] = ""
    """where the files are; their public addresses when not given"""


def run(args: Args) -> int:
    """Fetch and verify them."""
    from aaml.errors import UserError, bad_value
    from aaml.progress import progress_bar
    from aaml.workload.fetch import SOURCES, fetch, fetch_files, openb_checksums
    from aaml.workload.trace.formats.known import FORMATS

    out = args.out or Path("data") / args.name
    if args.name == "openb":
        checksums = openb_checksums()
        with output_folder(out), progress_bar("fetch", len(checksums), "file") as bar:
            fetched = fetch(out, [args.source] if args.source else SOURCES, lambda _name: bar.update())
        print(f"{len(checksums)} files are in {out}, {len(fetched)} of them fetched now, every MD5 verified")
        return 0
    if args.name == "spot":
        return _spot(out, args.source)
    if args.name not in FORMATS:
        raise bad_value(
            "name", args.name, f"one of openb, spot, {', '.join(name for name, each in FORMATS.items() if each.files)}"
        )
    known = FORMATS[args.name]
    if not known.files:
        raise UserError(f"name: {args.name} has no files that can be fetched; {known.where}")
    with output_folder(out), progress_bar("fetch", len(known.files), "file") as bar:
        fetch_files(out, [(each.url, each.sha256) for each in known.files], args.source, lambda _name: bar.update())
    print(f"{len(known.files)} files are in {out}, every SHA-256 verified; {known.where or 'ready to convert'}")
    return 0


def _spot(out: Path, source: str) -> int:
    from aaml.progress import progress_bar
    from aaml.spot.traces import SHA256, URLS
    from aaml.workload.fetch import fetch_files

    files = [(url, SHA256[name]) for url, name in URLS.items()]
    with output_folder(out), progress_bar("fetch", len(files), "file") as bar:
        fetch_files(out, files, source, lambda _name: bar.update(), names=URLS)
    print(f"{len(files)} files are in {out}, every SHA-256 verified; next: aaml bench cant-be-late")
    return 0
