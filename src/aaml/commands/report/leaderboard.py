"""Show the leaderboard's tables from result files: every task that they hold, or those that are named.

Files of another protocol, of other episodes or of other hashes are refused.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aaml.commands.kinds import Flag
from aaml.settings import Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml report leaderboard`."""

    results: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """folders that `aaml bench leaderboard` wrote, such as docs/results/leaderboard and your own"""
    task: tuple[str, ...] = ()
    """tasks to show; all that the files hold when none is given"""
    markdown: Flag = False
    """write the tables as Markdown"""


def run(args: Args) -> int:
    """Print a table for each task and metric, and who takes part."""
    from aaml.evaluation.leaderboard.board import Board
    from aaml.evaluation.tables import markdown_table, text_table

    board, draw = Board.read(*args.results), markdown_table if args.markdown else text_table
    for round_ in board.rounds(args.task):
        for metric in round_.metrics:
            unit = f", x {1 / round_.scale:g}" if round_.scale_of(metric) != 1 else ""
            table = board.table(round_.task, metric, bold=args.markdown)
            print(f"{'## ' * args.markdown}{round_.task}: {metric}{unit}\n\n{draw(table)}\n")
    print(draw(board.entrants()))
    return 0
