"""The published GPU-sharing benchmark: run policies over the openb traces, write the curves, compare with the paper."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from aaml.policies.ties import TieBreak
from aaml.settings import Count, Positive, Settings

if TYPE_CHECKING:
    from aaml.openb.run import OpenbResult


@dataclass(frozen=True)
class Args(Settings):
    """What to run."""

    benchmark: tyro.conf.Positional[Literal["openb"]]
    """openb: Weng et al., USENIX ATC 2023"""
    policy: str = ""
    """names with commas between them, "published" for the paper's six, FILE.py:NAME for your own, or model files"""
    model: Path | None = None
    """a model file of any kind to run beside them; the benchmark's own scorers (.npz) run compiled"""
    traces: str = "default"
    """names with commas between them, "published" for the paper's 17, "all"; from AAML_TRACES"""
    seeds: str = "42..51"
    """numbers and ranges: 42..51 or 42,45"""
    out: Path = Path("results/openb")
    """folder for allocation.csv, frag_amount.csv, frag_ratio.csv, summary.json and the two figures"""
    tune: Positive = 1.3
    """how much GPU demand arrives, in terms of the cluster's capacity"""
    tie_break: TieBreak = "fixed"
    """which of equally scored nodes: the seed's fixed order (published), the smallest name, a random one"""
    raw_scores: bool = False
    """do not truncate scores to integers (the published setting truncates)"""
    jobs: Annotated[Count, tyro.conf.arg(metavar="N")] = 1
    """processes that runs are dealt out over"""
    plots: bool = True
    """draw allocation.png and fragmentation.png"""


def run(args: Args) -> int:
    """Run, save and compare; what has finished is saved after Ctrl-C too."""
    from aaml.evaluation.evaluate import parse_seeds
    from aaml.openb import bench, report
    from aaml.progress import progress_bar

    traces, seeds = bench.parse_traces(args.traces), parse_seeds(args.seeds, "--seeds")
    runs = bench.plan(traces, seeds, bench.parse_policies(args.policy), args.model)
    settings = bench.BenchSettings(args.tune, args.tie_break, args.raw_scores)
    results: list[OpenbResult] = []
    try:
        with progress_bar("replay openb", len(runs), "run") as bar:
            for result in bench.carry_out(runs, settings, args.jobs):
                results.append(result)
                bar.update()
    finally:
        if results:
            report.tell(report.keep(results, settings, args.out), len(runs), args.out)
    for path in report.plot(args.out) if args.plots else ():
        print(f"wrote {path}")
    return 0
