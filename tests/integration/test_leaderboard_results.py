"""The leaderboard's committed results: a part is run again, and the very same values have to come out."""

from pathlib import Path

import pytest

from aaml.evaluation.entries import PolicyEntry
from aaml.evaluation.leaderboard.board import Board
from aaml.evaluation.leaderboard.entry import BoardEntry, Who, episode_sha256, joined_sha256
from aaml.evaluation.leaderboard.protocol import PROTOCOL
from aaml.evaluation.leaderboard.run import play_episode
from aaml.evaluation.program import program_sha256

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "leaderboard"
PIECE = next(PROTOCOL.pieces(["balance"], [10]))
AGAIN = 3  # episodes


@pytest.mark.parametrize(
    ("spec", "name"), [("least-variance", ""), ("models/Linear_linear_balance_s7.json", "balance-linear")]
)
def test_a_committed_piece_comes_out_again_to_the_last_digit(spec: str, name: str) -> None:
    entered = PolicyEntry(str(ROOT / spec) if "/" in spec else spec, name)
    entry = BoardEntry.read(RESULTS / entered.name / "balance-10.json")
    assert entry.policy == Who.of(entered), "other weights ship: aaml bench leaderboard makes the results again"
    played = [play_episode(entered, PIECE.task, seed, 10)[0] for seed in PIECE.seeds[:AGAIN]]
    assert [row["mean_variance"] for row in played] == list(entry.scores["mean_variance"][:AGAIN])


def test_the_committed_episodes_are_those_of_the_protocol() -> None:
    entry = BoardEntry.read(RESULTS / "least-variance" / "balance-10.json")
    assert entry.data == joined_sha256([episode_sha256(PIECE.task.build(seed, 10)) for seed in PIECE.seeds])


def test_new_rows_fit_beside_the_committed_ones() -> None:
    named = {entry.code.episodes for here in Board.read(RESULTS).entries.values() for entry in here.values()} - {""}
    assert named == {program_sha256()}, "this program plays otherwise: look at what changed, or play these rows again"


def test_the_committed_files_belong_together_and_each_piece_has_its_reference() -> None:
    board = Board.read(RESULTS)
    ranked = [ranking for round_ in PROTOCOL.rounds for ranking in board.rankings(round_.task)]
    assert len(ranked) == len(board.entries) > 0
