"""Check the files of openb that are there against their checksums."""

from dataclasses import dataclass
from pathlib import Path

from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml trace verify`."""

    out: Path = Path("data/openb")
    """their folder"""


def run(args: Args) -> int:
    """Say which are missing or damaged; exit status 1 where any is."""
    from aaml.workload.fetch import is_whole, openb_checksums

    out, checksums = args.out, openb_checksums()
    bad = [name for name, checksum in checksums.items() if not is_whole(out / name, checksum)]
    for name in bad:
        print(f"{out / name}: missing or damaged")
    print(f"{len(checksums) - len(bad)} of {len(checksums)} files are whole")
    return 1 if bad else 0
