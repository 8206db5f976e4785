"""How much a policy owes to the rule for equal scores, and to scores being whole numbers, on the GPU-sharing benchmark.

    python benchmarks/bench_ties.py --out docs/results/ties      # half a minute

Published: ties to the seed's fixed order of nodes, scores truncated. Learned scorers usually run with raw scores. Needs
the trace (`aaml trace fetch openb`).
"""

import argparse
import statistics
from itertools import groupby, product
from pathlib import Path
from typing import Any, get_args

from tqdm import tqdm

from aaml.evaluation.results import RESULTS, ResultFile
from aaml.policies.gpu.scorer_file import load_scorer
from aaml.policies.ties import TieBreak
from aaml.sim.openb import prepare, run_openb


def main() -> None:
    """Run every rule, write results.csv and print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="default")
    parser.add_argument("--model", type=Path, default=Path("models/openb_linear.npz"))
    parser.add_argument("--seeds", type=int, nargs="+", default=range(42, 47))
    parser.add_argument("--out", type=Path, default=Path("runs/ties"))
    args = parser.parse_args()
    (args.out / RESULTS).unlink(missing_ok=True)
    file, model = ResultFile(args.out), load_scorer(args.model)
    rows = []
    cases = list(product(("fgd", args.model.stem), get_args(TieBreak), (False, True), args.seeds))
    for policy, tie_break, raw, seed in tqdm(cases, unit="run"):
        prepared = prepare(args.trace, seed)
        scorer = None if policy == "fgd" else model.scorer(prepared.tables, prepared.devices)
        kind = "fgd" if scorer is None else model.policy
        result = run_openb(args.trace, seed, kind, scorer, tie_break=tie_break, truncate=not raw)
        row: dict[str, Any] = {
            "trace": args.trace, "policy": policy, "tie_break": tie_break, "raw_scores": raw, "seed": seed,
            "allocation_100": result.allocation[100], "allocation_130": result.allocation[130],
        }  # fmt: skip
        file.append(row)
        rows.append(row)
    print(f"{'policy':<14} {'ties':<7} {'scores':<10} {'@100':>6} {'@130':>6}")
    for (policy, tie_break, raw), group in groupby(
        rows, lambda row: (row["policy"], row["tie_break"], row["raw_scores"])
    ):
        runs = list(group)
        means = [statistics.fmean(run[column] for run in runs) for column in ("allocation_100", "allocation_130")]
        print(f"{policy:<14} {tie_break:<7} {'raw' if raw else 'truncated':<10} {means[0]:>6.2f} {means[1]:>6.2f}")


if __name__ == "__main__":
    main()
