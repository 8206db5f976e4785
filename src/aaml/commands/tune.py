"""Tune what needs no network: kube-scheduler's configuration, a NodePool beside it, who buys nodes, openb's scorer."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from msgspec import Meta

from aaml.settings import Count, Natural, NotNegative, Settings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class TuneKubeScheduler(Settings):
    """Search a KubeSchedulerConfiguration for a task or a recorded trace: nothing new to run on the cluster.

    Searched are the weights of score plugins, the strategy of NodeResourcesFit with its shape and resource weights, and
    percentageOfNodesToScore. What is told of the result comes from episodes that the search never saw. Where nothing is
    gained on these, nothing is written.
    """

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
    """Episodes held out: 1000..1019, or the windows of a trace's holdout, when empty."""
    relative: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Each episode counts in terms of what it comes to with --start: for episodes that differ much, as varied's do."""
    seed: Natural = 0
    """Of the search."""
    workers: str = "2"
    """Processes (a number), ray for a Ray cluster of this machine, or ray:HOST:PORT for one that it is a node of."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on with a search that was cut off, from FILE.search.json beside --out; or search longer."""


@dataclass(frozen=True)
class TuneBill(Settings):
    """Search a KubeSchedulerConfiguration and a NodePool of Karpenter together, for fewer dollars.

    Searched are what `aaml tune kube-scheduler` searches, and consolidationPolicy, consolidateAfter, the budget, both
    durations of batches and the instance types that may be bought. Waits and evictions are limited against what you
    have. What is told of the result comes from episodes that the search never saw. Where nothing is gained on these,
    nothing is written.
    """

    task: str = "bill"
    """A bill by name, that of a trace as bill@FOLDER, or one's own as FILE.py:NAME."""
    out: Path = Path("runs/tune-bill")
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
    """Episodes held out: 1000..1019, or the windows of a trace's holdout, when empty."""
    seed: Natural = 0
    """Of the search."""
    workers: str = "2"
    """Processes (a number), ray for a Ray cluster of this machine, or ray:HOST:PORT for one that it is a node of."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on with a search that was cut off, from --out; or search longer."""


@dataclass(frozen=True)
class TuneNodes(Settings):
    """Search a policy of nodes, which buys, drains and replaces them in Karpenter's place, for fewer dollars.

    An evolution strategy tunes its numbers. Waits and evictions are limited against kube-scheduler with the NodePool
    of the task. What is told of the result comes from episodes that the search never saw.
    """

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
    """Episodes held out: 1000..1019, or the windows of a trace's holdout, when empty."""
    seed: Natural = 0
    """Of the search."""
    workers: str = "2"
    """Processes (a number), ray for a Ray cluster of this machine, or ray:HOST:PORT for one that it is a node of."""


@dataclass(frozen=True)
class TuneOpenb(Settings):
    """Tune the linear scorer of the GPU-sharing benchmark by an evolution strategy, against FGD on paired seeds.

    About an hour on two quiet cores. The result runs by `aaml bench openb --model FILE`.
    """

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


Command = (
    Annotated[TuneKubeScheduler, tyro.conf.subcommand("kube-scheduler")]
    | Annotated[TuneBill, tyro.conf.subcommand("bill")]
    | Annotated[TuneNodes, tyro.conf.subcommand("nodes")]
    | Annotated[TuneOpenb, tyro.conf.subcommand("openb")]
)


@dataclass(frozen=True)
class Args:
    """Which of the commands, with its own flags."""

    command: tyro.conf.OmitSubcommandPrefixes[tyro.conf.OmitArgPrefixes[Command]]


def run(args: Args) -> int:
    """Do what the sub-command says and return the exit status."""
    match args.command:
        case TuneKubeScheduler():
            return _kube_scheduler(args.command)
        case TuneBill():
            return _bill(args.command)
        case TuneNodes():
            return _nodes(args.command)
        case TuneOpenb():
            return _openb(args.command)


def _kube_scheduler(args: TuneKubeScheduler) -> int:
    """Tune, and say what is gained and how it is used."""
    from dataclasses import replace

    from aaml.commands.signals import ends_by
    from aaml.errors import StoppedError
    from aaml.evaluation.evaluate import parse_seeds
    from aaml.policies.kube_scores.profile import PREFIX
    from aaml.sim.tasks import find_task
    from aaml.tuning.kube_scheduler import KubeSchedulerTuning, tune

    found = find_task(args.task)
    task = replace(found, sizes=args.nodes or found.sizes, pods=args.pods or found.pods)
    asked = KubeSchedulerTuning(
        task, args.out, args.metrics, f"{PREFIX}{args.start}" if args.start else "", args.plugins, args.generations,
        args.population, args.episodes, parse_seeds(args.seeds) if args.seeds else None, args.relative, args.seed,
        args.workers,
    )  # fmt: skip
    stop: list[bool] = []
    with ends_by(lambda: stop.append(True)) as interruption:
        try:
            outcome = tune(asked, resume=args.resume, stopped=lambda: bool(stop))
        except StoppedError:
            print(f"stopped: nothing is written{'; --resume goes on' if asked.state_file.is_file() else ''}")
            return interruption.status
    written = [each for each in outcome.found if each.file is not None]
    if not written:
        print(f"nothing was gained on {asked.judged_by[0]} of episodes held out: nothing is written")
    for each in outcome.found:
        for loss in each.worse:
            print(f"{each.file or 'what was found'} is worse than {asked.start or 'kube-scheduler'}: {loss}")
    for metric in asked.judged_by:
        print(f"{outcome.results.compare(metric=metric)}\n")
    for each in written:
        print(f"{each.file}, predicted, all intervals together at 95%:", *map(str, each.gains), sep="\n  ")
    if written:
        print(_next(args, f"kube-scheduler tuned={PREFIX}{written[0].file}"))
    if interruption.signal:
        print(f"stopped after {outcome.generations} generations; --resume goes on")
    return interruption.status


