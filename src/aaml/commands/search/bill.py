"""Search a KubeSchedulerConfiguration and a NodePool of Karpenter together, for fewer dollars.

Searched are what `aaml search scheduler` searches, and consolidationPolicy, consolidateAfter, the budget, both
durations of batches and the instance types that may be provisioned. Waits and evictions are limited against what you
have. The result is measured on episodes that the search never saw. Where nothing is gained on these,
nothing is written.
"""

from dataclasses import dataclass
from pathlib import Path

from aaml.commands.kinds import Flag
from aaml.commands.search import going_on, next_line, stoppable
from aaml.settings import Count, Natural, NotNegative, Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml search bill`."""

    task: str = "bill"
    """A bill by name, that of a trace as bill@FOLDER, or one's own as FILE.py:NAME."""
    out: Path = Path("runs/search-bill")
    """Folder for kube-scheduler.yaml, nodepool.yaml and the search itself."""
    metric: str = "bill_per_core_hour"
    """What to be good at: dollars for a used core-hour, bill, cost (with waits and evictions priced), ..."""
    nodes: tuple[Count, ...] = ()
    """About how many nodes there are; the task's own number when none is given. Several count alike."""
    scheduler: str = ""
    """The KubeSchedulerConfiguration that you have, FILE.yaml or FILE.yaml#PROFILE; kube-scheduler's defaults when not
    given."""
    nodepool: Path | None = None
    """The NodePool that you have, FILE.yaml, whose other fields are kept; the task's own when not given."""
    wait_p99_more_s: NotNegative = 10.0
    """Seconds by which the 99th percentile of waits may be above that of what you have."""
    evicted_times: NotNegative = 1.0
    """Evictions, at most so many times those of what you have."""
    generations: Count = 20
    """How long to search."""
    population: Count = 16
    """Pairs that are tried in a generation."""
    episodes: Count = 32
    """Training episodes, and as many for validation; of a trace no more than it has windows for that."""
    seeds: str = ""
    """Held-out episodes: 1000..1019, or the windows of a trace's holdout, when empty."""
    seed: Natural = 0
    """Of the search."""
    workers: str = "2"
    """Processes (a number), ray for a Ray cluster of this machine, or ray:HOST:PORT for one that it is a node of."""
    resume: Flag = False
    """Go on with a search that was cut off, from --out; or search longer."""


def run(args: Args) -> int:
    """Search both together, and say what is gained and how it is used."""
    from dataclasses import replace

    from aaml.evaluation.evaluate import parse_seeds
    from aaml.policies.kube_scores.profile import PREFIX
    from aaml.sim.tasks import find_task
    from aaml.tuning.bill import BillTuning, Limits, tune

    found = find_task(args.task)
    settings = BillTuning(
        replace(found, sizes=args.nodes or found.sizes), args.out, args.metric,
        Limits(args.wait_p99_more_s, args.evicted_times), f"{PREFIX}{args.scheduler}" if args.scheduler else "",
        args.nodepool, args.generations, args.population, args.episodes,
        parse_seeds(args.seeds) if args.seeds else None, args.seed, args.workers,
    )  # fmt: skip
    settings = replace(settings, generations=going_on(args, "generations", settings.folder))
    outcome, interruption = stoppable(
        lambda stopped: tune(settings, resume=args.resume, stopped=stopped), settings.folder
    )
    if outcome is None:
        return interruption.status
    print(*outcome.held_out.first, *(() if outcome.files else ("nothing is written",)), "", sep="\n")
    print(f"{outcome.results.compare(metric=settings.metric, confidence=outcome.held_out.confidence)}\n")
    print("predicted, all intervals together at 95%:", *outcome.held_out.lines, sep="\n  ")
    if outcome.files:
        scheduler, pool = outcome.files
        pair = f"kube-scheduler tuned={PREFIX}{scheduler}+{pool}"
        print(f"{scheduler} and {pool}, as a pair")
        print(next_line(args.task, args.nodes, pair))
    if interruption.signal:
        print(f"stopped after {outcome.generations} generations; --resume goes on")
    return interruption.status
