"""What a shell is told when it asks what may be typed next; `aaml completion` prints the script that asks."""

import argparse
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from aaml.commands.table import COMMANDS, GROUPS, module_of

MODELS = ("pth", "json", "npz", "formula")


def policies() -> Iterable[str]:
    """Return the names of policies."""
    from aaml.policies.registry import POLICIES

    return POLICIES.names()


def agents() -> Iterable[str]:
    """Return the names of the agents that learn on a live cluster."""
    from aaml.learning.config import LIVE

    return LIVE


def tasks() -> Iterable[str]:
    """Return the names of tasks."""
    from aaml.sim.tasks import ALL_TASKS

    return ALL_TASKS


def rewards() -> Iterable[str]:
    """Return the names of rewards."""
    from aaml.policies.registry import reward_names

    return reward_names()


def traces() -> Iterable[str]:
    """Return the names of the openb pod lists that are at hand."""
    from aaml.errors import UserError
    from aaml.workload.traces import trace_names

    try:
        return trace_names()
    except UserError:  # none was fetched
        return ()


def clusters() -> Iterable[str]:
    """Return the names of the clusters of this machine."""
    from aaml.kube.provision import records

    return records.names()


def models() -> Iterable[str]:
    """Return the names of the weights that ship, and the model files of `models` and of the run folders."""
    from aaml.evaluation.zoo import zoo

    found = [path for place in ("models/*", "runs/*/model/*") for path in Path().glob(place)]
    return [*zoo(), *sorted(str(path) for path in found if path.suffix.removeprefix(".") in MODELS)]


NAMES: Mapping[str, tuple[Callable[[], Iterable[str]], ...]] = {
    "policy": (policies, models),
    "policies": (policies, models),
    "fallback": (policies, models),
    "sim_policy": (policies, models),
    "teacher": (policies, models),
    "rollout": (policies,),
    "reference": (policies,),
    "scheduler": (policies, agents, models),
    "model": (models,),
    "models": (models,),
    "task": (tasks,),
    "reward": (rewards,),
    "trace": (traces,),
    "traces": (traces,),
}
"""The values of a flag, by its name with underscores; files besides where a shell offers them."""
NAMES_OF_A_COMMAND: Mapping[tuple[str, str], tuple[Callable[[], Iterable[str]], ...]] = {
    ("cluster", "name"): (clusters,),
}


def answer(stream: TextIO | None = None, leave: Callable[[int], Any] = os._exit) -> None:
    """Write what may stand where the cursor is, as the shell that asks expects it, and leave."""
    from argcomplete.finders import CompletionFinder

    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    parser = typed_parser(_words(line))
    CompletionFinder(parser)(parser, exit_method=leave, output_stream=stream, always_complete_options="long")


def typed_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of `aaml`, in which only the command that was typed has its flags: the others stay unloaded."""
    root = argparse.ArgumentParser(prog="aaml", add_help=False)
    root.add_argument("--help", action="help", help="list the commands")
    root.add_argument("--version", action="version", version="")
    below = root.add_subparsers()
    groups = {name: below.add_parser(name, help=summary).add_subparsers() for name, summary in GROUPS.items()}
    for command, summary in COMMANDS.items():
        group, _, name = command.rpartition(" ")
        place, last = groups.get(group, below), len(command.split()) + 1
        place.add_parser(name, help=summary, add_help=False)
        if list(words[1:last]) == command.split():
            place.choices[name] = _as_argparse(_flags_of(command, words[last:]), group or name)
    return root


def _flags_of(command: str, argv: Sequence[str]) -> argparse.ArgumentParser:
    from aaml.commands.flags import parser

    return parser(module_of(command).Args, argv, f"aaml {command}")


def _as_argparse(typed: argparse.ArgumentParser, command: str) -> argparse.ArgumentParser:
    """Return a command's parser with sub-commands of argparse's own kind, and with what completes its values.

    `command` is its name, or that of its group.
    """
    for action in typed._actions:  # noqa: SLF001  (as argcomplete reads them)
        if isinstance(action.choices, Mapping):  # sub-commands
            own = argparse.ArgumentParser(prog=typed.prog)
            parsers = own.add_subparsers()
            for name, each in action.choices.items():
                parsers.add_parser(name, help=(each.description or "").partition("\n")[0], add_help=False)
                parsers.choices[name] = _as_argparse(each, command)
            return own
        name = max(action.option_strings, key=len, default=action.dest).lstrip("-").replace("-", "_")
        sources = NAMES_OF_A_COMMAND.get((command, name)) or NAMES.get(name, ())
        if sources and not action.choices:
            action.completer = _completer(sources)  # type: ignore[attr-defined]
    return typed


def _completer(sources: Sequence[Callable[[], Iterable[str]]]) -> Callable[..., list[str]]:
    def complete(prefix: str, **_: object) -> list[str]:
        from argcomplete.completers import FilesCompleter

        names = [name for source in sources for name in source() if name.startswith(prefix)]
        return names or [str(path) for path in FilesCompleter()(prefix)]

    return complete


def _words(line: str) -> list[str]:
    """Return the words of a line that may end within quotes."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
