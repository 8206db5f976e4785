"""ktop at a terminal: nodes as bars, the queue, decisions and curves, with keys to sort, filter and look in."""

import threading
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

from aaml.telemetry.run_tail import curve_label, sparkline
from aaml.telemetry.snapshot import NodeLine, Snapshot
from aaml.telemetry.top import natural
from aaml.threads import ThreadError, start

if TYPE_CHECKING:
    from collections.abc import Callable

SORTS = {"n": "name", "c": "cpu", "m": "memory", "g": "gpu", "p": "pods", "d": "dollars"}
"""Keys and what they sort by: names upwards, shares downwards, and the other way round when pressed again."""
_BARS = ("cpu", "memory", "gpu", "pods")
_TITLES = {"cpu": "CPU", "memory": "MEMORY (GiB)", "gpu": "GPU", "pods": "PODS"}
_NAME, _PRICE = 26, 11  # characters of a node's name, and of its price where one is known
_THINNEST, _WIDEST = 4, 30  # characters of a bar
_LOW = 22  # lines of a terminal, below which only nodes are shown


class NodeLines(ScrollView, can_focus=True):
    """One line a node, of which only the visible ones are drawn: thousands cost no more than a screenful."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False), Binding("down", "move(1)", show=False),
        Binding("pageup", "move(-20)", show=False), Binding("pagedown", "move(20)", show=False),
        Binding("home", "move(-1000000)", show=False), Binding("end", "move(1000000)", show=False),
        Binding("enter", "look_in", "pods of node"),
    ]  # fmt: skip

    class Entered(Message):
        """Somebody wants to see the pods of a node."""

        def __init__(self, node: str) -> None:
            super().__init__()
            self.node = node

    def __init__(self) -> None:
        super().__init__(id="nodes")
        self.lines: list[NodeLine] = []
        self.cursor = 0
        self.amount_width = self.price_width = 0

    def show(self, lines: list[NodeLine]) -> None:
        """Show these nodes; the cursor stays on its node where that is still there."""
        chosen = self.lines[self.cursor].name if self.cursor < len(self.lines) else ""
        self.lines = lines
        self.amount_width = max((len(_amount(line, what)) for line in lines for what in _BARS), default=0)
        self.price_width = _PRICE if any(line.dollars is not None for line in lines) else 0
        places = {line.name: place for place, line in enumerate(lines)}
        self.cursor = places.get(chosen, min(self.cursor, max(len(lines) - 1, 0)))
        self.virtual_size = Size(self.size.width, len(lines))
        self.refresh()

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self.cursor = min(max(self.cursor + by, 0), max(len(self.lines) - 1, 0))
        self.scroll_to_region(Region(0, self.cursor, 1, 1), animate=False)
        self.refresh()

    def action_look_in(self) -> None:
        """Ask for the pods of the node under the cursor."""
        if self.lines:
            self.post_message(self.Entered(self.lines[self.cursor].name))

    def render_line(self, y: int) -> Strip:
        """Draw one visible line."""
        place = self.scroll_offset.y + y
        if place >= len(self.lines):
            return Strip.blank(self.size.width)
        line, style = self.lines[place], Style(reverse=place == self.cursor)
        text = f"{line.name + (' *' if line.cordoned else ''):<{_NAME}.{_NAME}} "
        if self.price_width:
            price = "" if line.dollars is None else f"{line.dollars:.3f}"
            text += f"{price:>{self.price_width - 2}}  "
        segments = [Segment(text, style)]
        bar, columns = self.layout_of_columns()
        for what in columns:
            segments += _bar(line.share(what), bar, style)
            segments.append(Segment(f" {_amount(line, what):<{self.amount_width}} ", style))
        return Strip(segments).adjust_cell_length(self.size.width, style)

    def layout_of_columns(self) -> tuple[int, tuple[str, ...]]:
        """Return how many characters a bar has, and which columns fit: half a number would be another number."""
        every = ("cpu", "memory", *(("gpu",) if any(line.gpu_offered for line in self.lines) else ()), "pods")
        room = self.size.width - _NAME - 1 - self.price_width
        fit = max(1, min(len(every), room // (_THINNEST + self.amount_width + 2)))
        return max(_THINNEST, min(_WIDEST, room // fit - self.amount_width - 2)), every[:fit]


def _bar(share: float, width: int, style: Style) -> list[Segment]:
    filled = round(min(max(share, 0.0), 1.0) * width)
    colour = "red" if share > 0.9 else "yellow" if share > 0.7 else "green"
    return [
        Segment("█" * filled, style + Style(color=colour)),
        Segment("░" * (width - filled), style + Style(dim=True)),
    ]


def _amount(line: NodeLine, what: str) -> str:
    if what == "pods":
        return f"{line.pods}/{line.pods_room}"
    requested, offered = getattr(line, what), getattr(line, f"{what}_offered")
    return f"{requested:.1f}/{offered:.0f} {line.share(what):.0%}"


class Ktop(App[None]):
    """The live table. `feed`, in a thread of its own, hands it one snapshot after the other until it `has_ended`.

    `node` is the one whose pods are to be in the next snapshots, "" while nobody looks into one.
    """

    CSS = """
    #head { height: auto; padding: 0 1; background: $panel; }
    #titles { height: 1; text-style: bold; }
    #nodes { overflow-x: hidden; }
    #decisions, #curves, #pods { text-wrap: nowrap; text-overflow: ellipsis; }
    #filter { display: none; height: 3; } #filter.open { display: block; }
    #pods { display: none; height: auto; max-height: 35%; border-top: solid $accent; overflow-y: auto; padding: 0 1; }
    #pods.open { display: block; }
    #below { height: auto; max-height: 11; border-top: solid $panel; }
    #decisions { width: 3fr; height: auto; padding: 0 1; } #curves { width: 2fr; height: auto; padding: 0 1; }
    .short #below { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "quit"), Binding("slash", "filter", "filter"), Binding("escape", "shut", "back"),
        *(Binding(key, f"sort('{what}')", what) for key, what in SORTS.items()),
    ]  # fmt: skip
    ENABLE_COMMAND_PALETTE = False
    TITLE = "ktop"

    def __init__(self, feed: "Callable[[Ktop], None] | None" = None) -> None:
        super().__init__()
        self._feed = feed
        self.has_ended = threading.Event()
        self.failed: ThreadError | None = None
        """What ended the feed."""
        self.node = ""
        self.snapshot: Snapshot | None = None
        self.by, self.backwards, self.wanted = "name", False, ""

    def compose(self) -> ComposeResult:
        """Put the parts on the screen."""
        yield Static("connecting ...", id="head", markup=False)
        yield Static("", id="titles", markup=False)
        yield NodeLines()
        yield Static("", id="pods", markup=False)
        yield Input(placeholder="part of a node's name", id="filter")
        yield Horizontal(Static("", id="decisions", markup=False), Static("", id="curves", markup=False), id="below")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Let the keys go to the nodes."""
        self.query_one(NodeLines).focus()
        if self._feed is not None:
            start(partial(self._feed, self), "ktop", self._fail)

    def _fail(self, error: ThreadError) -> None:
        self.failed = error
        if not self.has_ended.is_set():
            self.call_from_thread(self.exit)

    def on_unmount(self) -> None:
        """Let the feed end."""
        self.has_ended.set()

    def hand(self, snapshot: Snapshot) -> None:
        """Show the cluster as it is now; for the thread of the feed."""
        if not self.has_ended.is_set():
            self.call_from_thread(self.show, snapshot)

    def on_resize(self, event: Resize) -> None:
        """Leave out what a low terminal has no room for."""
        self.screen.set_class(event.size.height < _LOW, "short")
        self.call_after_refresh(self._draw)  # when the parts have their new sizes

    def show(self, snapshot: Snapshot) -> None:
        """Show the cluster as it is now."""
        self.snapshot = snapshot
        self._draw()

    # ---- keys --------------------------------------------------------------------------------------------------------

    def action_sort(self, what: str) -> None:
        """Sort by a column; the other way round when it is sorted by it already."""
        self.backwards = not self.backwards if self.by == what else False
        self.by = what
        self._draw()

    def action_filter(self) -> None:
        """Ask which nodes to show."""
        box = self.query_one("#filter", Input)
        box.add_class("open")
        box.focus()

    def action_shut(self) -> None:
        """Close what is open, the filter first."""
        box = self.query_one("#filter", Input)
        if box.has_class("open"):
            box.value = ""
            box.remove_class("open")
        else:
            self.node = ""
        self.query_one(NodeLines).focus()
        self._draw()

    @on(Input.Changed)
    def _narrow(self, event: Input.Changed) -> None:
        self.wanted = event.value
        self._draw()

    @on(Input.Submitted)
    def _narrowed(self) -> None:
        self.query_one(NodeLines).focus()

    @on(NodeLines.Entered)
    def _look_in(self, event: NodeLines.Entered) -> None:
        self.node = "" if self.node == event.node else event.node
        self._draw()

    # ---- drawing -----------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        now = self.snapshot
        if now is None:
            return
        lines = [line for line in now.nodes if self.wanted in line.name]
        falling = (self.by != "name") != self.backwards
        named = self.by == "name"
        lines.sort(key=lambda line: natural(line.name), reverse=named and falling)
        if not named:  # equals stay in the order of their names
            lines.sort(key=lambda line: line.share(self.by), reverse=falling)
        nodes = self.query_one(NodeLines)
        nodes.show(lines)
        gpus = any(line.gpu_offered for line in now.nodes)
        bar, columns = nodes.layout_of_columns()
        titles = "".join(f"{_TITLES[what]:<{bar + nodes.amount_width + 2}}" for what in columns)
        titles = f"{'$ AN HOUR':<{nodes.price_width}}{titles}" if nodes.price_width else titles
        self.query_one("#titles", Static).update(f"{'NODE':<{_NAME + 1}}{titles}"[: self.size.width])
        shown = f"{len(lines)} of {len(now.nodes)} nodes" if self.wanted else f"{len(now.nodes)} nodes"
        self.query_one("#head", Static).update(
            f"{now.title}   {shown}   {now.pending} pending   {now.placed} placed meanwhile   "
            f"{now.per_s:.1f} placed/s   variance of CPU use {now.cpu_variance:.2g}{_dollars(now)}\n"
            f"{_totals(now, gpus)}" + (f"\n{now.promise}" if now.promise else "")
        )
        self.query_one("#decisions", Static).update("\n".join(["last decisions", *_decisions(now)]))
        self.query_one("#curves", Static).update("\n".join(_curves(now)))
        pods = self.query_one("#pods", Static)
        pods.set_class(bool(self.node), "open")
        rows = (f"{name:<48.48} {phase:<10} cpu {cpu:g}  memory {memory:.1f} GiB" + (f"  gpu {gpu:g}" if gpu else "")
                for name, phase, cpu, memory, gpu in now.pods)  # fmt: skip
        pods.update("\n".join([f"pods of {self.node}", *rows] if now.pods else [f"{self.node} has no pods"]))


def _totals(now: Snapshot, gpus: bool) -> str:
    parts = []
    for what, unit in (("cpu", "cores"), ("memory", "GiB"), *((("gpu", "devices"),) if gpus else ())):
        requested = sum(getattr(line, what) for line in now.nodes)
        offered = sum(getattr(line, f"{what}_offered") for line in now.nodes)
        share = requested / offered if offered else 0.0
        parts.append(f"{what} {'█' * round(share * 16):░<16} {share:.1%} of {offered:,.0f} {unit}")
    return "   ".join(parts)


def _dollars(now: Snapshot) -> str:
    core = (
        "" if now.dollars_a_core_hour is None else f"   ${now.dollars_a_core_hour:.4f} for an hour of a requested core"
    )
    return "" if now.dollars_an_hour is None else f"   ${now.dollars_an_hour:,.2f} an hour{core}"


def _decisions(now: Snapshot) -> list[str]:
    lines = []
    for each in reversed(now.decisions):
        facts = (("score {:.3g}", each.score), ("reward {:.3g}", each.reward), ("{} feasible", each.feasible))
        facts_text = "  ".join(words.format(value) for words, value in facts if value is not None)
        facts_text += f"  by {each.by}" if each.by else ""
        lines.append(f"{_tail(each.pod, 24):<24} -> {_tail(each.node, 18):<18} {facts_text}")
    return lines or ["none yet"]


def _tail(name: str, width: int) -> str:
    """Return the end of a name, which tells pods of one deployment apart, without the usual namespace."""
    short = name.removeprefix("default/")
    return short if len(short) <= width else "\u2026" + short[1 - width :]


def _curves(now: Snapshot) -> list[str]:
    if not now.curves:
        return ["curves: none (a scheduler that learns writes them to logs/)"]
    shown = {curve_label(name): values for name, values in now.curves.items()}
    return [f"{label:<20.20} {sparkline(values[-20:]):<20} {values[-1]:.4g}" for label, values in shown.items()]
