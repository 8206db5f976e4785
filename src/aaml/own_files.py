"""A person's own Python files as modules, which other processes find too when they are handed what is in them.

The name of such a module says where its file is, so that pickled functions and objects of it can be opened by a worker
that has never heard of the file.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

from aaml.errors import UserError, bad_value

_PREFIX = "aaml_own_"
_SHA256 = "__aaml_sha256__"
_LOADING: ContextVar[Path | None] = ContextVar("loading", default=None)


class _Loader(SourceFileLoader):
    """Runs a file from its text, and says meanwhile which one it is. No file of bytecode is read or written.

    Python takes bytecode for current that is of the same second and length, whatever the text says.
    """

    def exec_module(self, module: ModuleType) -> None:
        """Run the file; the module remembers the SHA-256 of what was run."""
        content = self.get_data(self.path)
        module.__dict__[_SHA256] = hashlib.sha256(content).hexdigest()
        token = _LOADING.set(Path(self.path))
        try:
            exec(self.source_to_code(content, self.path), module.__dict__)  # noqa: S102  (what importing is)
        finally:
            _LOADING.reset(token)


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
        if not file.is_file():
            return None
        return importlib.util.spec_from_file_location(fullname, file, loader=_Loader(fullname, str(file)))


sys.meta_path.append(_Finder())


def being_loaded() -> Path | None:
    """Return the person's file that is being run at the moment, None where none is."""
    return _LOADING.get()


def load_file(path: Path, what: str) -> ModuleType:
    """Run a person's Python file and return its module: once, and again when the file has changed.

    Raises `UserError` with the cause when that fails.
    """
    resolved = path.resolve()
    if not (resolved.is_file() and resolved.suffix == ".py"):
        raise bad_value(what, str(path), "a Python file that exists")
    name = _PREFIX + os.fsencode(resolved).hex()
    try:
        if name in sys.modules and getattr(sys.modules[name], _SHA256) != _sha256(resolved):
            del sys.modules[name]
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a program that ends itself would end the command, as if all was well
        raise UserError(f"{what}: {path} does not run: {type(error).__name__}: {error}") from error


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
