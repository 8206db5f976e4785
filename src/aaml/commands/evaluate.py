"""Run policies and trained models on a task over seeds, the same episodes for each, and compare them.

`--bound` says beside them what an optimum allows that knows all pods beforehand, on tasks whose pods stay (a solver,
which the extra `solver` brings) and on bills. `--policies --bound` looks for that alone.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.commands.kinds import Flag
from aaml.outputs import writes
from aaml.settings import Count, Positive, Settings

if TYPE_CHECKING:
    from aaml.commands.signals import Interruption
    from aaml.evaluation.results import ResultFile


@dataclass(frozen=True)
class Args(Settings):
    """`aaml evaluate`."""

    task: str = "balance"
    """Task by name (`aaml show tasks` lists them), a trace by its folder or as
    compress@FOLDER, or one's own as FILE.py:NAME."""
    policies: tuple[str, ...] = ("kube-scheduler", "least-allocated", "least-variance", "random")
    """Policies by name, FILE.py:NAME, kube-scheduler:FILE.yaml (a KubeSchedulerConfiguration), or LABEL=NAME; on bills
    NAME+FILE or NAME+learned, which says what provisions the nodes, or NAME+high-node-utilization (the descheduler)."""
    models: tuple[str, ...] = ()
    """Model files, folders of trainings, or either as LABEL=FILE."""
    seeds: str = ""
    """Seeds of the episodes: ranges and numbers; 1000..1019, or every window of a trace's holdout, when empty."""
    nodes: tuple[Count, ...] = ()
    """Cluster sizes; the task's own when none is given."""
    pods: Count | None = None
    """Pods of an episode; the task's own number when not given."""
    reference: str = ""
    """The policy that the others are compared with; kube-scheduler where it takes part, else the first, when empty."""
    bound: Flag = False
    """What an optimum allows, too: fragmentation, balance-batch, compress-batch and bills have one. Bills of more than
    60 pods, or with GPUs, are packed by a heuristic; those of a recording go by requests alone."""
    limit_s: Positive = 20.0
    """Seconds of the solver for each seed with --bound; optimum and bound may lie apart then."""
    out: Path = Path("runs/evaluate")
    """Folder for results.csv, figures and report.html."""
    workers: str = "2"
    """Processes (a number), ray for a Ray cluster of this machine, or ray:HOST:PORT for one that it is a node of."""
    resume: Flag = False
    """Go on with an evaluation that was cut off: what the folder has already is not run again. Refused where a policy
    or the task was another one; without it, the latest policy of a label counts."""
    json: Flag = False
    """Print the comparison as JSON, an object a policy on a task at a size."""


@writes(folder="out")
def run(args: Args) -> int:
    """Evaluate, write the folder and print the tables."""
    from aaml.commands.signals import ends_at_once, ends_by
    from aaml.errors import UserError, bad_value
    from aaml.evaluation.bound import bounds, check_bounded
    from aaml.evaluation.entries import policy_entries
    from aaml.evaluation.evaluate import SEEDS, evaluate, parse_seeds, same_runs
    from aaml.evaluation.page import written
    from aaml.evaluation.report import write_report
    from aaml.evaluation.results import ResultFile, Results
    from aaml.evaluation.run_spec import RunSpec, write_run_specs
    from aaml.sim.tasks import find_task

    named, task = (*args.policies, *args.models), find_task(args.task)
    entered = policy_entries(named) if named or not args.bound else ()
    names = [entry.name for entry in entered]
    if args.reference not in ("", *names):
        raise bad_value("reference", args.reference, f"one of {', '.join(names)}")
    if args.bound:
        check_bounded(task)
    file, seeds = ResultFile(args.out), parse_seeds(args.seeds) if args.seeds else None
    known = file.known() if args.resume else None
    if known is not None:
        same_runs(known, entered, task, args.pods, args.out)
    results, stop = Results.of((), (), RunSpec.of(task, (), args.pods)), list[bool]()
    try:
        with ends_at_once() as interruption:
            if entered:
                results = evaluate(
                    entered, args.task, seeds, args.nodes,
                    pods=args.pods, workers=args.workers, known=known, on_row=file.append,
                )  # fmt: skip
        with ends_by(lambda: stop.append(True)) as interruption:
            if args.bound:
                sizes, episodes = args.nodes or task.sizes or (None,), seeds or task.episodes or SEEDS
                for row in bounds(
                    task, episodes, sizes, args.pods, others=[each.task(task) for each in entered],
                    limit_s=args.limit_s, stopped=lambda: bool(stop),
                ):  # fmt: skip
                    file.append(row)
                    results = results.plus([row])
    except KeyboardInterrupt:
        return _ended(file, interruption)
    if interruption.signal:
        return _ended(file, interruption)
    file.settle()
    write_run_specs(args.out, results.run_specs)
    comparison = results.compare(args.reference)
    print(comparison.to_json() if args.json else f"\n{comparison}")
    stream = sys.stderr if args.json else sys.stdout
    whole = Results.read(args.out)  # with what else was judged into the folder, as `aaml report compare` shows it
    try:
        results, comparison = whole, whole.compare(args.reference)
    except UserError as why:
        print(f"\nthe report has this evaluation alone: {args.out} holds others too, and {why}", file=stream)
    title = f"{args.task}: policies compared"
    report = written(lambda: write_report(results.runs, results.run_specs, [comparison], args.out, title))
    print("\n" + ", ".join(str(path) for path in (file.path, report) if path is not None), file=stream)
    return 0


def _ended(file: "ResultFile", interruption: "Interruption") -> int:
    """Say how it goes on, and return the exit status."""
    done = len(there.runs) if (there := file.known()) is not None else 0
    folder = file.path.parent
    print(f"ended; {done} runs are in {folder}; go on with: the same command and --resume", file=sys.stderr)
    return interruption.status
