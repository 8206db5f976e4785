"""The `aaml` command: finds the sub-command, imports only that one, and turns a person's mistake into one line."""

import importlib
import logging
import sys
from collections.abc import Sequence

from aaml.errors import UserError

# name -> (module, one-line help). Modules are imported when their command is asked for, so that `--help` stays fast.
COMMANDS: dict[str, tuple[str, str]] = {
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
    prog = prog or f"aaml {command}"
    try:
        module = importlib.import_module(COMMANDS[command][0])
        import tyro

        args = tyro.cli(module.Args, prog=prog, description=module.__doc__, args=list(argv))
        return int(module.run(args) or 0)
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
