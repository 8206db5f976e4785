"""The published GPU-sharing benchmark: run policies over the openb traces, write the curves, compare with the paper.

Weng et al., USENIX ATC 2023. `--bound` runs nobody: it says what a linear program that knows all pods beforehand
allows, beside FGD.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from aaml.commands.kinds import Flag
from aaml.outputs import writes
from aaml.policies.ties import TieBreak
from aaml.settings import Count, Positive, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aaml.openb.bench import BenchRun
    from aaml.sim.openb import OpenbResult


@dataclass(frozen=True)
class Args(Settings):
    """`aaml bench openb`."""

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
    bound: Flag = False
    """write what an optimum allows to results.csv, a row a trace, seed and column (the extra `solver`), and end"""
    columns: tuple[int, ...] = (100, 130)
    """columns of --bound: percent of the GPU capacity that has arrived"""


@writes(folder="out")
def run(args: Args) -> int:
    """Run, save and compare; what has finished is saved after Ctrl-C too."""
    from aaml.evaluation.evaluate import parse_seeds
    from aaml.openb import bench, plots, report
    from aaml.progress import progress_bar

    traces, seeds = bench.parse_traces(args.traces), parse_seeds(args.seeds, "--seeds")
    if args.bound:
        return _bound(args, traces, seeds)
    runs = bench.plan(traces, seeds, bench.parse_policies(args.policy), args.model)
    _note_looks(runs)
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
    for path in plots.draw(args.out) if args.plots else ():
        print(f"wrote {path}")
    return 0


def _bound(args: Args, traces: "Sequence[str]", seeds: "Sequence[int]") -> int:
    """Write a row as each is known, and say where they are."""
    from aaml.commands.signals import ends_by
    from aaml.errors import bad_value
    from aaml.evaluation.results import ResultFile
    from aaml.openb.bound import bound_traces

    if named := args.policy or args.model:
        raise bad_value("bound", args.bound, f"no policy beside it, such as {named}: it is compared with FGD")
    file, stop = ResultFile(args.out), list[bool]()
    with ends_by(lambda: stop.append(True)) as interruption:
        for row in bound_traces(traces, seeds, args.columns, stopped=lambda: bool(stop)):
            file.append(row)
    print(file.path)
    return interruption.status


def _note_looks(runs: "Sequence[BenchRun]") -> None:
    """Count the looks that formulas of searches are about to have at the published seeds, one for each trace."""
    from aaml.evaluation.zoo import model_file
    from aaml.evolve.front import note_looks, searched_in
    from aaml.evolve.settings import OPENB
    from aaml.policies.formulas.text import to_text
    from aaml.sim.openb import PUBLISHED_SEEDS
    from aaml.workload.traces import load_nodes

    looks = Counter((each.policy, each.trace) for each in runs if each.seed in PUBLISHED_SEEDS)
    formulas = {each.policy: each.scorer.formula for each in runs if each.scorer and each.scorer.formula}
    for (policy, trace), seeds in looks.items():
        formula, folder = formulas.get(policy), searched_in(model_file(Path(policy)))
        if formula is not None and folder is not None:
            kind = (f"{OPENB} {trace}", len(load_nodes()), seeds)
            note_looks(folder, to_text(formula), [kind], first_seed=PUBLISHED_SEEDS[0])
