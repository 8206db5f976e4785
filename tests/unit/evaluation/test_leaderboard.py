"""The leaderboard: pieces that resume, files that name what made them, and one line for what does not belong there."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from aaml.cli import run
from aaml.errors import UserError
from aaml.evaluation.evaluate import evaluate
from aaml.evaluation.leaderboard import run as runs
from aaml.evaluation.leaderboard.board import Board
from aaml.evaluation.leaderboard.entry import BoardEntry, Code
from aaml.evaluation.leaderboard.protocol import PROTOCOL, Protocol, Round
from aaml.evaluation.statistics import share_of_gain

OWN = "def emptiest(context):\n    return -context.state.requested[:, 0]\n"
SMALL = Protocol(
    7, 50_000,
    (
        Round("seedc", ((3, 3),), ("mean_variance",), "least-variance", ("least-variance", "random"), scale=1000),
        Round("compress", ((2, 2),), ("mean_empty_fraction",), "random", ("random",), knows="clairvoyant"),
    ),
)  # fmt: skip


def carry_out(folder: Path, *policies: str, **options) -> list[BoardEntry]:
    return list(runs.carry_out(runs.plan(policies, folder, protocol=SMALL, **options), progress=False, protocol=SMALL))


def refused(folder: Path, *more: Path) -> str:
    with pytest.raises(UserError) as error:
        Board.read(folder, *more, protocol=SMALL)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The usual policies of the small protocol."""
    carry_out(tmp_path / "r", tasks=("seedc",))
    return tmp_path / "r"


def changed(path: Path, content: dict) -> None:
    """Write a file as its program would have, with other content."""
    entry = BoardEntry.read(path)
    fields = {name: getattr(entry, name) for name in entry.__slots__} | content
    BoardEntry(**fields).write(path)


def test_the_values_are_those_of_an_evaluation(folder: Path) -> None:
    entry = BoardEntry.read(folder / "random" / "seedc-3.json")
    theirs = evaluate("random", "seedc", (50_000, 50_001, 50_002), 3, progress=False).frame()
    assert entry.seeds == (50_000, 50_001, 50_002)
    assert list(entry.scores["mean_variance"]) == theirs["mean_variance"].tolist()


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = []

    def play(policy_entry, task, seed, nodes):
        played.append((policy_entry.name, seed))
        if len(played) == 5:
            raise KeyboardInterrupt
        return original(policy_entry, task, seed, nodes)

    original = runs.play_episode
    monkeypatch.setattr(runs, "play_episode", play)
    with pytest.raises(KeyboardInterrupt):
        carry_out(tmp_path, tasks=("seedc",))
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["least-variance"]
    assert [entry.policy.name for entry in carry_out(tmp_path, tasks=("seedc",))] == ["random"]
    assert len(played) == 5 + 3
    assert carry_out(tmp_path, tasks=("seedc",)) == []


