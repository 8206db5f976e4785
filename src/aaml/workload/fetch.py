"""Getting the openb trace: file by file, verified by MD5 before it is put in place."""

import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from aaml.errors import UserError

SOURCES = (
    "https://raw.githubusercontent.com/alibaba/clusterdata/master/cluster-trace-gpu-v2023/csv",
    "https://raw.githubusercontent.com/hkust-adsl/kubernetes-scheduler-simulator/main/data/csv",
)
_TIMEOUT_S = 60.0


def openb_checksums() -> Mapping[str, str]:
    """Return the MD5 of every file of the openb trace, by name."""
    text = files("aaml.workload").joinpath("data", "openb.md5").read_text(encoding="utf-8")
    return {name: checksum for checksum, name in (line.split() for line in text.splitlines() if line)}


def is_whole(path: Path, checksum: str) -> bool:
    """Whether a file is there and has this MD5."""
    return path.is_file() and _md5(path.read_bytes()) == checksum


def fetch(
    folder: Path, sources: Sequence[str] = SOURCES, tell: Callable[[str], object] = lambda _name: None
) -> list[str]:
    """Bring every file of the trace into `folder` and return the names that were missing or damaged.

    A source is a URL (http, https) or a folder; each file comes from the first that has it whole. `tell` is called with
    each name when it is in place. `UserError` says which file no source has, and why.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fetched = []
    for name, checksum in openb_checksums().items():
        if not is_whole(folder / name, checksum):
            aside = folder / f".{name}.part"
            aside.write_bytes(_first_whole(name, checksum, sources))
            aside.replace(folder / name)
            fetched.append(name)
        tell(name)
    return fetched


def _first_whole(name: str, checksum: str, sources: Sequence[str]) -> bytes:
    reasons = []
    for source in sources:
        try:
            content = _read(source, name)
        except (OSError, urllib.error.URLError) as error:
            reasons.append(f"{source}: {getattr(error, 'reason', None) or error}")
            continue
        if _md5(content) == checksum:
            return content
        reasons.append(f"{source}: MD5 is {_md5(content)}, not {checksum}")
    raise UserError(f"{name} cannot be had; {'; '.join(reasons)}. Copy the trace and name its folder with --from")


def _read(source: str, name: str) -> bytes:
    if not source.startswith(("http://", "https://")):
        return (Path(source) / name).read_bytes()
    with urllib.request.urlopen(f"{source.rstrip('/')}/{name}", timeout=_TIMEOUT_S) as reply:  # noqa: S310  (http only)
        return bytes(reply.read())


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
