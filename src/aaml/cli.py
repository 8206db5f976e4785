"""The `aaml` command: finds the sub-command, imports only that one, and turns a person's mistake into one line."""

import contextlib
import importlib
import io
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aaml.errors import UserError

# name -> (module, one-line help). Modules are imported when their command is asked for, so that `--help` stays fast.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("aaml.commands.demo", "train the four agents briefly, judge them, and leave a report"),
    "schedule": ("aaml.commands.schedule", "run a scheduler: dqn, gnn, acdqn, acgnn, or any policy"),
    "shadow": ("aaml.commands.shadow", "report on a policy that was run in the shadow of another scheduler"),
    "simulate": ("aaml.commands.simulate", "put a workload on a cluster, or play one back"),
    "record": ("aaml.commands.record", "record what any scheduler does"),
    "top": ("aaml.commands.top", "live table of a cluster"),
    "clean": ("aaml.commands.clean", "delete the workload: back to zero pods"),
    "nodes": ("aaml.commands.nodes", "create KWOK nodes on a cluster"),
    "train": ("aaml.commands.train", "train an agent in the simulator"),
    "sweep": ("aaml.commands.sweep", "search the settings of a training: pruned trials, resumable, in parallel"),
    "policies": ("aaml.commands.policies", "list the named policies, rewards and tasks"),
    "evaluate": ("aaml.commands.evaluate", "run policies and models on a task over seeds, and compare them"),
    "bound": ("aaml.commands.bound", "say what an optimum allows, by a solver that knows all pods beforehand"),
    "apply": ("aaml.commands.apply", "place workloads from YAML on a cluster from YAML, in the simulator"),
    "topology": ("aaml.commands.topology", "label node lists with racks and servers, and draw them"),
    "serve": ("aaml.commands.serve", "serve a policy over HTTP: kube-scheduler extender, score service"),
    "compare": ("aaml.commands.compare", "compare policies from result folders"),
    "redraw": ("aaml.commands.redraw", "draw the documents' tables and figures again, from result folders"),
    "tune": ("aaml.commands.tune", "tune the linear scorer of the GPU-sharing benchmark"),
    "bench": ("aaml.commands.bench", "run the published GPU-sharing benchmark and compare with the paper"),
    "trace": ("aaml.commands.trace", "get the openb traces and verify them"),
    "cluster": ("aaml.commands.cluster", "start, inspect and stop a real KWOK cluster without Docker"),
}


def overview() -> str:
    """Return the text of `aaml --help`."""
    width = max(len(name) for name in COMMANDS) if COMMANDS else 0
    lines = ["usage: aaml COMMAND [OPTIONS]", "", "Research, train, compare and run learned Kubernetes schedulers.", ""]
    lines += [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    lines += ["", "`aaml COMMAND --help` explains a command."]
    return "\n".join(lines)


def run(command: str, argv: Sequence[str], prog: str | None = None) -> int:
    """Run one sub-command on `argv` and return its exit status (2 for a person's mistake, 130 after Ctrl-C)."""
    module = importlib.import_module(COMMANDS[command][0])
    return execute(module.Args, module.run, argv, prog or f"aaml {command}", module.__doc__)


def execute(
    settings: type[Any],
    handler: Callable[[Any], int],
    argv: Sequence[str],
    prog: str,
    description: str | None,
    *,
    underscores: bool = False,
) -> int:
    """Parse `argv` into a dataclass, hand it to `handler`, and return the exit status, every mistake told in one line.

    Flags may be written with dashes or underscores; `underscores` says which the help shows.
    """
    try:
        return int(handler(_parse(settings, argv, prog, description, underscores=underscores)) or 0)
    except UserError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader (a pager, `head`) has gone: nothing is left to say
        return 141
    finally:
        logging.shutdown()


def _parse(settings: type[Any], argv: Sequence[str], prog: str, description: str | None, *, underscores: bool) -> Any:
    """Return the dataclass that `argv` stands for. Raises `UserError` with the parser's own words in one line."""
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(settings, prog=prog, description=description, args=list(argv), use_underscores=underscores)
    except SystemExit as end:
        if not end.code:
            raise  # --help
        raise UserError(f"{_first_paragraph(said.getvalue())} (see {prog} --help)") from None


def _first_paragraph(box: str) -> str:
    """Return the text of a box of the parser up to its first rule, in one line."""
    words: list[str] = []
    for line in box.splitlines():
        text = line.strip(" \u2502\u256d\u256e\u2570\u256f")  # the sides and corners of the box
        if "\u2500" in text:  # a border or rule
            if words:
                break
            continue
        words += text.split()
    return " ".join(words)


def script(file: str, settings: type[Any], handler: Callable[[Any], int], description: str | None) -> int:
    """Run a command under a script's own name, with the flags of the terminal."""
    return execute(settings, handler, sys.argv[1:], Path(file).name, description, underscores=True)


def main() -> None:
    """Entry point of the `aaml` console script."""
    argv = sys.argv[1:]
    if not argv or argv[0] in {"-h", "--help", "help"}:
        print(overview())
        sys.exit(0 if argv else 2)
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"aaml {version('aaml')}")
        sys.exit(0)
    if argv[0] not in COMMANDS:
        print(f"aaml: error: command: {argv[0]!r} is not known; expected one of {', '.join(COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(argv[0], argv[1:]))
