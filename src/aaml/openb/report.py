"""What is kept and said of runs of the GPU-sharing benchmark: tables, summary, figures, and the words in a terminal."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from aaml.openb.bench import BenchSettings
from aaml.openb.tables import (
    PolicySummary,
    expected_folder,
    published_tables,
    summarise,
    write_summary,
    write_tables,
)
from aaml.sim.openb import DEFAULT_TUNE, OpenbResult
from aaml.telemetry.tables import show, table

_NUMBERS = ("seeds", "alloc@100", "@130", "frag@130", "failed", "decisions/s")


def keep(results: list[OpenbResult], settings: BenchSettings, folder: Path) -> list[PolicySummary]:
    """Write the tables and summary.json; returns the summary, against the published runs where there are such."""
    expected = expected_folder()
    published = published_tables(expected) if expected and settings.tune == DEFAULT_TUNE else None
    summary = summarise(results, published)
    write_tables(results, folder)
    write_summary(summary, results, dataclasses.asdict(settings), folder)
    return summary


def tell(summary: Sequence[PolicySummary], asked: int, folder: Path) -> None:
    """Print the summary, and how many of the runs that were asked for it is of."""
    rows = [
        (
            line.trace, line.policy, line.seeds, f"{line.allocation_100:.2f}", f"{line.allocation_130:.2f}",
            f"{line.frag_amount_130:.2f}", f"{line.failed:.0f}", f"{line.decisions_per_s:,.0f}", line.verdict,
        )
        for line in summary
    ]  # fmt: skip
    compared = any(line.compared for line in summary)
    last = "against the published runs" if compared else ""
    show("", table(["trace", "policy", *_NUMBERS, last], rows, right=_NUMBERS))
    print(f"{sum(line.seeds for line in summary)} of {asked} runs are in {folder}")
    exact = [line for line in summary if line.policy != "random"]
    total = sum(line.compared for line in exact)
    if total:
        print(f"published runs matched in every column: {sum(line.matching for line in exact)} of {total}")
