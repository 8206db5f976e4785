"""A person's own Python files as modules, which other processes find too when they are handed what is in them.

The name of such a module says where its file is, so that pickled functions and objects of it can be opened by a worker
that has never heard of the file.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from aaml.errors import UserError, bad_value

_PREFIX = "aaml_own_"


class _Finder(MetaPathFinder):
    """Finds the modules whose names are paths of files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is loaded, None for one that is no person's file."""
        del path, target
        if not fullname.startswith(_PREFIX):
            return None
        file = Path(os.fsdecode(bytes.fromhex(fullname.removeprefix(_PREFIX))))
        return importlib.util.spec_from_file_location(fullname, file) if file.is_file() else None


sys.meta_path.append(_Finder())


def load_file(path: Path, what: str) -> ModuleType:
    """Run a person's Python file once and return its module.

    Raises `UserError` with the cause when that fails.
    """
    resolved = path.resolve()
    if not (resolved.is_file() and resolved.suffix == ".py"):
        raise bad_value(what, str(path), "a Python file that exists")
    try:
        return importlib.import_module(_PREFIX + os.fsencode(resolved).hex())
    except Exception as error:
        raise UserError(f"{what}: {path} does not run: {type(error).__name__}: {error}") from error
