"""Search a KubeSchedulerConfiguration for a task or a recorded trace: nothing new to run on the cluster.

Searched are the weights of score plugins, the strategy of NodeResourcesFit with its shape and resource weights, and
percentageOfNodesToScore. The result is measured on episodes that the search never saw. Where nothing is
gained on these, nothing is written.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aaml.commands.kinds import Flag
from aaml.commands.search import going_on, next_line, stoppable
from aaml.settings import Count, Natural, Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml search scheduler`."""

    task: str = "balance"
    """Task by name, a trace by its folder or as compress@FOLDER, or one's own as FILE.py:NAME."""
    out: Path = Path("kube-scheduler-tuned.yaml")
    """Where the KubeSchedulerConfiguration goes; with several metrics FILE-1, FILE-2 ... of it."""
    metrics: Annotated[tuple[str, ...], tyro.conf.arg(aliases=["--metric"], metavar="NAME ...")] = ()
    """What to be good at; the task's own goal when not given. Several: a Pareto front, a file each."""
    nodes: tuple[Count, ...] = ()
    """Cluster sizes; the task's own when none is given. Several count alike."""
    pods: Count | None = None
    """Pods of an episode; the task's own number when not given."""
    start: str = ""
    """The configuration that you have, FILE.yaml or FILE.yaml#PROFILE: gains are measured against it, and all else that
    it says is kept. kube-scheduler's defaults when not given."""
    plugins: tuple[str, ...] = ("NodeResourcesFit", "NodeResourcesBalancedAllocation")
    """Score plugins whose weights are searched. The others keep their share of the whole."""
    generations: Count = 40
    """How long to search."""
    population: Count = 32
    """Configurations that are tried in a generation."""
    episodes: Count = 64
    """Training episodes, and as many for validation; of a trace no more than it has windows for that."""
    seeds: str = ""
    """Held-out episodes: 1000..1019, or the windows of a trace's holdout, when empty."""
    relative: Flag = False
    """Each episode counts in terms of what it comes to with --start: for episodes that differ much, as varied's do."""
    seed: Natural = 0
    """Of the search."""
    workers: str = "2"
    """Processes (a number), ray for a Ray cluster of this machine, or ray:HOST:PORT for one that it is a node of."""
    resume: Flag = False
    """Go on with a search that was cut off, from FILE.study beside --out; or search longer."""


def run(args: Args) -> int:
    """Tune, and say what is gained and how it is used."""
    from dataclasses import replace

    from aaml.evaluation.evaluate import parse_seeds
    from aaml.policies.kube_scores.profile import PREFIX
    from aaml.sim.tasks import find_task
    from aaml.tuning.kube_scheduler import KubeSchedulerTuning, tune

    found = find_task(args.task)
    task = replace(found, sizes=args.nodes or found.sizes, pods=args.pods or found.pods)
    settings = KubeSchedulerTuning(
        task, args.out, args.metrics, f"{PREFIX}{args.start}" if args.start else "", args.plugins, args.generations,
        args.population, args.episodes, parse_seeds(args.seeds) if args.seeds else None, args.relative, args.seed,
        args.workers,
    )  # fmt: skip
    settings = replace(settings, generations=going_on(args, "generations", settings.folder))
    outcome, interruption = stoppable(
        lambda stopped: tune(settings, resume=args.resume, stopped=stopped), settings.folder
    )
    if outcome is None:
        return interruption.status
    written = [each for each in outcome.found if each.file is not None]
    if not written:
        print(f"nothing was gained on {settings.reported_metrics[0]} on held-out episodes: nothing is written")
    for each in outcome.found:
        for loss in each.worse:
            print(f"{each.file or 'what was found'} is worse than {settings.start or 'kube-scheduler'}: {loss}")
    for metric in settings.reported_metrics:
        print(f"{outcome.results.compare(metric=metric, confidence=outcome.confidence)}\n")
    for each in written:
        print(f"{each.file}, predicted, all intervals together at 95%:", *map(str, each.gains), sep="\n  ")
    print(outcome.look)
    if written:
        print(next_line(args.task, args.nodes, f"kube-scheduler tuned={PREFIX}{written[0].file}"))
    if interruption.signal:
        print(f"stopped after {outcome.generations} generations; --resume goes on")
    return interruption.status
