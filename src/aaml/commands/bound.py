"""What an optimum allows: the best placement by a solver that knows all pods beforehand, beside the policies' results.

Needs ortools, which the extra `solver` brings.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Args:
    """What to bound."""

    what: tyro.conf.Positional[str] = "fragmentation"
    """a task whose pods stay (fragmentation, balance-batch, compress-batch), or openb for the published benchmark"""
    seeds: str = "1000..1019"
    """numbers and ranges: 42..51 or 42,45"""
    nodes: int | None = None
    """a task's number of nodes; its own when not given"""
    pods: int | None = None
    """a task's number of pods; its own when not given"""
    limit_s: float = 20.0
    """seconds for each seed of a task; bound and placement may then lie apart"""
    traces: str = "default"
    """openb's traces, with commas between them; "published" for the paper's 17"""
    columns: tuple[int, ...] = (100, 130)
    """openb's columns: percent of the GPU capacity that has arrived"""
    out: Path | None = None
    """folder for results.csv, as `aaml evaluate` writes it; by default runs/bound-WHAT"""


def run(args: Args) -> int:
    """Solve, write a row as each is known, and print what was found."""
    from aaml.commands.signals import ends_by
    from aaml.errors import bad_value
    from aaml.experiment.bound import BOUNDED

    if args.what not in (*BOUNDED, "openb"):
        raise bad_value("what", args.what, f"one of {', '.join(BOUNDED)}, openb")
    if not args.limit_s > 0:
        raise bad_value("limit-s", args.limit_s, "a number of seconds above 0")
    out = args.out or Path(f"runs/bound-{args.what}")
    stop: list[bool] = []
    with ends_by(lambda: stop.append(True)) as interruption:
        (_openb if args.what == "openb" else _task)(args, out, lambda: bool(stop))
    return interruption.status


def _task(args: Args, out: Path, stopped: "Callable[[], bool]") -> None:
    from tqdm import tqdm

    from aaml.experiment.bound import bound_rows
    from aaml.experiment.evaluate import parse_seeds
    from aaml.experiment.results import ResultFile
    from aaml.sim.tasks import find_task

    task = find_task(args.what)
    seeds = parse_seeds(args.seeds)
    file = ResultFile(out)
    for seed in tqdm(seeds, desc=f"bound {task.name}", unit="seed"):
        optimum, rows = bound_rows(task, seed, args.nodes, args.pods, limit_s=args.limit_s, stopped=stopped)
        if stopped():  # the solver was cut short
            break
        for row in rows:
            file.append(row)
        how = "proven" if optimum.proven else f"not proven in {args.limit_s:g} s"
        tqdm.write(f"seed {seed}: {task.metric} {optimum.value:.6g}, bound {optimum.bound:.6g} ({how})")
    print(f"{file.path}; policies beside it: aaml evaluate --task {task.name} --out {out}")


def _openb(args: Args, out: Path, stopped: "Callable[[], bool]") -> None:
    from tqdm import tqdm

    from aaml.experiment.evaluate import parse_seeds
    from aaml.experiment.openb import run_openb
    from aaml.experiment.openb_bench import parse_traces
    from aaml.experiment.openb_bound import column_bounds
    from aaml.experiment.results import ResultFile

    runs = [(trace, seed) for trace in parse_traces(args.traces) for seed in parse_seeds(args.seeds)]
    file = ResultFile(out)
    for trace, seed in tqdm(runs, desc="bound openb", unit="run"):
        if stopped():
            break
        fgd = run_openb(trace, seed, "fgd").allocation
        for column, bound in zip(args.columns, column_bounds(trace, seed, args.columns), strict=True):
            file.append({"trace": trace, "seed": seed, "column": column, "bound": round(bound, 3), "fgd": fgd[column]})
            tqdm.write(
                f"{trace}, seed {seed}, {column}% arrived: at most {bound:.2f}% allocated (FGD {fgd[column]:.2f})"
            )
    print(file.path)
