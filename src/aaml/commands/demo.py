"""Train the four agents briefly on the in-process cluster, evaluate them on unseen seeds, and leave a report.

Takes a few minutes on two cores. Writes runs/NAME (results.csv, figures, report.html), curves to tlogs/, models to
models/.
"""

from dataclasses import dataclass
from pathlib import Path

from aaml.settings import Settings
from aaml.training.settings import DemoConfig


@dataclass(frozen=True)
class Args(Settings):
    """`aaml demo`."""

    demo: DemoConfig = DemoConfig()
    out: Path | None = None
    """Folder; runs/demo_TIME when not given."""


def run(args: Args) -> int:
    """Run it and print the table and what to do next."""
    import sys
    import time

    import bokeh  # noqa: F401  (the report's figures: what is missing shows before the training, not after it)

    from aaml.commands.signals import ends_at_once
    from aaml.errors import bad_value
    from aaml.outputs import output_folder
    from aaml.training.demo import next_commands, run_demo

    folder = args.out or Path("runs") / f"demo_{time.strftime('%Y%m%d-%H%M%S')}"
    if (folder / "report.html").exists():
        raise bad_value("out", str(folder), "a folder without report.html, which ends a demonstration")
    try:
        with output_folder(folder), ends_at_once() as interruption:
            result = run_demo(args.demo, folder)
    except KeyboardInterrupt:
        print(f"ended; {folder} keeps what was done; go on with: aaml demo --out {folder}", file=sys.stderr)
        return interruption.status
    print(f"\n{result.comparison}")
    print(f"\nreport: {result.report}\nmodels: {', '.join(map(str, result.models))}\n\nNext, try:")
    for command in next_commands(result.models[0], result.folder):
        print(f"  {command}")
    return 0
