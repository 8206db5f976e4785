"""Run policies over the leaderboard's fixed protocol: a file for each piece, that is a policy on a task at a size.

What is there is not run again, so that the same command goes on where it was interrupted. Where a model, file or AAML
itself has changed since, it is. `aaml report leaderboard` shows the tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aaml.outputs import writes
from aaml.settings import Count, Settings

if TYPE_CHECKING:
    from aaml.evaluation.leaderboard.run import Job


@dataclass(frozen=True)
class Args(Settings):
    """`aaml bench leaderboard`."""

    policy: tuple[str, ...] = ()
    """Names, model files, FILE.py:NAME and kube-scheduler:FILE.yaml, each with a label of its own as LABEL=POLICY; each
    task's usual ones when none is given."""
    task: tuple[str, ...] = ()
    """Tasks of the protocol; all when none is given."""
    nodes: tuple[Count, ...] = ()
    """Cluster sizes of the protocol; all when none is given."""
    out: Path = Path("runs/leaderboard")
    """Folder for the result files: POLICY/TASK-NODES.json."""
    workers: str = "1"
    """Processes (a number), ray for a Ray cluster of this machine, or ray:HOST:PORT for one that it is a node of."""


@writes(folder="out")
def run(args: Args) -> int:
    """Run what is missing, and say how it was evaluated."""
    from tqdm.auto import tqdm

    from aaml.commands.signals import ends_at_once
    from aaml.evaluation.leaderboard.run import carry_out, plan

    jobs = plan(args.policy, args.out, tasks=args.task, nodes=args.nodes)
    _note_looks(jobs)
    written = 0
    try:
        with ends_at_once() as interruption:
            for entry in carry_out(jobs, workers=args.workers):
                written += 1
                metric, values = next(iter(entry.scores.items()))
                mean = sum(values) / len(values)
                tqdm.write(f"{entry.piece}: {entry.policy.name}: {metric} {mean:.6g}, {len(values)} episodes")
    except KeyboardInterrupt:
        print(f"interrupted: {args.out} keeps {written} new pieces, and the same command goes on from there")
        return interruption.status
    print(f"{args.out}: {written} pieces run now, {len(jobs) - written} were there")
    print(f"beside the others, in the repository: aaml report leaderboard docs/results/leaderboard {args.out}")
    return 0


def _note_looks(jobs: Sequence["Job"]) -> None:
    """Count the looks that formulas of searches are about to have at sealed episodes, each in its search's folder."""
    from aaml.evaluation.leaderboard.protocol import PROTOCOL
    from aaml.evaluation.policies import policy_file
    from aaml.evaluation.zoo import model_file
    from aaml.evolve.front import note_looks, searched_in
    from aaml.policies.formula_file import load_formula
    from aaml.policies.formulas.text import to_text

    for job in jobs:
        file = policy_file(str(job.entered.spec))
        folder = None if file is None else searched_in(file := model_file(file))
        if file is not None and folder is not None and not job.done(PROTOCOL):
            text = to_text(load_formula(file).expression)
            note_looks(folder, text, [(job.piece.round.task, job.piece.nodes, len(job.piece.seeds))])
