"""Writes a policy as a plugin of kube-scheduler: the Go module, its configuration, manifests, Dockerfile and README."""

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import msgspec

from aaml.cluster.objects import Pod
from aaml.errors import UserError, bad_value
from aaml.evaluation.policies import is_model, load_policy
from aaml.evaluation.zoo import model_file, with_critic
from aaml.files import write_bytes, write_json
from aaml.kube.provision.binaries import kubernetes_flags, minimum_go, minor, release, releases
from aaml.learning.config import LIVE
from aaml.outputs import LOCK, output_folder
from aaml.plugin.configuration import DEFAULTS_GIVE, ProfileOptions, deployed
from aaml.plugin.module import CONFIGURATION, WEIGHTS, PluginModule, is_module
from aaml.plugin.profile import is_profile, profile_of
from aaml.plugin.source import EMBEDDED, older_releases, source_files
from aaml.plugin.weights import is_weights, write_profile, write_weights
from aaml.yaml_text import yaml_text

LOG = logging.getLogger(__name__)
NAMESPACE = "aaml"
LEARNER, MODEL = "manifests/learner.yaml", "learner"
WRITTEN = ".aaml-export.json"
"""What an export wrote into a folder: by file the SHA-256 of its content, and of the one before while it is written."""
_IMAGE = re.compile(r"[a-z0-9][\w.:/@-]*", re.ASCII)
_SCHEDULER = re.compile(r"[A-Za-z0-9]([\w.-]{0,251}[A-Za-z0-9])?", re.ASCII)
_PATH = re.compile(r"[\w./-]+", re.ASCII)
_MOUNTED = ("/", "/tmp", "/etc/aaml", "/etc/aaml-learner")  # noqa: S108  (of containers)
_POLICY = (str(EMBEDDED), WEIGHTS)  # replaced at any time, also by `aaml export MODEL --out weights.json`
SUFFIX = ".json"
"""Of an output that is the weights alone."""


@dataclass(frozen=True)
class ExportOptions:
    """What is written besides the policy; `image` is where the program's container image will be.

    `overwrite` replaces also what was changed since an earlier export wrote it.
    """

    profile: ProfileOptions = field(default_factory=ProfileOptions)
    kubernetes: str = ""
    image: str = ""
    expected: Sequence[Pod] = ()
    overwrite: bool = False


def check_kubernetes(version: str) -> str:
    """Return the version of Kubernetes that is meant. Raises `UserError` for one that a plugin cannot be for."""
    known = [each for each in releases() if each == release() or minor(each) in older_releases()]
    if version.removeprefix("v") not in {"", *known, *map(minor, known)}:
        raise bad_value("kubernetes", version, f"one of {', '.join(known)}, for which it is built and tested")
    return release(version)


def export_weights(spec: str, path: Path, expected: Sequence[Pod] = ()) -> None:
    """Write a policy's weights alone, whole or not at all. Raises `UserError` for a policy that cannot be a plugin.

    An order of its own for waiting pods stays behind, with a warning in the log: kube-scheduler has one queue for all.
    Weights that are there are replaced, another file is refused.
    """
    if path.is_file() and not is_weights(path):
        raise bad_value("out", str(path), "a new file, or one of weights, which is replaced")
    if is_profile(spec):
        write_profile(spec, path)
        return
    policy = load_policy(spec, expected=expected)
    if getattr(policy, "queue_sort", None) is not None:
        LOG.warning("%s: its order of waiting pods stays behind; a plugin gets them in kube-scheduler's order", spec)
    if is_model(spec):
        source = model_file(Path(spec))
        write_weights(policy, path, name=source.stem, source=source)
    else:
        write_weights(policy, path)


def export(spec: str, out: Path, options: ExportOptions | None = None) -> PluginModule:
    """Write the policy that `spec` names as a plugin's folder and return it; an earlier plugin there is replaced.

    Of that only the files go that it wrote itself: other files in the folder stay. Raises `UserError` for a policy that
    cannot be one, another version of Kubernetes, a folder with something else, and a file of somebody else's in a place
    where one is to be written, or one that somebody changed.
    """
    options = options or ExportOptions()
    kubernetes = check_kubernetes(options.kubernetes)
    _check_names(options)
    with output_folder(out):
        begun = is_module(out) or (out / WRITTEN).is_file()
        if not begun and any(each.name != LOCK for each in out.iterdir()):
            raise bad_value("out", str(out), "a new or empty folder, or one that `aaml export` wrote")
        return _export(spec, out, options, kubernetes)


