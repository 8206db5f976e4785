"""Documents whose tables and figures are drawn from result folders: what stands between two markers is drawn again.

    <!-- aaml: evaluate results=docs/results/balance nodes=10 -->
    ...
    <!-- aaml: end -->

A marker starts a line, and may go on over several. Its first word is a kind of `blocks`, then come
`option=value`, in quotes where a value has blanks. Paths are relative to the current folder.
Figures also take `name`, the file below docs/figures, and `alt`. The text around blocks is never touched.
"""

import hashlib
import inspect
import io
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aaml.errors import UserError, bad_value
from blocks import FIGURES, TABLES, Folders, Labels, Names, Numbers, Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_FOLDER = Path("docs/figures")
_MARKER = re.compile(r"^<!--\s*aaml:(.*?)-->", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_SOURCES = {".csv", ".jsonl"}  # what the kinds read


@dataclass(frozen=True, slots=True)
class Block:
    """One block: what to draw, in which line its marker is, and from where to where its content reaches."""

    kind: str
    options: Mapping[str, str]
    line: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Redrawn:
    """What redrawing came to: the new content of every file that changes, and the blocks and figures that differ."""

    files: Mapping[Path, bytes]
    differences: tuple[str, ...]

    def write(self) -> None:
        """Write the files, each aside and then renamed."""
        for path, content in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{path.name}.part")
            aside.write_bytes(content)
            aside.replace(path)


def parse(text: str) -> list[Block]:
    """Return a document's blocks. Raises `UserError`, its line first, for a marker that cannot be understood."""
    blocks: list[Block] = []
    opened: tuple[re.Match[str], int] | None = None
    for marker in _MARKER.finditer(text):
        line = text.count("\n", 0, marker.start()) + 1
        if marker[1].split() != ["end"]:
            if opened:
                raise UserError(f"{opened[1]}: the block has no <!-- aaml: end --> before line {line}")
            opened = marker, line
            continue
        if not opened:
            raise UserError(f"{line}: <!-- aaml: end --> without a block before it")
        kind, options = _words(opened[0][1], opened[1])
        blocks.append(Block(kind, options, opened[1], opened[0].end(), marker.start()))
        opened = None
    if opened:
        raise UserError(f"{opened[1]}: the block has no <!-- aaml: end -->")
    return blocks


def redraw(documents: Sequence[Path], root: Path = Path(), *, figures: bool = True) -> Redrawn:
    """Draw all blocks of Markdown files again; nothing is written yet.

    Parameters
    ----------
    documents
        Files, relative to `root` as all paths in them are.
    figures
        Draw the figures. Without, they differ only where the file is missing or was drawn from other data.

    Raises
    ------
    UserError
        For a document that cannot be read, and, with file and line, for a block that cannot be drawn.
    """
    files: dict[Path, bytes] = {}
    differences: list[str] = []
    for document in documents:
        path = root / document
        try:
            text = path.read_bytes().decode()
        except (OSError, ValueError) as error:
            raise UserError(f"{document}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
        drawn, at = [], 0
        try:
            blocks = parse(text)
        except UserError as error:
            raise UserError(f"{document}:{error}") from None
        for block in blocks:
            where = f"{document}:{block.line}"
            try:
                content, picture = _draw(block, path.parent, root, figures=figures)
            except UserError as error:
                raise UserError(f"{where}: {block.kind}: {error}") from error
            for file, png in picture.items():
                if not file.is_file() or file.read_bytes() != png:
                    files[file] = png
                    differences.append(f"{where}: {file.relative_to(root)} differs")
            drawn += [text[at : block.start], f"\n{content}\n"]
            if drawn[-1] != text[block.start : block.end]:
                differences.append(f"{where}: {block.kind} differs")
            at = block.end
        new = "".join([*drawn, text[at:]])
        if new != text:
            files[path] = new.encode()
    return Redrawn(files, tuple(differences))


def _words(text: str, line: int) -> tuple[str, dict[str, str]]:
    """Split a marker into its kind and options."""
    try:
        kind, *words = shlex.split(text) or [""]
    except ValueError as error:
        raise UserError(f"{line}: the marker cannot be read: {error}") from error
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key in options:
            raise UserError(f"{line}: {bad_value('option', word, 'key=value, each key once')}")
        options[key] = value
    return kind, options


def _draw(block: Block, folder: Path, root: Path, *, figures: bool) -> tuple[str, dict[Path, bytes]]:
    """Return a block's content, and the file of its figure if it has one that should be written."""
    if block.kind in TABLES:
        return TABLES[block.kind](**_arguments(TABLES[block.kind], block.options, root)), {}
    if block.kind not in FIGURES:
        raise bad_value("block", block.kind, f"one of {', '.join((*TABLES, *FIGURES))}")
    options = dict(block.options)
    name, alt = options.pop("name", ""), options.pop("alt", "")
    if not _NAME.fullmatch(name):
        raise bad_value("name", name, "the figure's file name: lower-case letters, digits and dashes")
    function = FIGURES[block.kind]
    arguments = _arguments(function, options, root)
    file = root / FIGURE_FOLDER / f"{name}.png"
    content = f"![{alt or name}]({Path(os.path.relpath(file, folder)).as_posix()})"
    digest = _digest(block, arguments.values())
    if not figures and file.is_file() and digest.encode() in file.read_bytes():
        return content, {}
    return content, {file: _png(function(**arguments), digest)}


def _arguments(function: Callable[..., Any], options: Mapping[str, str], root: Path) -> dict[str, Any]:
    """Read options by the types of a function's parameters."""
    parameters = inspect.signature(function).parameters
    for key in options:
        if key not in parameters:
            raise bad_value("option", key, f"one of {', '.join(parameters)}")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in options:
            raise UserError(f"{key}: is missing")
    return {key: READERS[parameters[key].annotation](key, value, root) for key, value in options.items()}


def _list(value: str) -> list[str]:
    return [each.strip() for each in value.split(",") if each.strip()]


def _labels(value: str) -> Labels:
    return tuple((label.strip(), name.strip()) for label, _, name in (each.rpartition("=") for each in _list(value)))


def _number(key: str, value: str, kind: type[float] = float) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise bad_value(key, value, "a whole number" if kind is int else "a number") from None


def _runs(key: str, value: str, root: Path) -> Runs:
    found = []
    for label, pattern in _labels(value):
        folders = tuple(sorted(path for path in root.glob(pattern) if path.is_dir()))
        if not folders:
            raise bad_value(key, pattern, "folders of `aaml train`, * for any characters")
        found.append((label or folders[0].name, folders))
    return tuple(found)


READERS: Mapping[Any, Callable[[str, str, Path], Any]] = {
    str: lambda _key, value, _root: value,
    float: lambda key, value, _root: _number(key, value),
    int: lambda key, value, _root: _number(key, value, int),
    Path: lambda _key, value, root: root / value,
    Names: lambda _key, value, _root: tuple(_list(value)),
    Numbers: lambda key, value, _root: tuple(_number(key, each, int) for each in _list(value)),
    Folders: lambda _key, value, root: tuple(root / each for each in _list(value)),
    Labels: lambda _key, value, _root: _labels(value),
    Runs: _runs,
}


def _digest(block: Block, arguments: Iterable[Any]) -> str:
    """Return a digest of what a figure is drawn from: its options and the files in its folders."""
    whole = hashlib.sha256(repr((block.kind, sorted(block.options.items()))).encode())
    for path in _paths(arguments):
        for source in sorted(path.iterdir()) if path.is_dir() else [path]:
            if source.is_file() and source.suffix in _SOURCES:
                whole.update(source.name.encode() + b"\0" + source.read_bytes())
    return whole.hexdigest()


def _paths(values: Iterable[Any]) -> Iterator[Path]:
    for value in values:
        if isinstance(value, Path):
            yield value
        elif isinstance(value, tuple):
            yield from _paths(value)


def _png(figure: "Figure", digest: str) -> bytes:
    """Return a figure as PNG, the same bytes every time: without the version and date of whoever drew it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None, "Description": digest})
    return buffer.getvalue()
