"""Builds the programs of a KWOK cluster from pinned Go modules, once, into the cache.

The recipe is `deploy/kwok`: one Go module for each tool, with its `go.sum`. Of Kubernetes there is one for each release
that can be had: `kubernetes`, which is built where nobody asks for another, `kubernetes-1.36` and so on. The cache is
keyed by the versions and by a hash of the recipe, so that another checkout with the same recipe finds these.
"""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from aaml.errors import UserError, bad_value
from aaml.folders import cache_dir, private_dir
from aaml.kube.provision.paths import exclusive
from aaml.kube.provision.toolchain import Go, dotted, find_go, remember
from aaml.progress import progress_bar

if TYPE_CHECKING:
    from tqdm import tqdm


@dataclass(frozen=True)
class Program:
    """One program: the name of its file, the recipe whose go.mod pins it, and its Go package."""

    name: str
    recipe: str
    package: str


PROGRAMS = (
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Program("kwokctl", "kwok", "sigs.k8s.io/kwok/cmd/kwokctl"),
    Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
)
_KUBERNETES = "kubernetes"
_RECIPES = ("etcd", _KUBERNETES, "kwok")
_AUTOSCALER = "karpenter"  # its recipe: `aaml.karpenter` builds it
_PINNED = {"etcd": "go.etcd.io/etcd/server/v3", _KUBERNETES: "k8s.io/kubernetes", "kwok": "sigs.k8s.io/kwok"}


@dataclass(frozen=True)
class Versions:
    """The pinned versions, as the recipe's go.mod files state them, without the leading "v"."""

    etcd: str
    kubernetes: str
    kwok: str


def recipe_dir() -> Path:
    """Return the folder of the Go modules: `deploy/kwok` in a checkout, `share/aaml/kwok` of an installed package."""
    installed = Path(sysconfig.get_path("data")) / "share" / "aaml" / "kwok"
    for folder in (Path(__file__).parents[4] / "deploy" / "kwok", installed):
        if all((folder / name / "go.mod").is_file() for name in _RECIPES):
            return folder
    raise UserError(
        "deploy/kwok: the Go modules that pin Kubernetes and KWOK are missing; take them from the repository"
    )


@lru_cache(maxsize=1)
def releases() -> Mapping[str, str]:
    """Return the versions of Kubernetes that can be had, the newest first, and the recipe of each."""
    recipes = [folder.name for folder in recipe_dir().glob(f"{_KUBERNETES}*")]
    found = {pinned_version(recipe, _PINNED[_KUBERNETES]): recipe for recipe in recipes}
    return dict(sorted(found.items(), key=lambda each: tuple(map(int, each[0].split("."))), reverse=True))


def release(kubernetes: str = "") -> str:
    """Return the pinned version of Kubernetes that is asked for, as "1.36", "1.36.1" or "v1.36.1"; "" is the newest.

    Raises `UserError` for one that cannot be had.
    """
    wanted = kubernetes.removeprefix("v")
    for version, recipe in releases().items():
        if wanted in {version, minor(version)} or (not wanted and recipe == _KUBERNETES):
            return version
    raise bad_value("kubernetes", kubernetes, f"one of {', '.join(releases())}")


def minor(version: str) -> str:
    """Return the release of a version: "1.36" of "1.36.1"."""
    return version.rpartition(".")[0]


def versions(kubernetes: str = "") -> Versions:
    """Return the versions that the recipe pins, with this one of Kubernetes (`release`)."""
    etcd, kwok = (pinned_version(recipe, _PINNED[recipe]) for recipe in ("etcd", "kwok"))
    return Versions(etcd, release(kubernetes), kwok)


def recipes(kubernetes: str = "") -> Sequence[str]:
    """Return the folders of the Go modules of a cluster's programs, with this version of Kubernetes (`release`)."""
    return tuple(releases()[release(kubernetes)] if recipe == _KUBERNETES else recipe for recipe in _RECIPES)


@lru_cache(maxsize=16)
def pinned_version(recipe: str, module: str) -> str:
    """Return the version of a module that a recipe's go.mod pins, without the leading "v"."""
    file = recipe_dir() / recipe / "go.mod"
    match = re.search(rf"^\s*(?:require\s+)?{re.escape(module)} v(\S+)", file.read_text("utf-8"), re.MULTILINE)
    if match is None:
        raise UserError(f"{file}: no requirement of {module}")
    return match[1]


def minimum_go(recipes: Sequence[str] = _RECIPES) -> tuple[int, ...]:
    """Return the version of Go that the module of every one of these recipes accepts."""
    stated: list[str] = []
    for recipe in recipes:
        text = (recipe_dir() / recipe / "go.mod").read_text(encoding="utf-8")
        stated += re.findall(r"^go ([\d.]+)$", text, re.MULTILINE)
    return max(tuple(map(int, version.split("."))) for version in stated)


def _toolchain() -> Go:
    """Return a toolchain that compiles Karpenter too, where there is one.

    Go finds nothing of what another version of it has compiled: Karpenter, and then each plugin, would compile
    Kubernetes again.
    """
    try:
        return find_go(minimum_go((*_RECIPES, _AUTOSCALER)))
    except UserError:
        return find_go(minimum_go())


def linker_flags(recipe: str) -> str:
    """Return a recipe's `-ldflags`."""
    if recipe in releases().values():
        return kubernetes_flags(pinned_version(recipe, _PINNED[_KUBERNETES]))
    stamps = f" -X sigs.k8s.io/kwok/pkg/consts.Version=v{versions().kwok}" if recipe == "kwok" else ""
    return f"-s -w{stamps}"