def _check_names(options: ExportOptions) -> None:
    """Raise `UserError` for names and a socket that the manifests could not hold."""
    if options.image and not _IMAGE.fullmatch(options.image):
        raise bad_value("image", options.image, "REGISTRY/NAME:TAG")
    if not _SCHEDULER.fullmatch(options.profile.scheduler_name):
        raise bad_value(
            "scheduler_name", options.profile.scheduler_name, "letters, digits and inner hyphens, dots and underscores"
        )
    learn = options.profile.learn
    if learn and (str(Path(learn).parent) in _MOUNTED or not _PATH.fullmatch(learn)):
        mounted = ", ".join(_MOUNTED)
        raise bad_value("learn", learn, f"a path in a folder of its own, such as /run/aaml/learn.sock, not {mounted}")


def _export(spec: str, out: Path, options: ExportOptions, kubernetes: str) -> PluginModule:
    profile = _profile(spec, options.profile)
    agent = _agent(spec) if profile.learn else ""
    module = PluginModule(out.absolute())
    files: dict[str, bytes] = {
        str(path): content
        for path, content in source_files("" if kubernetes == release() else minor(kubernetes)).items()
    }
    values = {
        "kubernetes": kubernetes,
        "go": "{}.{}".format(*minimum_go()),
        "flags": kubernetes_flags(kubernetes),
        "image": options.image or f"aaml-kube-scheduler:{kubernetes}",
        "source": spec,
        "scheduler_name": profile.scheduler_name,
        "weight": str(profile.weight),
        "means": meaning(profile),
    }
    values |= _lease(profile)
    models = with_critic(model_file(Path(spec))) if profile.learn else []
    values |= _learner(models, agent, profile.learn)
    files |= {f"{MODEL}/{each.name}": each.read_bytes() for each in models}
    for name, text in templates():
        if name != LEARNER or profile.learn:
            files[name] = Template(text).substitute(values).encode()
    files[CONFIGURATION] = yaml_text(deployed(profile)).encode()
    before = _written(module)
    gone = _replaced(module, files, before, overwrite=options.overwrite)
    export_weights(spec, module.embedded, options.expected)
    for old in gone:
        old.unlink(missing_ok=True)
        with suppress(OSError):
            old.parent.rmdir()  # if nothing else is in it
    now = {name: [_sha256(content)] for name, content in files.items()} | {name: [] for name in _POLICY}
    # First with what is there, so that one that was cut off can be done again.
    write_json(module.folder / WRITTEN, {name: [*now[name], *(before or {}).get(name, [])] for name in sorted(now)})
    write_bytes(module.weights, module.embedded.read_bytes())
    for name, content in files.items():
        write_bytes(module.folder / name, content)
    write_json(module.folder / WRITTEN, now, indent=1)
    return module


def _written(module: PluginModule) -> dict[str, list[str]] | None:
    """Return by file what an earlier export wrote, as hashes; none of a version that kept none, None without a list."""
    listed = module.folder / WRITTEN
    if not listed.is_file():
        return None  # new, or of a version that kept no list: nobody knows whose other files are
    try:
        found = msgspec.json.decode(listed.read_bytes(), type=dict[str, list[str]] | list[str])
    except msgspec.MsgspecError as error:
        raise UserError(f"{listed}: is no list of the files that `aaml export` wrote; choose another --out") from error
    return found if isinstance(found, dict) else {name: [] for name in found}


