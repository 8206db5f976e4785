"""Tune the linear scorer of the GPU-sharing benchmark by an evolution strategy, against FGD on paired seeds.

About an hour on two idle cores. The result runs by `aaml bench openb --model FILE`.
"""

from dataclasses import dataclass
from pathlib import Path

from aaml.commands.kinds import Flag
from aaml.commands.search import going_on, stoppable
from aaml.settings import Count, Natural, Settings

_OF = ("the two stages", "the second stage, the only one with --start")


@dataclass(frozen=True)
class Args(Settings):
    """`aaml search gpu`."""

    out: Path = Path("models/openb_linear_tuned.npz")
    """Where the weights go, after every generation; beside it the study."""
    start: Path | None = None
    """A file of weights to go on from, in the second stage alone; from FGD's gradient when not given."""
    generations: tuple[Count, ...] = ()
    """Generations of the two stages, with --start of the second; the published ones when not given."""
    population: tuple[Count, ...] = ()
    """Candidates of a generation, in the two stages; with --start in the second."""
    traces: tuple[str, ...] = ()
    """Traces to tune on, in both stages; others than the published ones leave those as unseen traces."""
    seed: Natural | None = None
    """Of the search; the published ones when not given."""
    workers: str = "2"
    """Processes (a number), ray for a Ray cluster of this machine, or ray:HOST:PORT for one that it is a node of."""
    resume: Flag = False
    """Go on with a search that was cut off, from FILE.study beside --out; or search longer."""


def run(args: Args) -> int:
    """Tune and say where the weights are."""
    from dataclasses import replace

    from aaml.errors import bad_value
    from aaml.openb.tune import STAGES, ScorerTuning, tune
    from aaml.study.study import folder_beside
    from aaml.workload.traces import trace_names

    left_out = 0 if args.start is None else 1
    played = STAGES[left_out:]
    kept = going_on(args, "generations", folder_beside(args.out))
    generations = kept if len(kept) == len(played) else args.generations  # of another start, which is refused
    for name, values in (("generations", args.generations), ("population", args.population)):
        if values and len(values) != len(played):
            many = f"{len(played)} whole numbers" if len(played) > 1 else "a whole number"
            raise bad_value(name, " ".join(map(str, values)), f"{many} from 1, for {_OF[left_out]}")
    known = trace_names()
    for trace in args.traces:
        if trace not in known:
            raise bad_value("traces", trace, f"some of {', '.join(known)}")
    stages = [
        replace(
            stage,
            traces=args.traces or stage.traces,
            generations=generations[i] if generations else stage.generations,
            population=args.population[i] if args.population else stage.population,
            seed=stage.seed if args.seed is None else args.seed + left_out + i,
        )
        for i, stage in enumerate(played)
    ]
    settings = ScorerTuning(args.out, stages, args.start, args.workers)
    outcome, interruption = stoppable(
        lambda stopped: tune(settings, resume=args.resume, stopped=stopped), settings.folder
    )
    if outcome is None:
        return interruption.status
    print(
        f"weights: {args.out}\nnext: aaml bench openb --policy fgd --model {args.out} --traces default --seeds 42..51"
    )
    if interruption.signal:
        print(f"stopped after {outcome[1]} generations; --resume goes on")
    return interruption.status