def kubernetes_flags(version: str) -> str:
    """Return `-ldflags` of Kubernetes: a server without these stamps reports a version that kubectl cannot parse."""
    major, minor, _ = version.split(".", 2)
    stamps = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{name}={is_}" for name, is_ in stamps.items())])


def build_command(go: Go, packages: Sequence[str], flags: str, output: str) -> list[str]:
    """Return the command line that builds packages with these linker flags; it runs in the folder of their go.mod.

    `output` is the program's file, or a folder with a slash at its end, in which Go names programs by their packages.
    """
    options = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", flags]
    return [str(go.command), "build", "-v", *options, "-o", output, *packages]


def programs_dir(kubernetes: str = "") -> Path:
    """Return the cache folder that a recipe's programs belong into, whether they are built or not (`release`)."""
    digest = hashlib.sha256(f"{sys.platform} {platform.machine()} {PROGRAMS}".encode())
    for recipe in recipes(kubernetes):
        digest.update(linker_flags(recipe).encode())
        for file in ("go.mod", "go.sum"):
            digest.update((recipe_dir() / recipe / file).read_bytes())
    pinned = versions(kubernetes)
    return cache_dir() / "kwok" / f"kubernetes-{pinned.kubernetes}_kwok-{pinned.kwok}_{digest.hexdigest()[:12]}"


def built(kubernetes: str = "") -> bool:
    """Say whether every program is in the cache."""
    return all((programs_dir(kubernetes) / program.name).is_file() for program in PROGRAMS)


def ensure_programs(kubernetes: str = "", *, progress: bool = True) -> Path:
    """Return the folder with every program, building what is missing (about 11 minutes on two cores, the first time).

    The programs of a module are built together: Go links one while it compiles what another needs. An interrupted build
    goes on where it was. The folder appears under its name only when it is whole, and two builders wait for each other.
    Raises `UserError` for a version that cannot be had (`release`), without a Go toolchain or when the build fails.
    """
    target = programs_dir(kubernetes)
    if built(kubernetes):
        return target
    with exclusive(target.with_name(f"{target.name}.lock"), "builds the KWOK programs"):
        if built(kubernetes):
            return target
        go = _toolchain()
        partial = private_dir(target.with_name(f"{target.name}.partial"))
        for name, recipe in zip(_RECIPES, recipes(kubernetes), strict=True):
            packages = {each.name: each.package for each in PROGRAMS if each.recipe == name}
            if missing := {each: package for each, package in packages.items() if not (partial / each).is_file()}:
                where = recipe_dir() / recipe
                compile_programs(go, where, missing, linker_flags(recipe), partial, progress=progress)
        record = {"go": dotted(go.version), "programs": [program.package for program in PROGRAMS]}
        (partial / "build.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        partial.rename(target)
    return target


def compile_program(go: Go, where: Path, package: str, flags: str, output: Path, *, progress: bool) -> None:
    """Compile one package to the file `output` (`compile_programs`)."""
    compile_programs(go, where, {output.name: package}, flags, output.parent, progress=progress)


def compile_programs(
    go: Go, where: Path, packages: Mapping[str, str], flags: str, folder: Path, *, progress: bool
) -> None:
    """Compile packages of the Go module in `where`, by the programs' names, with these linker flags.

    They are compiled aside and renamed into `folder`. Where there are several, each has the name that Go gives it. The
    bar counts the Go packages that they are made of. Raises `UserError` with the compiler's last words.
    """
    remember(go)
    names, environment = ", ".join(packages), go.environment(os.environ)
    listing = [str(go.command), "list", "-mod=readonly", "-deps", *packages.values()]
    with (
        TemporaryDirectory(dir=folder, prefix=".") as aside,
        progress_bar(f"build {names}", None, "pkg", enabled=progress) as bar,
    ):
        output = f"{aside}/{names}" if len(packages) == 1 else f"{aside}/"
        lines = _run(listing, where, environment, bar, "listing the packages of", names)
        total = sum(" " not in line for line in lines)
        bar.reset(total=total)
        building = build_command(go, list(packages.values()), flags, output)
        for _ in _run(building, where, environment, bar, "building", names):
            pass
        bar.update(total - bar.n)  # packages that Go had compiled before are not printed
        for name in packages:
            Path(aside, name).rename(folder / name)


def module_dir(go: Go, where: Path, module: str) -> Path:
    """Return where Go's module cache has the source of a module that the go.mod in `where` pins; downloads it first.

    Raises `UserError` with Go's last words where it cannot be had.
    """
    with progress_bar(f"download {module}", None, "file", enabled=False) as bar:
        printed = _run([str(go.command), "mod", "download", "-json", module], where, go.environment(os.environ), bar,
                    "downloading", module)  # fmt: skip
    return Path(json.loads("".join(printed))["Dir"])


def _run(
    command: Sequence[str], where: Path, environment: dict[str, str], bar: "tqdm[Any]", doing: str, name: str
) -> list[str]:
    """Run a go command and return its lines; its package lines move the bar, its last words explain a failure."""
    bar.set_postfix_str("")
    lines: list[str] = []
    last: deque[str] = deque(maxlen=3)
    with subprocess.Popen(  # noqa: S603  (our own command line, no shell)
        command, cwd=where, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                last.append(line.strip())
                if line.startswith("go: downloading"):
                    bar.set_postfix_str(line.split()[2])
                elif "build" in command[1] and " " not in line:
                    bar.update()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise UserError(f"{doing} {name} failed (exit status {process.returncode}): {' / '.join(last)}")
    return lines
