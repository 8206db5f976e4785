"""Run policies and trained models on a task over seeds, the same episodes for each, and compare them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Args:
    """`aaml evaluate`."""

    task: str = "balance"
    """Task by name; `aaml evaluate --task ?` lists them."""
    policies: tuple[str, ...] = ("kube-scheduler", "least-allocated", "least-variance", "random")
    """Policies by name, FILE.py:NAME, or LABEL=NAME."""
    models: tuple[str, ...] = ()
    """Model files, or LABEL=FILE."""
    seeds: str = "1000..1019"
    """Seeds of the episodes: ranges and numbers."""
    nodes: tuple[int, ...] = ()
    """Cluster sizes; the task's own when none is given."""
    pods: int | None = None
    """Pods of an episode; the task's own number when not given."""
    reference: str = ""
    """The policy that the others are compared with; kube-scheduler where it takes part, else the first, when empty."""
    out: Path = Path("runs/evaluate")
    """Folder for results.csv, figures and report.html."""
    workers: str = "2"
    """Processes (a number), ray for a Ray cluster of this machine, or ray:HOST:PORT for one that it is a node of."""


def run(args: Args) -> int:
    """Evaluate, write the folder and print the tables."""
    from aaml.errors import bad_value
    from aaml.experiment.evaluate import evaluate, parse_contestants, parse_seeds
    from aaml.experiment.report import Page
    from aaml.experiment.results import ResultFile, compare_all

    contestants = parse_contestants(args.policies, args.models)
    names = [contestant.name for contestant in contestants]
    reference = args.reference or ("kube-scheduler" if "kube-scheduler" in names else names[0])
    if reference not in names:
        raise bad_value("reference", reference, f"one of {', '.join(names)}")
    file = ResultFile(args.out)
    frame = evaluate(
        contestants, args.task, parse_seeds(args.seeds), args.nodes or (None,), pods=args.pods, workers=args.workers,
        on_row=file.append,
    )  # fmt: skip
    page = Page(f"AAML: {args.task}")
    learned = [contestant.name for contestant in contestants if contestant.learned]
    for text in compare_all(frame, reference, page=page, figures=args.out, learned=learned):
        print(f"\n{text}")
    print(f"\n{file.path}, {page.write(args.out / 'report.html')}")
    return 0
