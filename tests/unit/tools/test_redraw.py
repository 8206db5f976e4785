"""Documents drawn from result folders: right numbers, untouched text, and clear words for mistakes."""

import json
import statistics
from pathlib import Path

import pytest

from aaml.errors import UserError
from blocks import ratios_figure
from draw import Args, run
from keep import keep
from redraw import parse, redraw

ROOT = Path(__file__).parents[3]
HEAD = "# Title\r\n\nBefore, with a `<!-- aaml: end -->` in a line.\n\n"
TAIL = "\n  After  \n"
FIGURE = 'evaluate-figure results=r nodes=10 name=balance alt="two policies"'


def document(root: Path, *markers: str, text: str = "old\n") -> Path:
    path = root / "docs" / "page.md"
    path.parent.mkdir(exist_ok=True)
    blocks = "\n".join(f"<!-- aaml: {marker} -->\n{text}<!-- aaml: end -->" for marker in markers)
    path.write_bytes((HEAD + blocks + TAIL).encode())
    return Path("docs/page.md")


def content(root: Path, *markers: str) -> list[str]:
    """Return the lines that are drawn for markers."""
    path = document(root, *markers)
    redraw([path], root).write()
    return [line for line in (root / path).read_text().splitlines() if line.startswith(("|", "!"))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two policies on six seeds at two sizes: 2, 2, 2 against 3, 4, 2, twice each; three traces of the benchmark."""
    rows = ["task,nodes,policy,seed,mean_variance,latency_p50_ms,latency_p99_ms"]
    for nodes in (100, 10):
        for seed, theirs in enumerate((3, 4, 2) * 2):
            rows += [f"balance,{nodes},ours,{seed},2,0.25,0.75", f"balance,{nodes},theirs,{seed},{theirs},1,2"]
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "results.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "o").mkdir()
    lines = [",".join(["workload", "policy", "tune", "seed", *map(str, range(131))])]
    for trace, gain in (("default", 1.0), ("other", -0.5), ("third", 0.0)):
        for seed in range(42, 47):
            lines.append(",".join([trace, "fgd", "1.3", str(seed), *["90"] * 131]))
            lines.append(",".join([trace, "mine", "1.3", str(seed), *["90"] * 100, *[str(90 + gain)] * 31]))
    (tmp_path / "o" / "allocation.csv").write_text("\n".join(lines) + "\n")
    for number, values in enumerate(([3.0, 1.0], [4.0, 2.0])):
        folder = tmp_path / "runs" / f"dqn-{number}"
        folder.mkdir(parents=True)
        points = [
            {"time": 1.5, "kind": "scalar", "name": "Validation/x", "value": v, "step": 100 * i}
            for i, v in enumerate(values)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    (tmp_path / "b.csv").write_text('name,rate,cost\n"a, b",12,1\nc,9,2\n')
    (tmp_path / "soak.csv").write_text(
        "seconds,latency_p50_s,latency_p99_s,memory_mib,handles,loss\n10,0.1,0.2,100,9,\n20,0.1,0.3,101,9,0.5\n"
    )
    return tmp_path


def test_evaluate_says_what_a_hand_calculation_does(root: Path) -> None:
    header, _, ours, theirs = content(root, "evaluate results=r reference=theirs nodes=10")
    assert header == (
        "| policy | 10 nodes | difference from theirs | better than theirs on | against theirs | ms p50 | ms p99 |"
    )
    # Differences -1, -2, 0, twice: mean -1, error sqrt(0.8 / 6) = 0.365, t of five degrees 2.571, so 0.94 on each side.
    # Four seeds are better, two tied, which count by half: 5 / 6.
    assert ours == "| ours | **2 [2, 2]** | -1.0 [-1.9, -0.1] | 83% of seeds | better | 0.25 | 0.75 |"
    assert theirs.startswith("| theirs | 3.0 [2.1, 3.9] |  |  | reference | 1.00 | 2.00 |")


def test_ratios_stand_side_by_side_by_task_and_size(root: Path) -> None:
    header, _, ours, theirs = content(
        root, 'ratios results=r tasks="even=balance" policies="mine=ours, theirs" reference=theirs nodes=10,100'
    )
    assert header == "| policy | even, 10 nodes | even, 100 nodes |"
    # The third root of 2/3 * 2/4 * 2/2. Logs -0.405, -0.693, 0: error 0.1272; c = 0.0835, Hall's end 2.796 errors.
    assert ours == "| mine | **0.693 [0.500, 0.989]** | **0.693 [0.500, 0.989]** |"
    assert theirs == "| theirs | 1 | 1 |"


def test_ratios_may_be_of_another_metric_than_the_tasks(root: Path) -> None:
    (root / "r" / "results.csv").write_text(
        "task,nodes,policy,seed,mean_variance,bill\n"
        + "".join(
            f"balance,10,{who},{seed},1,{bill}\n" for seed in range(6) for who, bill in (("ours", 3), ("theirs", 4))
        )
    )
    _, _, ours, _ = content(root, "ratios results=r tasks=balance policies=ours,theirs reference=theirs metric=bill")
    assert ours == "| ours | **0.750 [0.750, 0.750]** |"


def _bills(folder: Path, program: str, seeds: range, **bills: float) -> None:
    folder.mkdir()
    lines = [
        f"balance,10,{who.replace('_', '-')},{seed},{bill},{program}" for seed in seeds for who, bill in bills.items()
    ]
    (folder / "results.csv").write_text("\n".join(["task,nodes,policy,seed,bill,code_sha256", *lines]) + "\n")


def test_ratios_pair_each_policy_with_the_reference_of_the_program_that_ran_it_last(root: Path) -> None:
    _bills(root / "old", "a1", range(8), theirs=4, ours=2, third=3)
    _bills(root / "new", "b2", range(6), theirs=5, ours=4, fluid_bound=1)
    marker = "results=old,new tasks=balance policies=theirs,ours,third,fluid-bound reference=theirs metric=bill"
    _, _, theirs, ours, third, bound = content(root, f"ratios {marker} seeds=0..5")
    assert theirs == "| theirs | 1 |"
    assert ours == "| ours | 0.800 [0.800, 0.800] |", "of the new program, not 0.5 of the old one"
    assert third == "| third | **0.750 [0.750, 0.750]** |", "the best, for a bound is no policy"
    assert bound == "| fluid-bound | 0.200 [0.200, 0.200] |"


def test_the_fluid_bound_that_nobody_reckoned_is_that_of_what_the_reference_ran(root: Path) -> None:
    rows = [
        f"balance,10,{who},{seed},{bill},{times}"
        for seed in range(6)
        for who, bill, times in (("a", 6, 2), ("b", 4, 1))
    ]
    (root / "r" / "results.csv").write_text("\n".join(["task,nodes,policy,seed,bill,fluid_ratio", *rows]))
    marker = "ratios results=r tasks=balance policies=b,fluid-bound reference=a metric=bill"
    assert content(root, marker)[2:] == ["| b | **0.667 [0.667, 0.667]** |", "| fluid-bound | 0.500 [0.500, 0.500] |"]


def test_a_figure_of_ratios_has_a_panel_a_size_and_a_row_a_policy(root: Path) -> None:
    figure = ratios_figure(
        (root / "r",), "balance", (("mine", "ours"), ("", "theirs")), "theirs", (10, 100), learned=("ours",)
    )
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["10 nodes", "100 nodes"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["mine"]
    (dot,) = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert dot.get_xdata()[0] == pytest.approx(100 * (1 - 0.693), abs=0.05)


def test_policies_are_chosen_ordered_and_named_and_sizes_stand_side_by_side(root: Path) -> None:
    header, _, first, second = content(
        root,
        'evaluate results=r reference=theirs nodes=10,100 policies="The others=theirs, ours" columns=value\n'
        '     scale=1000 unit="x 10<sup>-3</sup>"',
    )
    assert header == "| policy | 10 nodes, x 10<sup>-3</sup> | 100 nodes, x 10<sup>-3</sup> |"
    assert first.startswith("| The others | 3000 [2061, 3939] |")
    assert second == "| ours | **2000 [2000, 2000]** | **2000 [2000, 2000]** |"


def test_shares_say_what_part_of_a_policys_gain_another_one_has(root: Path) -> None:
    with (root / "r" / "results.csv").open("a") as file:
        for seed, value in enumerate((2.5, 3, 2) * 2):  # half of the way from theirs to ours on each seed
            file.write(f"balance,10,half,{seed},{value},1,1\n")
    header, _, first, second = content(
        root,
        'shares results=r tasks="Balance=balance" policies=half,ours whole=ours reference=theirs thousandths=balance',
    )
    assert header == "| task | nodes | episodes | theirs | half | ours | share that half has |"
    assert first == "| Balance | 10 | 6 | 3000 [2061, 3939] | 2500 [2031, 2969] | 2000 [2000, 2000] | 50% [50%, 50%] |"
    assert second == "| Balance | 100 | 6 | 3000 [2061, 3939] | nothing gained | 2000 [2000, 2000] | 0% |"
    ratios = content(
        root, "shares results=r tasks=balance policies=half,ours whole=ours reference=theirs relative=balance"
    )
    # geometric means: (2.5/3 * 3/4 * 1)^(1/3) and (2/3 * 2/4 * 1)^(1/3)
    assert ratios[2].startswith("| balance | 10 | 6 | 1 | 0.85 [")
    assert " | 0.69 [" in ratios[2]


def test_a_policy_that_is_not_shown_may_have_been_run_on_other_seeds(root: Path) -> None:
    with (root / "r" / "results.csv").open("a") as file:
        file.write("balance,10,third,7,1,1,1\n")
    marker = "evaluate results=r reference=theirs nodes=10 columns=improvement"
    assert content(root, f"{marker} policies=ours")[2:] == ["| ours | 83% of seeds |"]
    with pytest.raises(UserError, match="third was run on other seeds than theirs"):
        content(root, marker)


def test_openb_pairs_seeds_marks_traces_and_averages(root: Path) -> None:
    header, _, *rows = content(root, 'openb results=o policy=mine tuned="default,first stage=other" at=99,130')
    assert header == "| trace | tuned on | allocation @130 | above fgd @99 | above fgd @130 |"
    assert rows == [
        "| default | yes | 91.00 | +0.00 [+0.00, +0.00] | +1.00 [+1.00, +1.00] |",
        "| other | first stage | 89.50 | +0.00 [+0.00, +0.00] | -0.50 [-0.50, -0.50] |",
        "| third | no | 90.00 | +0.00 [+0.00, +0.00] | +0.00 [+0.00, +0.00] |",
        "| **mean of 3** |  | 90.17 | **+0.00 [+0.00, +0.00]** | **+0.17 [+0.17, +0.17]** |",
    ]
    (_, _, row) = content(root, "openb-summary results=o policies=tuned=mine at=130")
    assert row == "| tuned | +0.17 [+0.17, +0.17] | -0.50 (other) | 1 / 1 / 1 |"


def test_csv_shows_chosen_columns_as_they_stand(root: Path) -> None:
    assert content(root, 'csv file=b.csv columns="pods/s=rate,name"') == [
        "| pods/s | name |", "| --- | --- |", "| 12 | a, b |", "| 9 | c |",
    ]  # fmt: skip
    assert content(root, "csv file=b.csv columns=name only=rate=9")[2:] == ["| c |"]
    with pytest.raises(UserError, match="only: '7' is not accepted; expected one of 12, 9"):
        content(root, "csv file=b.csv only=rate=7")


def test_standings_name_the_best_learned_policy_the_best_rule_and_what_can_be_won(root: Path) -> None:
    board = ROOT / "docs/results/leaderboard"
    (root / "bound").mkdir()
    (root / "bound/results.csv").write_text("trace,seed,column,bound,fgd\ndefault,42,100,92,90\nother,42,100,91,89\n")
    marker = f'standings results={board} pieces="waits=waiting-10, churn@0.9-40" openb=o bound=bound'
    _, _, waits, churn, openb = content(root, marker)

    def mean(policy: str) -> float:
        entry = json.loads((board / policy / "waiting-10.json").read_text())
        return float(statistics.mean(entry["scores"]["waiting_mean_s"]))

    learned, rule, most = mean("waiting-linear"), mean("least-work-first"), mean("clairvoyant-least-work-first")
    assert waits.startswith(
        f"| waits | 10 | {learned:#.3g} (waiting-linear) | {rule:#.3g} (least-work-first) "
        f"| {mean('kube-scheduler'):#.3g} | {most:#.3g} | {(rule - learned) / (rule - most):.0%} ["
    )
    assert churn.startswith("| churn@0.9 | 40 | none ships | ")
    # At 100 one of three traces gains a point and one loses half of one: 0.5 / 3 of the two that the bound leaves.
    assert openb.endswith("| 90.2 (linear scorer) | 90.0 (fgd) |  | 91.5 | 8% |")


def test_means_are_taken_of_a_csv_file_and_stand_side_by_side(root: Path) -> None:
    (root / "m.csv").write_text("who,rule,at,seed,x\nb,new,1,0,2\nb,new,1,1,3\nb,new,2,0,9\na,old,1,0,4\na,old,1,9,8\n")
    assert content(root, "means file=m.csv by=who columns=x digits=1") == [
        "| who | x |", "| --- | --- |", "| b | 4.7 |", "| a | 6.0 |",
    ]  # fmt: skip
    assert content(root, "means file=m.csv by=at columns=x only=seed=0,seed=9,who=a")[2:] == ["| 1 | 6.00 |"]
    marker = 'means file=m.csv by="name=who,rule" columns="x @{}=x" across=at only=seed=0'
    assert content(root, marker) == [
        "| name | rule | x @1 | x @2 |", "| --- | --- | --- | --- |",
        "| b | new | 2.00 | 9.00 |", "| a | old | 4.00 |  |",
    ]  # fmt: skip


def test_the_text_around_blocks_stays_and_a_second_redraw_changes_nothing(root: Path) -> None:
    figures = (
        FIGURE,
        "openb-figure results=o policy=mine traces=other name=gains",
        'curves runs="DQN=runs/dqn-*" metric=Validation/x levels=r column=mean_variance nodes=10 name=drawn',
        'curves runs="DQN=runs/dqn-0" metric=Validation/x right_runs="DQN=runs/dqn-1" name=both',
        "soak file=soak.csv name=hour",
        "lines file=b.csv x=cost y=rate by=name limits=1=10 name=costs",
    )
    path = document(root, "csv file=b.csv", *figures)
    first = redraw([path], root)
    assert len(first.differences) == 1 + 2 * len(figures)
    assert (root / path).read_bytes().count(b"old") == 7  # nothing is written before write()
    first.write()
    text = (root / path).read_bytes().decode()
    assert text.startswith(HEAD)
    assert text.endswith(TAIL)
    assert "![two policies](figures/balance.png)" in text
    pictures = {file.name: file.read_bytes() for file in (root / "docs" / "figures").iterdir()}
    assert set(pictures) == {"balance.png", "gains.png", "drawn.png", "both.png", "hour.png", "costs.png"}
    assert not any(word in png for png in pictures.values() for word in (b"Software", b"matplotlib", b"tIME"))
    second = redraw([path], root)
    assert (second.files, second.differences) == ({}, ())


def test_check_changes_nothing_and_sees_old_tables_and_figures_of_other_data(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    path = document(root, "evaluate results=r reference=theirs", FIGURE)
    before = path.read_bytes()
    assert run(Args((path,), check=True)) == 1
    assert path.read_bytes() == before
    assert not (root / "docs" / "figures").exists()
    assert "docs/page.md:5: evaluate differs" in capsys.readouterr().out
    assert run(Args((path,))) == 0
    assert run(Args((path,), check=True)) == 0
    results = root / "r" / "results.csv"
    results.write_text(results.read_text().replace("balance,10,ours,0,2,", "balance,10,ours,0,2.5,"))
    capsys.readouterr()
    assert run(Args((path,), check=True)) == 1
    said = capsys.readouterr().out
    assert "evaluate differs" in said
    assert "docs/figures/balance.png differs" in said


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ("evaluat results=r", "block: 'evaluat' is not accepted; did you mean evaluate? Expected one of evaluate"),
        ("evaluate", "evaluate: results: is missing"),
        ("evaluate results=nowhere", "results: "),
        ("evaluate results=r node=10", "option: 'node' is not accepted; did you mean nodes? Expected one of results"),
        ("evaluate results=r reference=theirs nodes=ten", "nodes: 'ten' is not accepted; expected a whole number"),
        ("evaluate results=r reference=theirs nodes=7", "nodes: '7' is not accepted; expected one of 10, 100"),
        ("evaluate results=r reference=nobody", "'nobody' is not among ours, theirs"),
        (
            "evaluate results=r reference=theirs policies=x",
            "policies: 'x' is not accepted; expected one of ours, theirs",
        ),
        ("evaluate results=r reference=theirs columns=mean", "columns: 'mean' is not accepted; expected one of value"),
        ("evaluate results=r metric=nothing", "metric: 'nothing' is not accepted"),
        ("evaluate results=r results=r", "option: 'results=r' is not accepted; expected key=value, each key once"),
        ('evaluate results="r', "the marker cannot be read"),
        ("evaluate-figure results=r nodes=10", "name: '' is not accepted"),
        ("openb results=r policy=mine", "allocation.csv is missing"),
        ("openb results=o policy=nobody", "policy: 'nobody' is not accepted; expected one of fgd, mine"),
        ("openb results=o policy=mine at=140", "at: '140' is not accepted"),
        ("curves runs=runs/none-* metric=x name=c", "runs: 'runs/none-*' is not accepted; expected folders"),
        ("curves runs=runs/* metric=x name=c", "metric: 'x' is not accepted; expected one of Validation/x"),
        (
            "curves runs=runs/* metric=Validation/x right_runs=runs/* right_metric=y name=c",
            "metric: 'y' is not accepted",
        ),
        ("means file=none.csv by=name columns=rate", "not readable as CSV"),
        ("means file=b.csv by=who columns=rate", "by: 'who' is not accepted; expected one of name, rate, cost"),
        ("means file=b.csv by=cost columns=name", "could not convert string to float"),
        ("means file=b.csv by=cost columns=rate only=name=d", "only: 'd' is not accepted; expected one of a, b, c"),
        ("csv file=none.csv", "not readable as CSV"),
        ("lines file=b.csv x=name y=rate by=cost name=l", "could not convert string to float"),
        ("lines file=b.csv x=cost y=who by=name name=l", "y: 'who' is not accepted; expected one of name, rate, cost"),
        ("soak file=b.csv name=s", "no record of aaml bench soak: 'seconds'"),
    ],
)
def test_mistakes_are_told_in_one_line_with_file_and_line(root: Path, marker: str, words: str) -> None:
    path = document(root, "csv file=b.csv", marker)
    before = (root / path).read_bytes()
    with pytest.raises(UserError) as error:
        redraw([path], root)
    assert str(error.value).startswith("docs/page.md:8: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert (root / path).read_bytes() == before


def test_markers_that_do_not_pair_are_refused() -> None:
    with pytest.raises(UserError, match=r"^2: the block has no <!-- aaml: end -->$"):
        parse("text\n<!-- aaml: csv file=a -->\ntext\n")
    with pytest.raises(UserError, match=r"^1: the block has no <!-- aaml: end --> before line 2$"):
        parse("<!-- aaml: csv file=a -->\n<!-- aaml: csv file=b -->\n<!-- aaml: end -->\n")
    with pytest.raises(UserError, match=r"^3: <!-- aaml: end --> without a block before it$"):
        parse("\n\n<!-- aaml: end -->\n")
    assert parse("a line with <!-- aaml: csv --> in it") == []


def test_kept_folders_are_small_and_draw_the_same(root: Path) -> None:
    run_folder = root / "runs" / "dqn-0"
    points = [{"time": 1.5, "kind": "scalar", "name": "Loss", "value": i / 3, "step": i} for i in range(1000)]
    (run_folder / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    (run_folder / "config.json").write_text(json.dumps({"command": "aaml train", "platform": "p"}))
    files = keep(run_folder, root / "kept")
    assert sorted(file.name for file in files) == ["config.json", "metrics.jsonl"]
    assert json.loads((root / "kept" / "config.json").read_text()) == {"command": "aaml train"}
    kept = [json.loads(line) for line in (root / "kept" / "metrics.jsonl").read_text().splitlines()]
    assert len(kept) == 100
    assert kept[-1] == {"kind": "scalar", "name": "Loss", "value": 333.0, "step": 999}
    keep(root / "r", root / "kept")
    marker = "evaluate results={} reference=theirs nodes=10"
    assert content(root, marker.format("kept")) == content(root, marker.format("r"))
    with pytest.raises(UserError, match=r"keep: .* is not accepted; expected a folder of `aaml evaluate`"):
        keep(root / "docs", root / "other")
