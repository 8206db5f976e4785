"""Progress of long work: a bar on a terminal or in a notebook, a line now and then in a log."""

import math
import sys
import time
from collections.abc import Iterable
from typing import Any

from tqdm.asyncio import tqdm_asyncio
from tqdm.auto import tqdm
from tqdm.std import tqdm as std_tqdm

IN_NOTEBOOK = tqdm is not tqdm_asyncio
_REFRESH_S = 0.2
_LINE_EVERY_S = 30.0
_PACE_AFTER_S = 10.0
_LINE = "{desc}: {n_fmt}/{total_fmt} {unit} [{elapsed}<{remaining}{postfix}]"


class _Lines(std_tqdm):  # type: ignore[type-arg]
    """A progress bar for a log: a line when what is done changes, every half minute, and at the end.

    What is left is told from what was done since the first update, once ten seconds have passed since then. Until the
    first update code is compiled, or what an earlier run had done is read.
    """

    _first: tuple[float, float] | None = None  # what was done at the first update, and when that was

    def __init__(self, *args: Any, **fields: Any) -> None:
        often = {"mininterval": _LINE_EVERY_S, "maxinterval": _LINE_EVERY_S, "bar_format": _LINE}
        super().__init__(*args, **{**fields, **often})

    def display(self, msg: str | None = None, pos: int | None = None) -> None:  # noqa: ARG002
        """Write a line."""
        print(str(self) if msg is None else msg, file=self.fp, flush=True)

    def refresh(self, *args: Any, **fields: Any) -> None:
        """Write a line, when the last one is old enough."""
        if time.time() - getattr(self, "last_print_t", -math.inf) >= _LINE_EVERY_S:
            self.last_print_t = time.time()
            super().refresh(*args, **fields)

    def update(self, n: float | None = 1) -> bool | None:
        """Count what was done."""
        shown: bool | None = super().update(n)
        if n and self._first is None:
            self._first = (self.n, time.time())
        return shown

    def reset(self, total: float | None = None) -> None:
        """Begin again."""
        self._first = None
        super().reset(total)

    @property
    def format_dict(self) -> Any:
        """What a line is made of; with a rate of 0 it does not tell how long it goes on."""
        told = super().format_dict
        if self.total and self.n < self.total:
            done, at_s = self._first or (self.n, math.inf)
            since_s = time.time() - at_s
            told["rate"] = (self.n - done) / since_s if since_s >= _PACE_AFTER_S else 0.0
        return told

    def set_description(self, desc: str | None = None, refresh: bool | None = True) -> None:
        """Say what is done from now on."""
        changed = (desc or "") != self.desc
        self.set_description_str(desc, refresh=False)
        if refresh and changed and not self.disable:
            self.display()

    def close(self) -> None:
        """Write the last line."""
        if not self.disable:
            self.disable = True
            self._decr_instances(self)  # type: ignore[attr-defined]
            self.display()


def progress_bar(
    description: str,
    total: int | None,
    unit: str,
    *,
    over: Iterable[Any] | None = None,
    enabled: bool = True,
    at: int = 0,
) -> "std_tqdm[Any]":
    """Return a progress bar on the terminal or in the notebook; where there is neither, it writes lines now and then.

    The description says what is done at the moment, and may change. With `over` the bar is that iterable, counted.
    """
    kind = tqdm if IN_NOTEBOOK or not enabled or sys.stderr.isatty() else _Lines
    bar: std_tqdm[Any] = kind(
        over, desc=description, total=total, initial=at, unit=unit, disable=not enabled, dynamic_ncols=True,
        mininterval=_REFRESH_S,
    )  # fmt: skip
    return bar
