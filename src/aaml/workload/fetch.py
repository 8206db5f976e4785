"""Getting the openb trace, file by file, each verified by its MD5 before it is put in place."""

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO, cast

from aaml.errors import UserError
from aaml.files import write_bytes, write_text, write_whole

SOURCES = (
    "https://raw.githubusercontent.com/alibaba/clusterdata/master/cluster-trace-gpu-v2023/csv",
    "https://raw.githubusercontent.com/hkust-adsl/kubernetes-scheduler-simulator/main/data/csv",
)
_TIMEOUT_S = 60.0
_PIECE_BYTES = 1 << 20


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

    A source is a URL (http, https) or a folder, and each file comes from the first source that has it whole. `tell` is
    called with each name when the file is in place. Raises `UserError` with the file that no source has, and why.
    """
    fetched = []
    for name, checksum in openb_checksums().items():
        if not is_whole(folder / name, checksum):
            write_bytes(folder / name, _first_whole(name, checksum, sources), field="trace")
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


def fetch_files(
    folder: Path,
    files: Sequence[tuple[str, str]],
    source: str = "",
    tell: Callable[[str], object] = lambda _name: None,
    names: Mapping[str, str] | None = None,
) -> list[str]:
    """Bring files (URL, SHA-256) into `folder` and return the names that were missing or damaged.

    A file whose publisher names no SHA-256 is held to the one of its first download, in SHA256SUMS beside it. `source`,
    a URL or folder, takes the place of the public addresses. `names` are those of files by URL that are called
    otherwise here and in `source`. Raises `UserError` with the file that cannot be had.
    """
    sums = folder / "SHA256SUMS"
    lines = sums.read_text(encoding="utf-8").splitlines() if sums.is_file() else []
    noted = {name: checksum for checksum, name in (line.split(maxsplit=1) for line in lines if line.strip())}
    fetched = []
    for url, published in files:
        place, _, published_as = url.rpartition("/")
        name = (names or {}).get(url, published_as)
        wanted = published or noted.get(name, "")
        path = folder / name
        if not (path.is_file() and wanted and _sha256(path) == wanted):
            _download(source or place, name if source else published_as, wanted, path)
            fetched.append(name)
        if noted.get(name) != _sha256(path):
            noted[name] = _sha256(path)
            write_text(sums, "".join(f"{checksum}  {each}\n" for each, checksum in sorted(noted.items())))
        tell(name)
    return fetched


def _download(source: str, name: str, wanted: str, path: Path) -> None:
    """Bring one file piece by piece; it is put in place once it is whole."""
    digest = hashlib.sha256()

    def pieces(file: BinaryIO) -> None:
        for piece in _pieces(source, name):
            digest.update(piece)
            file.write(piece)
        if wanted and digest.hexdigest() != wanted:
            raise UserError(f"{name}: {source}: SHA-256 is {digest.hexdigest()}, not {wanted}")

    try:
        write_whole(path, pieces, field="trace")
    except UserError as error:
        raise UserError(f"{name} cannot be had ({error}). Copy the files and name their folder with --from") from None


def _pieces(source: str, name: str) -> Iterator[bytes]:
    """Yield what a source has of a file. Raises `UserError`, which says whence it cannot be fetched, and why."""
    try:
        with _opened(source, name) as reply:
            while piece := reply.read(_PIECE_BYTES):
                yield piece
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UserError(f"cannot be fetched from {source}: {why}") from error


def _opened(source: str, name: str) -> BinaryIO:
    if not source.startswith(("http://", "https://")):
        return (Path(source) / name).open("rb")
    return cast("BinaryIO", urllib.request.urlopen(f"{source.rstrip('/')}/{name}", timeout=_TIMEOUT_S))  # noqa: S310  (http only)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
