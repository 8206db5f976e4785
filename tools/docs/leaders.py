"""Blocks that are drawn from the leaderboard's files: tables of a task, a ranking over tasks, the models that ship."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from aaml.errors import bad_value
from aaml.evaluation.leaderboard.board import Board
from aaml.evaluation.leaderboard.protocol import PROTOCOL, Round
from aaml.evaluation.ranking import Ranking
from aaml.evaluation.statistics import LEAST_SEEDS, Interval
from aaml.evaluation.tables import cells, markdown_table
from aaml.evaluation.zoo import ShippedModel, zoo
from aaml.sim.metrics import find_metric
from aaml.sim.tasks import find_task
from standings import KNOWS, KUBE_SCHEDULER, board_of, gain, signed

Folders = tuple[Path, ...]
Labels = tuple[tuple[str, str], ...]
MODEL_PAGES = Path("docs/models")
_PLACES = 3
_RESULTS = ["leaderboard task", "nodes", "metric", "mean [95% interval]", "reference", "difference", "verdict"]


def best_of_tasks(results: Folders, tasks: Labels) -> str:
    """Return the best policies of each task, with what they gain on kube-scheduler: a row a task.

    A row is of the largest size with episodes enough for a verdict. Policies that know lifetimes are left out. A gain
    is in percent of kube-scheduler's value; where a share is to be high, it is in percentage points.
    """
    board, rows = board_of(results), []
    for label, task in tasks:
        round_ = board.protocol.round(task)
        size, episodes = max((each for each in round_.sizes if each[1] >= LEAST_SEEDS), key=lambda each: each[0])
        (found,) = (each for each in board.rankings(task) if each.nodes == size)
        names = [name for name in _best_first(found, round_) if not name.startswith(KNOWS)]
        rule = next(name for name in names if board.policies[name].kind != "model")
        places = [_place(board, found, round_, name) for name in names[:_PLACES]]
        rows.append([label or task, f"{size} ({episodes})", *places, _place(board, found, round_, rule)])
    header = ["task", "nodes (episodes)", *(f"place {place + 1}" for place in range(_PLACES)), "best rule"]
    return _markdown(header, rows)


def leaderboard(results: Folders, task: str, metric: str = "") -> str:
    """Return a task's table by files of `aaml bench leaderboard`, in the protocol's first metric unless told."""
    table = board_of(results).table(task, metric, bold=True)
    return markdown_table(table) if len(table) else f"*Not run yet: `aaml bench leaderboard --task {task}`.*"


def leaderboard_policies(results: Folders) -> str:
    """Return the policies of such files: their files, by hash, and the code that ran them."""
    return markdown_table(board_of(results).entrants())


def leaderboard_protocol() -> str:
    """Return the protocol by which they are judged."""
    return markdown_table(protocol_table())


def model_index() -> str:
    """Return the models that ship: a row each, with a link to its page."""
    rows = [
        [f"[{name}]({MODEL_PAGES.name}/{name}.md)", f"`{model.task}`", _sentence(model.use)]
        for name, model in zoo().items()
    ]
    return _markdown(["model", "trained on", "what for"], rows)


def model_card(name: str, results: Folders) -> str:
    """Return the card of a model that ships: what made it, and how it did on the leaderboard, by its hash."""
    if name not in zoo():
        raise bad_value("name", name, f"one of {', '.join(zoo())}")
    model, board = zoo()[name], board_of(results)
    task = find_task(model.task)
    better = "higher" if task.higher_is_better else "lower"
    facts = [
        ["agent", f"`{model.agent}`"], ["trained on", f"`{model.task}`: {task.metric}, {better} is better"],
        ["training", model.trained], ["file", f"`models/{model.path.name}`, SHA-256 `{model.sha256[:16]}`"],
    ]  # fmt: skip
    rows = _standings(board, model)
    return "\n\n".join([
        _sentence(model.use), _markdown(["", ""], facts), f"```console\n$ {model.command}\n```",
        _markdown(_RESULTS, rows) if rows else "*Not on the leaderboard.*",
    ])  # fmt: skip


def missing_pages(root: Path = Path()) -> dict[Path, str]:
    """Return the pages of models that ship which are not there yet, with what each begins as."""
    pages = {root / MODEL_PAGES / f"{name}.md": name for name in zoo()}
    marker = "<!-- aaml: model-card name={} results=docs/results/leaderboard -->\n<!-- aaml: end -->\n"
    return {page: f"# {name}\n\n{marker.format(name)}" for page, name in pages.items() if not page.is_file()}


def _standings(board: Board, model: ShippedModel) -> list[list[str]]:
    """Return how a model did against the reference of each piece that it played, in the protocol's first metric."""
    policy = next((name for name, who in board.policies.items() if who.sha256 == model.sha256), "")
    rows = []
    for task in dict.fromkeys(piece.rpartition("-")[0] for piece, here in board.entries.items() if policy in here):
        for found in board.rankings(task):
            line = next((line for line in found.lines if line.policy == policy), None)
            if line is not None:
                texts = cells(line)
                place = [task, str(found.nodes), found.metric.name]
                rows.append([*place, texts["value"], found.reference, texts["difference"], f"**{texts['verdict']}**"])
    return rows


def _best_first(found: Ranking, round_: Round) -> Sequence[str]:
    """Return the policies, best first: by the mean, or by the mean ratio to the reference where episodes differ."""
    if not round_.relative:
        return [line.policy for line in found.lines]
    ratios = {line.policy: line.against.ratio.mean for line in found.lines if line.against and line.against.ratio}
    shown = {**ratios, found.reference: 1.0}
    return sorted(shown, key=lambda name: shown[name], reverse=found.metric.better == "higher")


def _place(board: Board, found: Ranking, round_: Round, name: str) -> str:
    if name == KUBE_SCHEDULER:
        return name
    if found.metric.better == "higher":
        (line,) = (
            line
            for each in board.results(found.task, found.nodes).compare(KUBE_SCHEDULER, found.metric.name)
            for line in each.lines
            if line.policy == name
        )
        return f"{name}: {_gain(line.against.difference.scaled(100.0), ' points', 1)}" if line.against else name
    percent = gain(board, found, name, KUBE_SCHEDULER, relative=round_.relative)
    return f"{name}: {_gain(signed(percent, -1.0), '%', 0)}" if percent else name


def _gain(interval: Interval, unit: str, digits: int) -> str:
    return f"{interval.mean:+.{digits}f}{unit} [{interval.low:+.{digits}f}, {interval.high:+.{digits}f}]"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    return markdown_table(pd.DataFrame(rows, columns=header))


def protocol_table() -> pd.DataFrame:
    """Return the protocol as a table: a row a task."""
    rows = []
    for each in PROTOCOL.rounds:
        metrics = "; ".join(f"{name} ({find_metric(name).better} is better)" for name in each.metrics)
        sizes = ", ".join(f"{nodes} ({episodes})" for nodes, episodes in each.sizes)
        rows.append([each.task, sizes, metrics, each.reference, each.knows])
    return pd.DataFrame(rows, columns=["task", "nodes (episodes)", "metrics", "reference", "knows all lifetimes"])
