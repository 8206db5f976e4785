"""Tables by rich: with bold headers at a terminal, the same as plain text in a pipe or a file."""

import io
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.box import Box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

_UNBOUNDED = 100_000  # columns of a text that nothing cuts


def table(header: Sequence[str], rows: Iterable[Sequence[object]], *, right: Collection[str] = ()) -> Table:
    """Return a table with a rule under its header; the columns named in `right` are aligned to the right."""
    rule = Box("    \n    \n -  \n    \n    \n    \n    \n    \n", ascii=True)
    result = Table(box=rule, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in header:
        result.add_column(Text(name), justify="right" if name in right else "left")
    for row in rows:
        result.add_row(*(value if isinstance(value, Text) else Text(str(value)) for value in row))
    return result


def plain(*drawn: "RenderableType") -> str:
    """Return what is drawn, one below the other, as text without colours and without spaces at the ends of lines."""
    file = io.StringIO()
    Console(file=file, width=_UNBOUNDED, color_system=None, force_jupyter=False).print(Group(*drawn))
    return "\n".join(line.rstrip() for line in file.getvalue().removesuffix("\n").split("\n"))


def show(*drawn: "RenderableType") -> None:
    """Print it, one below the other: fitted to a terminal, as plain text of any width elsewhere."""
    console = Console(force_jupyter=False)  # else a notebook shows it twice: as HTML and as the text that it is in
    if console.is_terminal:
        console.print(Group(*drawn))
    else:
        print(plain(*drawn))
