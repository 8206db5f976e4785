"""Writes a policy as a plugin of kube-scheduler: the Go module, its configuration, manifests, Dockerfile and README."""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import yaml

from aaml.cluster.objects import Pod
from aaml.errors import bad_value
from aaml.evaluation.policies import is_model, load_policy
from aaml.evaluation.zoo import model_file
from aaml.files import write_bytes, write_text
from aaml.kube.provision.binaries import linker_flags, minimum_go, versions
from aaml.learning.config import LIVE
from aaml.plugin.configuration import DEFAULTS_GIVE, ProfileOptions, deployed
from aaml.plugin.module import PluginModule, is_module
from aaml.plugin.profile import is_profile, profile_of
from aaml.plugin.source import source_files
from aaml.plugin.weights import write_profile, write_weights

LOG = logging.getLogger(__name__)
NAMESPACE = "aaml"
LEARNER, MODEL = "manifests/learner.yaml", "learner"
SUFFIX = ".json"
"""Of an output that is the weights alone."""


@dataclass(frozen=True)
class ExportOptions:
    """What is written besides the policy; `image` is where the program's container image will be."""

    profile: ProfileOptions = field(default_factory=ProfileOptions)
    kubernetes: str = ""
    image: str = ""
    expected: Sequence[Pod] = ()


def check_kubernetes(version: str) -> str:
    """Return the version that is built and tested. Raises `UserError` for any other that is asked for."""
    pinned = versions().kubernetes
    if version.removeprefix("v") not in {"", pinned}:
        raise bad_value("kubernetes", version, f"{pinned}, which is the version that is built and tested")
    return pinned


def export_weights(spec: str, path: Path, expected: Sequence[Pod] = ()) -> None:
    """Write a policy's weights alone, whole or not at all. Raises `UserError` for a policy that cannot be a plugin.

    An order of its own for waiting pods stays behind, with a warning in the log: kube-scheduler has one queue for all.
    """
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

    Raises `UserError` for a policy that cannot be one, another version of Kubernetes, or a folder with something else.
    """
    options = options or ExportOptions()
    kubernetes = check_kubernetes(options.kubernetes)
    if out.exists() and not is_module(out) and not (out.is_dir() and not any(out.iterdir())):
        raise bad_value("out", str(out), "a new or empty folder, or one that `aaml export` wrote")
    profile = _profile(spec, options.profile)
    agent = _agent(spec) if profile.learn else ""
    module = PluginModule(out.absolute())
    export_weights(spec, module.embedded, options.expected)
    write_bytes(module.weights, module.embedded.read_bytes())
    sources = source_files()
    for old in module.compiled():
        if old != module.embedded and old.relative_to(module.folder) not in sources:
            old.unlink(missing_ok=True)
    for path, content in sources.items():
        write_bytes(module.folder / path, content)
    said = {
        "kubernetes": kubernetes,
        "go": "{}.{}".format(*minimum_go()),
        "flags": linker_flags("kubernetes"),
        "image": options.image or f"aaml-kube-scheduler:{kubernetes}",
        "source": spec,
        "scheduler_name": profile.scheduler_name,
        "weight": str(profile.weight),
        "means": meaning(profile),
    }
    said |= _lease(profile)
    said |= _learner(spec, agent, module, profile.learn)
    for name, text in templates():
        if name != LEARNER or profile.learn:
            write_text(module.folder / name, Template(text).substitute(said))
    text = yaml.safe_dump(deployed(profile), sort_keys=False)
    write_text(module.configuration, text)
    return module


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


def _learner(spec: str, agent: str, module: PluginModule, socket: str) -> dict[str, str]:
    """Copy the model from which a learner beside the plugin begins; return what its manifest says, "" without one."""
    shutil.rmtree(module.folder / MODEL, ignore_errors=True)
    (module.folder / LEARNER).unlink(missing_ok=True)
    if not socket:
        return {"learner_model": "", "learner_patch": ""}
    source = model_file(Path(spec))
    kind, _, rest = source.name.partition("_")
    other = source.with_name(f"{({'Actor': 'Critic', 'Critic': 'Actor'}).get(kind, kind)}_{rest}")
    files = sorted(each for each in {source, other} if each.is_file())
    for each in files:
        write_bytes(module.folder / MODEL / each.name, each.read_bytes())
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
