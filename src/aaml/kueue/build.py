"""Compiles Kueue from the pinned module, once, into the cache, beside the objects that it needs on a cluster."""

import hashlib
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from aaml.errors import UserError
from aaml.files import write_json
from aaml.folders import cache_dir
from aaml.kube.provision.binaries import (
    compile_program,
    ensure_programs,
    minimum_go,
    module_dir,
    pinned_version,
    recipe_dir,
)
from aaml.kube.provision.paths import made_whole
from aaml.kube.provision.toolchain import find_go

PROGRAM = "kueue"
_RECIPE, _MODULE = "kueue", "sigs.k8s.io/kueue"
_MANIFESTS = "manifests.json"
# Its own Deployment, roles and aggregated API are for a Kueue that runs in a pod.
_KINDS = frozenset({
    "Namespace", "CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "Secret",
    "Service",
})  # fmt: skip


def version() -> str:
    """Return the version of Kueue that is pinned, without the leading "v"."""
    return pinned_version(_RECIPE, _MODULE)


def program_path() -> Path:
    """Return where the program is in the cache, whether it is built or not."""
    digest = hashlib.sha256(f"{sys.platform} {platform.machine()} {_linker_flags()} {sorted(_KINDS)}".encode())
    for file in ("go.mod", "go.sum"):
        digest.update((recipe_dir() / _RECIPE / file).read_bytes())
    return cache_dir() / "kueue" / f"kueue-{version()}_{digest.hexdigest()[:12]}" / PROGRAM


def built() -> bool:
    """Say whether the program is in the cache."""
    return program_path().is_file()


def manifests() -> list[dict[str, Any]]:
    """Return the objects that a program that is built needs on a cluster, as Kueue's release has them."""
    return list(json.loads((program_path().parent / _MANIFESTS).read_text(encoding="utf-8")))


def build(kubernetes: str = "", *, progress: bool = True) -> Path:
    """Return the program, compiling it where the cache has none (some twenty minutes of one core, the first time).

    `kubernetes` says whose kubectl writes its objects down. The folder appears under its name only when it is whole.
    Raises `UserError` in one line without a Go toolchain, and where the compiler fails.
    """
    return made_whole(program_path(), "builds Kueue", lambda folder: _build(folder, kubernetes, progress=progress))


def _build(folder: Path, kubernetes: str, *, progress: bool) -> None:
    go, where = find_go(minimum_go((_RECIPE,))), recipe_dir() / _RECIPE
    module = module_dir(go, where, _MODULE)
    kubectl = ensure_programs(kubernetes, progress=progress) / "kubectl"
    write_json(folder / _MANIFESTS, _objects(kubectl, module / "config" / "default"))
    compile_program(go, where, f"{_MODULE}/cmd/kueue", _linker_flags(), folder / PROGRAM, progress=progress)


def _objects(kubectl: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the objects of the release's kustomization that a process of this machine needs."""
    made = subprocess.run(  # noqa: S603  (our own kubectl, no shell)
        [kubectl, "kustomize", folder], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise UserError(f"Kueue {version()}: its objects cannot be had: {made.stderr.strip().splitlines()[-1]}")
    return [each for each in yaml.safe_load_all(made.stdout) if each and each["kind"] in _KINDS]


def _linker_flags() -> str:
    return f"-s -w -X {_MODULE}/pkg/version.GitVersion=v{version()}"
