"""Tune the linear scorer of the GPU-sharing benchmark by an evolution strategy, against FGD on paired seeds.

About an hour on two quiet cores. The result runs by `aaml bench openb --model FILE`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.settings import Count, Natural, Settings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class Args(Settings):
    """`aaml search gpu`."""

    out: Path = Path("models/openb_linear_tuned.npz")
    """Where the weights go, after every generation; beside it a log (.jsonl)."""
    start: Path | None = None
    """A file of weights to go on from, in the second stage alone; from FGD's gradient when not given."""
    generations: tuple[Count, ...] = ()
    """Generations of the two stages; the published ones when not given."""
    population: tuple[Count, ...] = ()
    """Candidates of a generation, in the two stages."""
    traces: tuple[str, ...] = ()
    """Traces to tune on, in both stages; others than the published ones leave those as unseen traces."""
    seed: Natural | None = None
    """Of the search; the published ones when not given."""
    workers: str = "2"
    """Processes (a number), ray for a Ray cluster of this machine, or ray:HOST:PORT for one that it is a node of."""


def run(args: Args) -> int:
    """Tune and say where the weights are."""
    from dataclasses import replace

    from aaml.commands.signals import ends_by
    from aaml.errors import bad_value
    from aaml.openb.tune import STAGES, going_on, tune
    from aaml.outputs import output_file, refuse_finished
    from aaml.workload.traces import trace_names

    for name, values in (("generations", args.generations), ("population", args.population)):
        if values and len(values) != len(STAGES):
            raise bad_value(name, values, f"{len(STAGES)} whole numbers from 1")
    known = trace_names()
    for trace in args.traces:
        if trace not in known:
            raise bad_value("traces", trace, f"some of {', '.join(known)}")
    stages = [
        replace(
            stage,
            traces=args.traces or stage.traces,
            generations=args.generations[i] if args.generations else stage.generations,
            population=args.population[i] if args.population else stage.population,
            seed=stage.seed if args.seed is None else args.seed + i,
        )
        for i, stage in enumerate(STAGES)
    ]
    start = None
    if args.start is not None:
        start, stages = going_on(_weights(args.start)), stages[1:]
    stop: list[bool] = []
    with output_file(args.out), ends_by(lambda: stop.append(True)) as interruption:
        refuse_finished(args.out, args.start)
        tune(args.out, stages, start=start, workers=args.workers, stopped=lambda: bool(stop))
    print(
        f"weights: {args.out}\nnext: aaml bench openb --policy fgd --model {args.out} --traces default --seeds 42..51"
    )
    return interruption.status


def _weights(path: Path) -> "npt.NDArray[np.float64]":
    """Return the weights [groups, F] of a file."""
    from aaml.errors import bad_value
    from aaml.policies.gpu.scorer_file import load_scorer
    from aaml.policies.gpu_names import FEATURES, GROUPS

    weights = load_scorer(path).linear
    if weights is None or weights.shape != (len(GROUPS), len(FEATURES)):
        raise bad_value("start", path, "a file that `aaml search gpu` wrote, with weights for each group of pods")
    return weights
