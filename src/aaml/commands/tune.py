"""Tune the linear scorer of the GPU-sharing benchmark (openb) by an evolution strategy, against FGD on paired seeds.

About 20 minutes on two cores. The result runs by `aaml bench openb --model FILE`.
"""

from dataclasses import dataclass
from pathlib import Path

from aaml.settings import Count, Natural, Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml tune`."""

    out: Path = Path("models/openb_linear.npz")
    """Where the weights go, after every generation; beside it a log (.jsonl)."""
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
    from aaml.openb.tune import STAGES, tune
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
    stop: list[bool] = []
    with ends_by(lambda: stop.append(True)) as interruption:
        tune(args.out, stages, workers=args.workers, stopped=lambda: bool(stop))
    print(
        f"weights: {args.out}\nnext: aaml bench openb --policy fgd --model {args.out} --traces default --seeds 42..51"
    )
    return interruption.status
