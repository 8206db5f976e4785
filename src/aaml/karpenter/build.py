"""Compiles Karpenter with its KWOK provider from the pinned module, once, into the cache, beside its CRDs."""

import hashlib
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from aaml.errors import UserError
from aaml.files import write_bytes
from aaml.folders import cache_dir, private_dir
from aaml.karpenter.changes import SourceChange, changed, changes
from aaml.kube.provision.binaries import compile_program, minimum_go, module_dir, pinned_version, recipe_dir
from aaml.kube.provision.paths import made_whole
from aaml.kube.provision.toolchain import find_go

PROGRAM = "karpenter"
_RECIPE, _MODULE = "karpenter", "sigs.k8s.io/karpenter"
_COMPILED = ("go.mod", "LICENSE", "kwok", "pkg")  # what of the module the program is made of
_CRDS = ("kwok/apis/crds", "pkg/apis/crds")


def version() -> str:
    """Return the version of Karpenter that is pinned, without the leading "v"."""
    return pinned_version(_RECIPE, _MODULE)


def minimum() -> tuple[int, ...]:
    """Return the version of Go that it takes at least."""
    return minimum_go((_RECIPE,))


def program_path(speed: int = 1) -> Path:
    """Return where the program is in the cache, whether it is built or not. Raises `UserError` for other speeds."""
    key = f"{sys.platform} {platform.machine()} {_linker_flags()} {changes(speed)}"
    digest = hashlib.sha256(key.encode())
    for file in ("go.mod", "go.sum"):
        digest.update((recipe_dir() / _RECIPE / file).read_bytes())
    faster = "" if speed == 1 else f"-x{speed}"
    return cache_dir() / "karpenter" / f"karpenter-{version()}{faster}_{digest.hexdigest()[:12]}" / PROGRAM


def crd_files(speed: int = 1) -> list[Path]:
    """Return the manifests of its kinds of objects, which are beside a program that is built."""
    return sorted((program_path(speed).parent / "crds").glob("*.yaml"))


def build(speed: int = 1, *, progress: bool = True) -> Path:
    """Return the program whose constants go `speed` times faster, compiling it where the cache has none.

    Its folder appears under its name only when it is whole. Raises `UserError` in one line without a Go toolchain,
    where the compiler fails, and where the module's source is not what the changes are for.
    """
    return made_whole(program_path(speed), "builds Karpenter", lambda folder: _build(folder, speed, progress=progress))


def _build(folder: Path, speed: int, *, progress: bool) -> None:
    compile_changed(folder / PROGRAM, f"{_MODULE}/kwok", _linker_flags(), changes(speed), progress=progress)
    for crds in _CRDS:
        for file in (module_dir(find_go(minimum()), recipe_dir() / _RECIPE, _MODULE) / crds).glob("*.yaml"):
            write_bytes(folder / "crds" / file.name, file.read_bytes())


def compile_changed(output: Path, package: str, flags: str, wanted: Sequence[SourceChange], *, progress: bool) -> None:
    """Compile a package above a copy of the module with changes: Go lets nobody replace files of its module cache.

    The package is one of Karpenter's, or a folder of the recipe.
    """
    go, recipe, folder = find_go(minimum()), recipe_dir() / _RECIPE, output.parent
    module, where = folder / "module", private_dir(folder / "build")
    _copy(module_dir(go, recipe, _MODULE), module, wanted)
    text = (recipe / "go.mod").read_text(encoding="utf-8")
    write_bytes(where / "go.mod", f"{text}\nreplace {_MODULE} => {module}\n".encode())
    for file in (recipe / "go.sum", *recipe.glob("*/*.go")):
        write_bytes(where / file.relative_to(recipe), file.read_bytes())
    compile_program(go, where, package, flags, output, progress=progress)
    for each in (module, where):
        shutil.rmtree(each)


def _copy(source: Path, target: Path, wanted: Sequence[SourceChange]) -> None:
    """Copy the sources of the program, with the changes. Raises `UserError` where a change does not apply."""
    files = [file for name in _COMPILED for file in sorted([source / name, *(source / name).rglob("*")])]
    names = {file.relative_to(source).as_posix(): file for file in files if file.is_file()}
    if missing := {change.file for change in wanted} - names.keys():
        raise UserError(f"{_MODULE} {version()}: {', '.join(sorted(missing))} is not there")
    for name, file in names.items():
        write_bytes(target / name, changed(name, file.read_bytes(), wanted))


def _linker_flags() -> str:
    return f"-s -w -X {_MODULE}/pkg/operator.Version={version()}"
