"""Serve one page to look at runs: the cluster over time, two policies side by side, decisions taken apart, curves.

RUNS are folders of `aaml evaluate` and `aaml train`, whose curves are followed while they run, and shadow logs.
"""

from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aaml.errors import UserError
from aaml.outputs import writes
from aaml.settings import Natural, Port, Settings


@dataclass(frozen=True)
class Args(Settings):
    """`aaml lab`."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """folders of `aaml evaluate` and `aaml train`, and shadow logs (FILE.jsonl)"""
    kubeconfig: Path | None = None
    """look at a live Kubernetes cluster instead, from now on"""
    policies: tuple[str, ...] = ("kube-scheduler",)
    """of a live cluster: the policy that its decisions are explained by, and others that are shown beside it"""
    instance_types: Path | None = None
    """file with prices of nodes, as `aaml bill` takes it; without it nodes' labels and made-up types count"""
    export: Path | None = None
    """write the page as one file that opens without a network, and end"""
    decisions: Natural = 300
    """decisions that are explained in an exported page, spread over each run"""
    port: Port = 8890
    """port on 127.0.0.1; 0 takes any that is free"""


@writes(file="export")
def run(args: Args) -> int:
    """Serve until Ctrl-C, or write the file."""
    import sys

    from aaml.extras import load

    load("bokeh")  # of aaml[lab], which brings all that is needed
    from aaml.lab.library import Library

    if bool(args.runs) == (args.kubeconfig is not None):
        raise UserError("runs: expected folders of `aaml evaluate` or `aaml train`, shadow logs, or --kubeconfig FILE")
    library = Library(args.runs, args.instance_types)
    if library.programs:
        print(f"policies of these runs are programs, which are run: {', '.join(library.programs)}", file=sys.stderr)
    if args.export is not None:
        from aaml.lab.page import export

        if args.kubeconfig is not None:
            raise UserError("export: what is live cannot be kept in a file; expected folders of runs")
        export(library, args.export, decisions=args.decisions)
        print(args.export)
        return 0
    from aaml.lab.server import serve

    if args.kubeconfig is not None:
        library.watch(args.kubeconfig, args.policies)
    with closing(library), suppress(KeyboardInterrupt):  # Ctrl-C is the way out of it
        serve(library, args.port)
    return 0
