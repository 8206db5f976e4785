"""The `aaml` command: finds the sub-command, imports only that one, and turns a person's mistake into one line."""

import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aaml.commands.signals import Terminated, raise_terminated
from aaml.commands.table import COMMANDS, GROUPS, module_of, overview, unknown
from aaml.errors import UserError, bad_value
from aaml.extras import missing_extra

_HELP = ("-h", "--help", "help")
_THREADS = "NUMBA_NUM_THREADS"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run(command: str, argv: Sequence[str], prog: str | None = None) -> int:
    """Run a command on `argv` and return its exit status: a person's mistake is 2, Ctrl-C 130, SIGTERM 143.

    `command` is a full name such as "search bill", or a group, the rest of whose name is in `argv`.
    """
    group = command if command in GROUPS else ""
    if group and (not argv or argv[0] in _HELP):
        print(overview(group))
        return 0 if argv else 2
    if group:
        command, argv = f"{group} {argv[0]}", argv[1:]
    if command not in COMMANDS:
        where = f"aaml {group}".strip()
        print(f"{where}: error: {unknown(group, command.removeprefix(group).strip())}", file=sys.stderr)
        return 2
    module = module_of(command)
    return execute(module.Args, module.run, argv, prog or f"aaml {command}", module.__doc__)


def quiet_where_told(args: threading.ExceptHookArgs) -> None:
    """Leave out the traceback of a thread that found no room to write: the command's own line tells that."""
    if not (isinstance(args.exc_value, OSError) and args.exc_value.errno in _NO_ROOM):
        threading.__excepthook__(args)


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

    threading.excepthook = quiet_where_told
    try:
        told = parse(settings, argv, prog, description, underscores=underscores)
        _check_threads()
        return int(handler(told) or 0)
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


def _check_threads() -> None:
    """Raise `UserError` for a number of threads at which numba would print tracebacks, or none of its kernels runs."""
    value = os.environ.get(_THREADS, "1")
    if not value.strip().isdecimal() or int(value) < 1:
        raise bad_value(_THREADS, value, "a whole number of at least 1, or none where it is not set")


def script(file: str, settings: Any, handler: Callable[[Any], int], description: str | None) -> int:
    """Run a command under a script's own name, with the flags of the terminal."""
    signal.signal(signal.SIGTERM, raise_terminated)
    return execute(settings, handler, sys.argv[1:], Path(file).name, description, underscores=True)


def main() -> None:
    """Entry point of the `aaml` console script."""
    signal.signal(signal.SIGTERM, raise_terminated)
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may stand here
        from aaml.commands.completing import answer

        answer()
    argv = sys.argv[1:]
    if not argv or argv[0] in _HELP:
        print(overview())
        sys.exit(0 if argv else 2)
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"aaml {version('aaml')}")
        sys.exit(0)
    try:
        sys.exit(run(argv[0], argv[1:]))
    except KeyboardInterrupt as end:  # while the command was being imported
        sys.exit(_ended(f"aaml {argv[0]}", end))


def _ended(prog: str, end: KeyboardInterrupt) -> int:
    """Say that a command was ended by a signal, and return the exit status for it."""
    terminated = isinstance(end, Terminated)
    print(f"{prog}: {'terminated' if terminated else 'interrupted'}", file=sys.stderr)
    return 128 + (signal.SIGTERM if terminated else signal.SIGINT)
