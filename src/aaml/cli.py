"""The `aaml` command: finds the sub-command, imports only that one, and turns a person's mistake into one line."""

import errno
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aaml.commands.signals import Terminated, raise_terminated
from aaml.errors import UserError, did_you_mean
from aaml.extras import missing_extra

# name -> (module, one-line help). Modules are imported when their command is asked for, so that `--help` stays fast.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("aaml.commands.demo", "train the four agents briefly, judge them, and leave a report"),
    "doctor": ("aaml.commands.doctor", "say what is missing on this machine for what, and the command that mends it"),
    "completion": ("aaml.commands.completion", "print what lets bash, zsh or fish complete commands, flags and names"),
    "schedule": ("aaml.commands.schedule", "run a scheduler: dqn, gnn, acdqn, acgnn, or any policy"),
    "shadow": ("aaml.commands.shadow", "report on a policy that was run in the shadow of another scheduler"),
    "simulate": ("aaml.commands.simulate", "put a workload on a cluster, or play one back"),
    "record": ("aaml.commands.record", "record a cluster as a trace, or what one scheduler does"),
    "replay": ("aaml.commands.replay", "replay a recorded cluster: what would another policy have done"),
    "top": ("aaml.commands.top", "live table of a cluster"),
    "bill": ("aaml.commands.bill", "say what a cluster costs: by instance type, by owner, what is idle"),
    "autoscale": ("aaml.commands.autoscale", "buy and give back Karpenter's nodes by learned nodes; a dry run first"),
    "clean": ("aaml.commands.clean", "delete the workload: back to zero pods"),
    "nodes": ("aaml.commands.nodes", "create KWOK nodes on a cluster"),
    "train": ("aaml.commands.train", "train an agent in the simulator"),
    "sweep": ("aaml.commands.sweep", "search the settings of a training: pruned trials, resumable, in parallel"),
    "policies": ("aaml.commands.policies", "list the named policies, rewards and tasks"),
    "models": ("aaml.commands.models", "list the weights that ship: task, metric, the command that made them, hash"),
    "evaluate": ("aaml.commands.evaluate", "run policies and models on a task over seeds, and compare them"),
    "bound": ("aaml.commands.bound", "say what an optimum allows, by a solver that knows all pods beforehand"),
    "leaderboard": (
        "aaml.commands.leaderboard",
        "judge policies by a fixed protocol, and draw the tables of result files",
    ),
    "apply": ("aaml.commands.apply", "place workloads from YAML on a cluster from YAML, in the simulator"),
    "topology": ("aaml.commands.topology", "label node lists with racks and servers, and draw them"),
    "learn": ("aaml.commands.learn", "learn from what the plugin inside kube-scheduler decides, and give it weights"),
    "serve": ("aaml.commands.serve", "serve a policy over HTTP: kube-scheduler extender, score service"),
    "export": ("aaml.commands.export", "write a policy as a plugin of kube-scheduler, and compile it"),
    "lab": ("aaml.commands.lab", "serve a page to look at runs, or write it as one file"),
    "explain": ("aaml.commands.explain", "say why a pod went to its node: filters, scores, and what these are made of"),
    "compare": ("aaml.commands.compare", "compare policies from result folders"),
    "tune": ("aaml.commands.tune", "tune kube-scheduler's own configuration, or the GPU-sharing scorer"),
    "evolve": ("aaml.commands.evolve", "search for formulas that schedule well, short ones and good ones"),
    "distil": ("aaml.commands.distil", "say what a network has learned: the smallest formulas that choose as it does"),
    "formula": ("aaml.commands.formula", "print a formula: as text, as LaTeX, as Python to paste"),
    "bench": ("aaml.commands.bench", "run the published GPU-sharing benchmark and compare with the paper"),
    "perf": ("aaml.commands.perf", "play Kubernetes' own scheduler benchmark beside the real kube-scheduler"),
    "trace": ("aaml.commands.trace", "convert, split and sum up traces, fetch public ones"),
    "chaos": ("aaml.commands.chaos", "break things on a real cluster while a scheduler works, and see what is lost"),
    "soak": ("aaml.commands.soak", "let pods come and go for an hour: memory, handles, latency and loss"),
    "cluster": ("aaml.commands.cluster", "start, inspect and stop a real KWOK cluster without Docker"),
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# What a person wants to do -> the commands for it, in the order in which they are usually needed.
TASKS: dict[str, tuple[str, ...]] = {
    "Begin": ("doctor", "completion", "demo", "policies", "models"),
    "Train and compare": (
        "train",
        "sweep",
        "tune",
        "evolve",
        "distil",
        "formula",
        "evaluate",
        "compare",
        "lab",
        "explain",
        "bound",
    ),
    "Benchmarks and trials": ("leaderboard", "bench", "perf", "chaos", "soak"),
    "A cluster to try on": ("cluster", "nodes", "simulate", "top", "bill", "clean"),
    "Schedule for real": ("schedule", "export", "learn", "serve", "shadow", "autoscale"),
    "Record, replay, data": ("record", "replay", "trace", "apply", "topology"),
}