def _next(args: TuneKubeScheduler | TuneBill | TuneNodes, policies: str) -> str:
    """Return the line with the command that compares what was found, at the same sizes."""
    nodes = f" --nodes {' '.join(map(str, args.nodes))}" if args.nodes else ""
    return f"next: aaml evaluate --task {args.task}{nodes} --policies {policies}"


def _bill(args: TuneBill) -> int:
    """Tune both together, and say what is gained and how it is used."""
    from dataclasses import replace

    from aaml.commands.signals import ends_by
    from aaml.errors import StoppedError
    from aaml.evaluation.evaluate import parse_seeds
    from aaml.policies.kube_scores.profile import PREFIX
    from aaml.sim.tasks import find_task
    from aaml.tuning.bill import BillTuning, Limits, tune

    found = find_task(args.task)
    asked = BillTuning(
        replace(found, sizes=args.nodes or found.sizes), args.out, args.metric,
        Limits(args.wait_p99_more_s, args.evicted_times), f"{PREFIX}{args.scheduler}" if args.scheduler else "",
        args.nodepool, args.generations, args.population, args.episodes,
        parse_seeds(args.seeds) if args.seeds else None, args.seed, args.workers,
    )  # fmt: skip
    stop: list[bool] = []
    with ends_by(lambda: stop.append(True)) as interruption:
        try:
            outcome = tune(asked, resume=args.resume, stopped=lambda: bool(stop))
        except StoppedError:
            print(f"stopped: nothing is written{'; --resume goes on' if asked.state_file.is_file() else ''}")
            return interruption.status
    print(*outcome.judgment.first, *(() if outcome.files else ("nothing is written",)), "", sep="\n")
    print(f"{outcome.results.compare(metric=asked.metric)}\n")
    print("predicted, all intervals together at 95%:", *outcome.judgment.lines, sep="\n  ")
    if outcome.files:
        scheduler, pool = outcome.files
        pair = f"kube-scheduler tuned={PREFIX}{scheduler}+{pool}"
        print(f"{scheduler} and {pool}, as a pair")
        print(_next(args, pair))
    if interruption.signal:
        print(f"stopped after {outcome.generations} generations; --resume goes on")
    return interruption.status


def _nodes(args: TuneNodes) -> int:
    """Tune who buys nodes, and say what is gained and how it is used."""
    from dataclasses import replace

    from aaml.commands.signals import ends_by
    from aaml.errors import StoppedError
    from aaml.evaluation.evaluate import parse_seeds
    from aaml.sim.tasks import find_task
    from aaml.tuning.bill import Limits
    from aaml.tuning.nodes import NodePolicyTuning, tune

    found = find_task(args.task)
    asked = NodePolicyTuning(
        replace(found, sizes=args.nodes or found.sizes), args.out, args.policy, args.start, args.metric,
        Limits(args.wait_p99_more_s, args.evicted_times), args.generations, args.population, args.episodes,
        parse_seeds(args.seeds) if args.seeds else None, args.seed, args.workers,
    )  # fmt: skip
    stop: list[bool] = []
    with ends_by(lambda: stop.append(True)) as interruption:
        try:
            outcome = tune(asked, stopped=lambda: bool(stop))
        except StoppedError:
            print(f"stopped before it was judged: {args.out} has what was found so far")
            return interruption.status
    print(*outcome.judgment.first, "", sep="\n")
    print(f"{outcome.results.compare(metric=asked.metric)}\n")
    print("on episodes held out, all intervals together at 95%:", *outcome.judgment.lines, sep="\n  ")
    pair = f"{args.policy}+{args.out}"
    print(f"{args.out}\n{_next(args, f'kube-scheduler {pair}')}")
    if interruption.signal:
        print(f"stopped after {outcome.generations} generations; --start {args.out} goes on from there")
    return interruption.status


def _openb(args: TuneOpenb) -> int:
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
        raise bad_value("start", path, "a file that `aaml tune openb` wrote, with weights for each group of pods")
    return weights
