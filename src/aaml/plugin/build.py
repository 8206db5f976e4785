"""Compiles a plugin's folder to a kube-scheduler, with the toolchain of the KWOK programs, once, into the cache."""

import hashlib
import platform
import sys
from pathlib import Path

from aaml.folders import cache_dir, private_dir
from aaml.kube.provision.binaries import compile_program, kubernetes_flags, minimum_go
from aaml.kube.provision.paths import exclusive
from aaml.kube.provision.toolchain import find_go
from aaml.plugin.cache import prune, used
from aaml.plugin.module import PluginModule

PROGRAM = "kube-scheduler"


def program_path(module: PluginModule) -> Path:
    """Return where the program of a plugin is in the cache, whether it is built or not.

    The place depends on everything that the program is made of, its weights included.
    """
    kubernetes = module.kubernetes
    key = f"{sys.platform} {platform.machine()} {kubernetes_flags(kubernetes)} {module.digest()}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    return cache_dir() / "plugin" / f"kubernetes-{kubernetes}_{digest}" / PROGRAM


def build(module: PluginModule, *, progress: bool = True) -> Path:
    """Return the program of a plugin, compiling it where the cache has none.

    Seconds once `aaml cluster build` has compiled Kubernetes, minutes without. Raises `UserError` in one line without a
    Go toolchain or where the compiler fails.
    """
    target = program_path(module)
    if target.is_file():
        used(target.parent)
        return target
    with exclusive(target.parent.with_suffix(".lock"), "builds this plugin"):
        if not target.is_file():
            go = find_go(minimum_go())
            private_dir(target.parent)
            flags = kubernetes_flags(module.kubernetes)
            compile_program(go, module.folder, ".", flags, target, progress=progress)
            prune(list(target.parent.parent.glob("kubernetes-*_*/")))
    return target