def overview() -> str:
    """Return the text of `aaml --help`: the commands by what a person wants to do."""
    width = max(map(len, COMMANDS))
    lines = ["usage: aaml COMMAND [OPTIONS]", "", "Research, train, compare and run learned Kubernetes schedulers."]
    grouped = {name for names in TASKS.values() for name in names}
    more = tuple(name for name in COMMANDS if name not in grouped)
    for task, names in {**TASKS, **({"More": more} if more else {})}.items():
        lines += ["", f"{task}:", *(f"  {name:<{width}}  {COMMANDS[name][1]}" for name in names)]
    lines += ["", "`aaml COMMAND --help` explains a command."]
    return "\n".join(lines)


def run(command: str, argv: Sequence[str], prog: str | None = None) -> int:
    """Run one sub-command on `argv` and return its exit status: a person's mistake is 2, Ctrl-C 130, SIGTERM 143."""
    module = importlib.import_module(COMMANDS[command][0])
    return execute(module.Args, module.run, argv, prog or f"aaml {command}", module.__doc__)


def execute(
    settings: Any,
    handler: Callable[[Any], int],
    argv: Sequence[str],
    prog: str,
    description: str | None,
    *,
    underscores: bool = False,
) -> int:
    """Hand the settings in `argv` to `handler`, and return the exit status, every mistake told in one line.

    `settings` is their dataclass, or an instance that holds the defaults. Flags may be written with dashes or
    underscores; `underscores` says which the help shows.
    """
    from aaml.commands.flags import parse

    try:
        return int(handler(parse(settings, argv, prog, description, underscores=underscores)) or 0)
    except UserError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (needed := missing_extra(error)) is None:
            raise
        print(f"{prog}: error: {needed}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as end:
        return _ended(prog, end)
    except BrokenPipeError:
        sys.stderr.close()  # the reader (a pager, `head`) has gone: nothing is left to say
        return 141
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"{prog}: error: {where}cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    finally:
        logging.shutdown()


def script(file: str, settings: Any, handler: Callable[[Any], int], description: str | None) -> int:
    """Run a command under a script's own name, with the flags of the terminal."""
    signal.signal(signal.SIGTERM, raise_terminated)
    return execute(settings, handler, sys.argv[1:], Path(file).name, description, underscores=True)


def main() -> None:
    """Entry point of the `aaml` console script."""
    signal.signal(signal.SIGTERM, raise_terminated)
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may stand here
        from aaml.commands.completing import answer

        answer(COMMANDS)
    argv = sys.argv[1:]
    if not argv or argv[0] in {"-h", "--help", "help"}:
        print(overview())
        sys.exit(0 if argv else 2)
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"aaml {version('aaml')}")
        sys.exit(0)
    if argv[0] not in COMMANDS:
        hint = did_you_mean(argv[0], list(COMMANDS)) or f"; expected one of {', '.join(COMMANDS)}"
        print(f"aaml: error: command: {argv[0]!r} is not known{hint}", file=sys.stderr)
        sys.exit(2)
    try:
        sys.exit(run(argv[0], argv[1:]))
    except KeyboardInterrupt as end:  # while the command was being imported
        sys.exit(_ended(f"aaml {argv[0]}", end))


def _ended(prog: str, end: KeyboardInterrupt) -> int:
    """Say that a command was ended by a signal, and return the exit status for it."""
    terminated = isinstance(end, Terminated)
    print(f"{prog}: {'terminated' if terminated else 'interrupted'}", file=sys.stderr)
    return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