def _replaced(
    module: PluginModule, files: Mapping[str, bytes], before: Mapping[str, Sequence[str]] | None, *, overwrite: bool
) -> list[Path]:
    """Return what an earlier export wrote and this one does not.

    Raises `UserError` for a file of somebody else's, and for those of an earlier export that somebody changed.
    """
    own, known = {*files, *_POLICY}, before or {}
    for name in sorted(own.difference(known) if before is not None else ()):
        if (module.folder / name).exists():
            raise UserError(f"out: {module.folder / name} is not of an earlier export and would be lost; move it first")
    inside = module.folder.resolve()
    gone = {
        name: old
        for name in set(known) - own
        if (old := module.folder / name).resolve().is_relative_to(inside) and old.is_file()
    }
    unlike = {name for name, content in files.items() if _unlike(module.folder / name, known.get(name, ()), content)}
    unlike |= {name for name, old in gone.items() if known[name] and _unlike(old, known[name])}
    if unlike and not overwrite:
        names = ", ".join(sorted(unlike))
        raise UserError(
            f"out: {names} in {module.folder} would be lost, no longer as `aaml export` wrote them; "
            "move them first, or write over them with --overwrite"
        )
    return list(gone.values())


def _unlike(path: Path, known: Sequence[str], content: bytes | None = None) -> bool:
    """Whether a file that is there holds neither what was written before nor what is to be written now."""
    if not path.is_file():
        return False
    there = path.read_bytes()
    return there != content and _sha256(there) not in known


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _profile(spec: str, options: ProfileOptions) -> ProfileOptions:
    """Return what the plugin's profile is like: a policy that is a profile itself takes the place of what it says."""
    if not is_profile(spec):
        return options
    percentage = options.nodes_percentage
    if percentage is None:
        percentage = profile_of(spec).percentage_of_nodes_to_score
    return replace(options, alone=True, nodes_percentage=percentage)


def _agent(spec: str) -> str:
    """Return the kind of agent that a model is of. Raises `UserError` for a policy that does not learn."""
    kind = load_policy(spec).name if is_model(spec) else ""
    if kind not in LIVE:
        raise bad_value("learn", spec, f"a network, which can learn: a model of {', '.join(LIVE)}")
    return kind


def _lease(profile: ProfileOptions) -> dict[str, str]:
    """Return what the manifests say of the Lease: where it is, and whether the account may make it."""
    lease = deployed(profile)["leaderElection"]
    namespace = lease["resourceNamespace"]
    made = "  - apiGroups: [coordination.k8s.io]\n    resources: [leases]\n    verbs: [create]\n"
    return {
        "lease_namespace": namespace,
        "lease_name": lease["resourceName"],
        "lease_made": made if namespace == NAMESPACE else "",  # in kube-system the cluster's scheduler has made it
    }


def _learner(files: Sequence[Path], agent: str, socket: str) -> dict[str, str]:
    """Return what the manifest says of a learner beside the plugin, which begins from these files; "" without one."""
    if not socket:
        return {"learner_model": "", "learner_patch": ""}
    listed = "".join(f"\n      - {MODEL}/{each.name}" for each in files)
    return {
        "agent": agent,
        "model": files[0].name,
        "learn_socket": socket,
        "learn_folder": str(Path(socket).parent),
        "learner_model": f"\n  - name: aaml-learner\n    namespace: aaml\n    files:{listed}",
        "learner_patch": f"\npatches:\n  - path: {LEARNER}",
    }


def meaning(profile: ProfileOptions) -> str:
    """Say what the weight in a profile means."""
    if profile.alone:
        return (
            "The policy decides alone. Where it cannot for a pod, the plugin asks kube-scheduler's default score "
            "plugins, which it carries."
        )
    if profile.weight > DEFAULTS_GIVE:
        return (
            "One rank of the policy's counts more than all default score plugins together: the policy decides. Where "
            "it skips itself for a pod, they do."
        )
    return (
        f"The policy is a voice among others: its best node gets {100 * profile.weight} points, the next one "
        f"{profile.weight} less, and the default score plugins give a node up to {DEFAULTS_GIVE}."
    )


def templates() -> list[tuple[str, str]]:
    """Return the files beside the Go sources by their place in the folder, with what stands for values in them."""

    def below(folder: Traversable, prefix: str) -> list[tuple[str, str]]:
        found = []
        for each in sorted(folder.iterdir(), key=lambda each: each.name):
            name = f"{prefix}{each.name}"
            found += below(each, f"{name}/") if each.is_dir() else [(name, each.read_text(encoding="utf-8"))]
        return found

    return below(files("aaml.plugin") / "files", "")
