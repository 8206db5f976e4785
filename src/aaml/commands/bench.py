"""The published GPU-sharing benchmark: run policies over the openb traces, write the curves, compare with the paper."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from aaml.errors import bad_value

if TYPE_CHECKING:
    from aaml.experiment.openb import OpenbResult
    from aaml.experiment.openb_tables import Comparison

PUBLISHED_TUNE = 1.3


@dataclass(frozen=True)
class Args:
    """What to run."""

    benchmark: tyro.conf.Positional[Literal["openb"]]
    """openb: Weng et al., USENIX ATC 2023"""
    policy: str = ""
    """names with commas between them, "published" for the paper's six, or FILE.py:NAME for your own"""
    model: Path | None = None
    """a learned scorer (.npz) to run beside them"""
    traces: str = "default"
    """names with commas between them, "published" for the paper's 17, "all"; from AAML_TRACES"""
    seeds: str = "42..51"
    """numbers and ranges: 42..51 or 42,45"""
    out: Path = Path("results/openb")
    """folder for allocation.csv, frag_amount.csv, frag_ratio.csv, summary.json and the two figures"""
    tune: float = 1.3
    """how much GPU demand arrives, in terms of the cluster's capacity"""
    tie_break: Literal["fixed", "name", "random"] = "fixed"
    """which of equally scored nodes: the seed's fixed order (published), the smallest name, a random one"""
    raw_scores: bool = False
    """do not truncate scores to integers (the published setting truncates)"""
    jobs: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """runs at a time, in threads"""
    plots: bool = True
    """draw allocation.png and fragmentation.png"""


def run(args: Args) -> int:
    """Run, save and compare; what has finished is saved after Ctrl-C too."""
    from tqdm import tqdm

    from aaml.experiment import openb_bench, openb_plots, openb_tables

    if args.jobs < 1:
        raise bad_value("--jobs", args.jobs, "a number of at least 1")
    if not args.tune > 0:
        raise bad_value("--tune", args.tune, "a number above 0")
    runs = openb_bench.plan(
        openb_bench.parse_traces(args.traces), openb_bench.parse_seeds(args.seeds),
        openb_bench.parse_policies(args.policy), args.model,
    )  # fmt: skip
    expected = openb_tables.expected_folder()
    settings = openb_bench.Settings(args.tune, args.tie_break, args.raw_scores)
    results: list[OpenbResult] = []
    try:
        for result in tqdm(openb_bench.carry_out(runs, settings, args.jobs), total=len(runs), unit="run"):
            results.append(result)  # noqa: PERF402  (kept when interrupted)
    finally:
        if results:
            published = openb_tables.published_tables(expected) if expected and args.tune == PUBLISHED_TUNE else None
            summary = openb_tables.compare(results, published)
            openb_tables.write_tables(results, args.out)
            openb_tables.write_summary(summary, results, dataclasses.asdict(settings), args.out)
            _print(summary, len(runs), args.out, published is not None)
    if args.plots:
        for path in openb_plots.draw(openb_tables.read_tables(args.out), args.out):
            print(f"wrote {path}")
    return 0


def _print(summary: "list[Comparison]", asked: int, out: Path, compared: bool) -> None:
    print(
        f"\n{'trace':<12} {'policy':<16} {'seeds':>5} {'alloc@100':>9} {'@130':>6} {'frag@130':>8} {'failed':>7} "
        f"{'decisions/s':>11}  {'against the published runs' if compared else ''}"
    )
    for line in summary:
        numbers = f"{line.allocation_100:>9.2f} {line.allocation_130:>6.2f} {line.frag_amount_130:>8.2f}"
        speed = f"{line.failed:>7.0f} {line.decisions_per_s:>11,.0f}"
        print(f"{line.trace:<12} {line.policy:<16} {line.seeds:>5} {numbers} {speed}  {line.verdict}")
    done = sum(line.seeds for line in summary)
    print(f"{done} of {asked} runs are in {out}")
    exact = [line for line in summary if line.policy != "random"]
    total = sum(line.compared for line in exact)
    if total:
        print(f"published runs matched in every column: {sum(line.matching for line in exact)} of {total}")
