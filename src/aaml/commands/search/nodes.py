"""Search a policy of nodes, which provisions, drains and replaces them in Karpenter's place, for fewer dollars.

An evolution strategy tunes its numbers. Waits and evictions are limited against kube-scheduler with the NodePool
of the task. The result is measured on episodes that the search never saw.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from aaml.commands.kinds import Flag
from aaml.commands.search import going_on, next_line, stoppable
from aaml.settings import Count, Natural, NotNegative, Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml search nodes`."""

    task: str = "bill"
    """A bill by name, that of a trace as bill@FOLDER, or one's own as FILE.py:NAME."""
    out: Path = Path("models/nodes.yaml")
    """Where the policy goes, after every generation."""
    policy: str = "first-come-packing"
    """Who places the pods, by name or as kube-scheduler:FILE.yaml."""
    start: Path | None = None
    """A policy of nodes to begin with; the usual numbers when not given."""
    metric: str = "bill_per_core_hour"
    """What to be good at: dollars for a used core-hour, bill, cost (with waits and evictions priced), ..."""
    nodes: tuple[Count, ...] = ()
    """About how many nodes there are; the task's own number when none is given. Several count alike."""
    wait_p99_more_s: NotNegative = 10.0
    """Seconds by which the 99th percentile of waits may be above that of kube-scheduler."""
    evicted_times: NotNegative = 1.0
    """Evictions, at most so many times kube-scheduler's."""
    generations: Count = 30
    """How long to search."""
    population: Annotated[int, Meta(ge=4)] = 12
    """Policies that are tried in a generation."""
    episodes: Count = 12
    """Training episodes of a generation, drawn anew each time; twice as many for validation."""
    seeds: str = ""
    """Held-out episodes: 1000..1019, or the windows of a trace's holdout, when empty."""
    seed: Natural = 0
    """Of the search."""
    workers: str = "2"
    """Processes (a number), ray for a Ray cluster of this machine, or ray:HOST:PORT for one that it is a node of."""
    resume: Flag = False
    """Go on with a search that was cut off, from FILE.study beside --out; or search longer."""


def run(args: Args) -> int:
    """Tune who provisions nodes, and say what is gained and how it is used."""
    from dataclasses import replace

    from aaml.evaluation.evaluate import parse_seeds
    from aaml.sim.tasks import find_task
    from aaml.tuning.bill import Limits
    from aaml.tuning.nodes import NodePolicyTuning, tune

    found = find_task(args.task)
    settings = NodePolicyTuning(
        replace(found, sizes=args.nodes or found.sizes), args.out, args.policy, args.start, args.metric,
        Limits(args.wait_p99_more_s, args.evicted_times), args.generations, args.population, args.episodes,
        parse_seeds(args.seeds) if args.seeds else None, args.seed, args.workers,
    )  # fmt: skip
    settings = replace(settings, generations=going_on(args, "generations", settings.folder))
    outcome, interruption = stoppable(
        lambda stopped: tune(settings, resume=args.resume, stopped=stopped), settings.folder
    )
    if outcome is None:
        return interruption.status
    print(*outcome.held_out.first, "", sep="\n")
    print(f"{outcome.results.compare(metric=settings.metric, confidence=outcome.held_out.confidence)}\n")
    print("on held-out episodes, all intervals together at 95%:", *outcome.held_out.lines, sep="\n  ")
    pair = f"{args.policy}+{args.out}"
    print(f"{args.out}\n{next_line(args.task, args.nodes, f'kube-scheduler {pair}')}")
    if interruption.signal:
        print(f"stopped after {outcome.generations} generations; --resume goes on")
    return interruption.status