def test_a_policy_of_ones_own_is_named_by_its_files_hash_and_run_again_when_it_changes(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(OWN)
    (entry,) = carry_out(tmp_path / "r", f"{mine}:emptiest", tasks=("seedc",))
    # printf 'def emptiest(context):\n    return -context.state.requested[:, 0]\n' | sha256sum
    assert entry.policy.sha256 == "cd499bca9ceec504b08b4fe57c63754cb54a2b291459c58b6a41ae7bc8689751"
    assert (entry.policy.name, entry.policy.kind, entry.policy.spec) == ("emptiest", "own", "mine.py:emptiest")
    text = (tmp_path / "r" / "emptiest" / "seedc-3.json").read_text()
    assert str(tmp_path) not in text
    assert carry_out(tmp_path / "r", f"{mine}:emptiest", tasks=("seedc",)) == []
    mine.write_text(OWN + "# better\n")
    assert len(carry_out(tmp_path / "r", f"{mine}:emptiest", tasks=("seedc",))) == 1


def test_who_buys_the_nodes_of_a_bill_is_part_of_the_policy(tmp_path: Path) -> None:
    bill = Protocol(7, 50_000, (Round("bill", ((5, 1),), ("bill",), "kube-scheduler-packing", ()),))
    pool = tmp_path / "pool.yaml"
    spec = "spec: {disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 30s}}"
    pool.write_text(f"apiVersion: karpenter.sh/v1\nkind: NodePool\n{spec}\n")
    buyers = {"a": "", "b": "+learned", "c": f"+{pool}"}
    policies = [f"{name}=kube-scheduler-packing{buyer}" for name, buyer in buyers.items()]
    entries = list(runs.carry_out(runs.plan(policies, tmp_path / "r", protocol=bill), progress=False, protocol=bill))
    told = {each.policy.name: each.policy for each in entries}
    assert (told["a"].spec, told["a"].sha256) == ("kube-scheduler-packing", "")
    assert (told["b"].spec, told["b"].sha256) == ("kube-scheduler-packing+learned", "")
    assert told["c"].spec == "kube-scheduler-packing+pool.yaml"
    assert told["c"].sha256 == hashlib.sha256(pool.read_bytes()).hexdigest()
    theirs = evaluate(policies, "bill", (50_000,), 5, progress=False).frame().set_index("policy")["bill"]
    assert {each.policy.name: each.scores["bill"] for each in entries} == {name: (theirs[name],) for name in "abc"}
    assert len(set(theirs)) == 3
    assert len(Board.read(tmp_path / "r", protocol=bill).entries["bill-5"]) == 3


def test_what_cannot_be_run_is_said_before_anything_runs(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(OWN)
    for policies, options, said in (
        (("nobody",), {}, "policy: 'nobody' is not accepted"),
        ((f"fgd={mine}:emptiest",), {}, "policy: 'fgd' is not accepted"),
        ((f"../x={mine}:emptiest",), {}, "policy: '../x' is not accepted"),
        ((), {"tasks": ("balance",)}, "task: 'balance' is not accepted; expected one of seedc, compress"),
        ((), {"nodes": (4,)}, "nodes: 4 is not accepted; expected one of 2, 3"),
        (("openb-formula",), {}, "policy openb-formula: scores GPUs, and no pod of seedc asks for one"),
        (("openb-linear",), {}, "policy openb-linear: scores GPUs, and no pod of seedc asks for one"),
    ):
        with pytest.raises(UserError) as error:
            carry_out(tmp_path / "r", *policies, **options)
        assert said in str(error.value)
    assert not (tmp_path / "r").exists()


def test_files_that_do_not_belong_together_are_refused_in_a_line(folder: Path, tmp_path: Path) -> None:
    assert "expected a folder that `aaml bench leaderboard` wrote" in refused(tmp_path / "none")
    path = folder / "random" / "seedc-3.json"
    whole = path.read_text()
    path.write_text(whole.replace("50002", "50003"))
    assert "it was changed after it was written" in refused(folder)
    path.write_text(whole)
    for content, said in (
        ({"protocol": 1}, "protocol 1 is not accepted; expected 7"),
        ({"data": "0" * 64}, "data 000000000000 is not that of"),
        ({"code": Code("0.1", "0" * 64, "0" * 12)}, "was played by another program"),
        ({"seeds": (1, 2, 3)}, "its seeds or metrics are not those of seedc-3 in protocol 7"),
        ({"nodes": 4}, "seedc-4 is no piece of protocol 7"),
        ({"scores": {"mean_variance": (1.0,)}}, "mean_variance has 1 values for 3 seeds"),
    ):
        changed(path, content)
        assert said in refused(folder)
        path.write_text(whole)
    other = tmp_path / "other" / "seedc-3.json"
    other.parent.mkdir()
    other.write_text(whole)
    assert Board.read(folder, tmp_path / "other", protocol=SMALL).policies.keys() == {"least-variance", "random"}
    changed(other, {"scores": {"mean_variance": (1.0, 2.0, 3.0)}})
    assert "seedc-3 of random is there twice" in refused(folder, tmp_path / "other")
    own = BoardEntry.read(path).policy
    changed(other, {"policy": type(own)("random", "own", "mine.py:random", "1" * 64)})
    assert "policy random (mine.py:random 111111111111) is not that of" in refused(folder, tmp_path / "other")


def board_of(folder: Path, protocol: Protocol, **scores: tuple[float, ...]) -> Board:
    """Return the board where policies have these values, twice each."""
    for name, values in scores.items():
        content = {"seeds": tuple(range(50_000, 50_006)), "scores": {"mean_variance": values * 2}}
        changed(folder / name.replace("_", "-") / "seedc-3.json", content)
    return Board.read(folder, protocol=protocol)


def test_tables_hold_losses(folder: Path) -> None:
    six = Protocol(7, 50_000, (replace(SMALL.rounds[0], sizes=((3, 6),)),))
    board = board_of(folder, six, least_variance=(0.001, 0.002, 0.003), random=(0.002, 0.005, 0.002))
    # 1, 2, 3: error sqrt(0.8 / 6) = 0.365, t of five degrees 2.571. Differences 1, 3, -1: error sqrt(3.2 / 6) = 0.730.
    # 2, 5, 2: error 0.632, skewness 1 / sqrt(2), so c = 0.289, and Hall's upper end is 3 + 0.632 x 3.898.
    assert board.table("seedc", bold=True).to_numpy().tolist() == [
        ["least-variance", "**2.0 [1.1, 2.9]**", "reference"],
        ["random", "3.0 [1.4, 5.5]", "+1.0 [-0.9, +2.9]"],
    ]
    worse = board_of(folder, six, random=(0.002, 0.003, 0.004))
    assert worse.table("seedc").to_numpy()[1, 2] == "+1 [+1, +1] worse"


def test_few_episodes_decide_nothing_and_the_table_says_so(folder: Path) -> None:
    table = Board.read(folder, protocol=SMALL).table("seedc")
    assert list(table.columns) == ["policy", "3 nodes (3 episodes: undecided)", "against least-variance"]
    assert not table["against least-variance"].str.contains("worse").any()
    relative = Protocol(7, 50_000, (replace(SMALL.rounds[0], relative=True),))
    table = Board.read(folder, protocol=relative).table("seedc")
    assert list(table.columns) == ["policy", "3 nodes, of least-variance's (3 episodes: undecided)"]
    assert not table.iloc[:, 1].str.contains("worse").any()


def test_episodes_that_differ_more_than_policies_are_shown_in_terms_of_the_reference(folder: Path) -> None:
    relative = Protocol(7, 50_000, (replace(SMALL.rounds[0], sizes=((3, 6),), relative=True),))
    board = board_of(folder, relative, least_variance=(0.001, 0.1, 1.0), random=(0.002, 0.2, 2.0))
    table = board.table("seedc", bold=True)
    assert list(table.columns) == ["policy", "3 nodes, of least-variance's"]
    assert table.to_numpy().tolist() == [["least-variance", "**reference**"], ["random", "2 [2, 2] worse"]]
    # Quarter, equal, double: the geometric mean is a half's cube root, 0.79, and the interval holds 1.
    first, second = board_of(folder, relative, random=(0.00025, 0.1, 2.0)).table("seedc").to_numpy().tolist()
    assert (first[0], second) == ("random", ["least-variance", "reference"])
    assert first[1].startswith("0.8 [")
    assert "worse" not in first[1]


def test_the_share_of_a_gain_is_a_ratio_of_means() -> None:
    """Gains 1, 3 of 2, 4: variances and covariance are 1.2, times t^2 / 6 = 1.1013 that is 1.3216.

    Fieller's shares are (4.6784 -+ sqrt(4.6784^2 - 7.6784 x 2.6784)) / 7.6784.
    """
    share = share_of_gain((2.0, 4.0) * 3, (1.0, 1.0) * 3, (3.0, 5.0) * 3, "higher")
    assert share is not None
    assert share.mean == pytest.approx((1 + 3) / (2 + 4))
    assert (share.low, share.high) == pytest.approx((0.4596, 0.7590), abs=2e-4)
    assert share_of_gain((2.0, 4.0) * 3, (1.0, 1.0) * 3, (3.0, 5.0) * 3, "lower") is None
    assert share_of_gain((2.0, 4.0) * 3, (1.0, 4.0) * 3, (3.0, 3.0) * 3, "higher") is None  # +2 and -1


def test_the_command_runs_draws_and_tells_mistakes_in_a_line(tmp_path, monkeypatch, capsys) -> None:
    for function in (runs.plan, runs.carry_out):
        monkeypatch.setitem(function.__kwdefaults__, "protocol", SMALL)
    assert run("bench leaderboard", ["--task", "seedc", "--out", str(tmp_path)]) == 0
    assert "2 pieces run now, 0 were there" in capsys.readouterr().out
    assert run("report leaderboard", [str(tmp_path)]) == 2
    assert "protocol 7 is not accepted; expected 1" in capsys.readouterr().err


def test_protocol_1_is_what_it_was() -> None:
    """Results are compared by the version's number alone: whoever changes what is asked gives it another one."""
    asked = [(each.task, each.sizes, each.metrics, each.reference, each.knows) for each in PROTOCOL.rounds]
    empty = ("mean_empty_fraction",)
    gpus = ("mean_gpu_waiting", "mean_whole_gpus", "mean_gpu_allocation")
    assert (PROTOCOL.version, PROTOCOL.first_seed) == (1, 50_000)
    assert asked == [
        ("balance", ((10, 30), (37, 20), (100, 10), (400, 4)), ("mean_variance",), "least-variance", ""),
        ("varied", ((10, 60), (40, 30), (100, 10)), ("mean_variance",), "least-variance", ""),
        ("compress", ((10, 50), (40, 20), (100, 10)), empty, "most-allocated", "clairvoyant"),
        ("waiting", ((10, 50), (20, 20)), ("waiting_mean_s", "waiting_p99_s"), "kube-scheduler", ""),
        *(
            (f"services-and-jobs@{load}", ((10, 20), (40, 5)), empty, "best-fit", "clairvoyant")
            for load in (0.2, 0.35, 0.5)
        ),
        *((f"churn@{load}", ((10, 20), (40, 10)), gpus, "fgd", "clairvoyant") for load in (0.8, 0.9, 1.0)),
        ("bill", ((20, 30), (100, 10)), ("cost", "bill", "waiting_p99_s", "evicted"), "kube-scheduler-packing", ""),
        ("bill-openb", ((20, 10),), ("cost", "bill", "waiting_p99_s", "evicted"), "kube-scheduler-packing", ""),
    ]  # fmt: skip
