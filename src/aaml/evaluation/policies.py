"""Policies from what a person writes: a policy's name, `FILE.py:NAME`, a shipped model's name, a model file."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from aaml.cluster.objects import Pod
from aaml.errors import UserError, bad_value
from aaml.evaluation.zoo import SUFFIXES, model_file, zoo
from aaml.extras import lazily
from aaml.learning.linear import load_linear
from aaml.learning.qtable import load_qtable
from aaml.nodes.file import WORDS
from aaml.policies.formula_file import FORMAT as FORMULA
from aaml.policies.formula_file import load_formula
from aaml.policies.formulas.expression import is_of_gpus
from aaml.policies.formulas.policy import FormulaPolicy
from aaml.policies.gpu.scorer_file import ScorerModel, load_scorer
from aaml.policies.heuristics import PolicyOptions
from aaml.policies.heuristics.policies import GpuPolicy, gpu_scorer
from aaml.policies.kube_scores.profile import PREFIX, names_profile, profile_file
from aaml.policies.registry import POLICIES, make_policy
from aaml.scheduling.ports import Policy
from aaml.schema import convert, of_json, read_bytes

if TYPE_CHECKING:
    from aaml.learning import policy as networks
else:  # torch: a rule, a table and a linear scorer do without
    networks = lazily("aaml.learning.policy")

PLUGIN_WEIGHTS = "aaml-plugin-weights"
"""The format of a plugin's weights, which say from which policy they were exported."""
_ACCEPTED = "a model file as `aaml train`, `aaml search gpu` or `aaml search formula` writes it"
_EXPECTED = "a model file that exists, the folder of a training, or a name that `aaml show models` lists"
_PATHS = "a model file, the folder of a training, FILE.py:NAME or kube-scheduler:FILE.yaml"
_LISTS = "`aaml show policies` and `aaml show models` list them"


def is_model(spec: str) -> bool:
    """Whether a person means a model: one that ships, a file that is there, or what has the suffix of one."""
    if ".py:" in spec or spec.endswith(".py") or names_profile(spec) or spec in POLICIES.names():
        return False
    return spec.endswith(SUFFIXES) or model_file(Path(spec)).is_file()


def split_nodes(spec: str) -> tuple[str, str]:
    """Return a policy and who provisions its nodes, of POLICY+FILE or POLICY+WORD; empty for none.

    Raises `UserError` for a policy that is known by its name with another word.
    """
    parts = [(spec[:place], spec[place + 1 :]) for place, letter in enumerate(spec) if letter == "+" and place][::-1]
    meant = [(policy, nodes) for policy, nodes in parts if nodes in WORDS or nodes.endswith((".yaml", ".yml"))]
    if names_profile(spec) and profile_file(spec).is_file():  # a plus before "#" is of its own path
        meant = [each for each in meant if "#" in each[0]]
    if meant:
        return next((each for each in meant if each[1] in WORDS or Path(each[1]).is_file()), meant[0])
    if parts and parts[0][0] in POLICIES.names():
        raise bad_value("nodes", parts[0][1], f"one of {', '.join(WORDS)}, or a YAML file")
    return spec, ""


def origin(spec: str) -> Literal["built-in", "own", "model"]:
    """Return what a person means: one of our policies by its name, one of their own, or a model file."""
    if is_model(spec):
        return "model"
    return "own" if ".py:" in spec or names_profile(spec) else "built-in"


def policy_file(spec: str) -> Path | None:
    """Return the file that says what a policy is: a model, FILE of FILE.py:NAME or of kube-scheduler:FILE.

    None for a policy of ours.
    """
    if is_model(spec):
        return Path(spec)
    if names_profile(spec):
        return profile_file(spec)
    path, _, _ = spec.rpartition(":")
    return Path(path) if path.endswith(".py") else None


def in_any_folder(spec: str) -> str:
    """Return a policy as a process that works in another folder has to name it."""
    file = policy_file(spec)
    if file is None or not file.exists():
        return spec
    prefix = PREFIX if names_profile(spec) else ""
    return prefix + str(Path(spec.removeprefix(prefix)).absolute())


def load_policy(spec: str, *, seed: int = 0, expected: Sequence[Pod] = ()) -> Policy:
    """Return a policy that does not learn, by name, `FILE.py:NAME`, model file or folder of a training.

    `kube-scheduler:FILE.yaml` is kube-scheduler with a KubeSchedulerConfiguration.

    `seed` is that of ties and of random policies; `expected` are pods like those to come, which some policies weigh
    fragments of GPUs by. Raises `UserError` for what is no policy.
    """
    if spec.endswith(".py"):
        raise UserError(f"policy: {spec!r} names no policy of that file; expected FILE.py:NAME, such as {spec}:mine")
    if is_model(spec):
        return load(spec, seed=seed, expected=expected)
    if "/" in spec and origin(spec) == "built-in":
        what = "holds no model" if Path(spec).exists() else "is not there"
        raise UserError(f"policy: {spec!r} {what}; expected {_PATHS}, or a name ({_LISTS})")
    return make_policy(spec, PolicyOptions(seed=seed, expected=expected))


def load(path: Path | str, *, seed: int = 0, expected: Sequence[Pod] = ()) -> Policy:
    """Return the policy in a model file of any kind, which the file itself names: its suffix does not matter.

    The folder of a training stands for the model in it, a name of `aaml show models` for the weights that ship.

    Kinds are the four agents with networks, the Q-table, the linear scorer, a formula, and the scorer of the
    GPU-sharing benchmark (weights or a formula), which weighs fragments by the `expected` pods. Raises `UserError` for
    a file that is missing or holds no model.
    """
    path = model_file(Path(path))
    kind = kind_of_model(path)
    if kind == "plugin":
        return load_policy(_exported_from(path), seed=seed, expected=expected)
    if kind == "network":
        if path.name.startswith("Critic_"):
            actor = path.name.replace("Critic_", "Actor_", 1)
            raise bad_value("model", str(path), f"a file that chooses, {actor}; a critic only says how good a state is")
        networks.single_threaded()
        return networks.load_network_policy(path, seed=seed)
    if kind == "qtable":
        return load_qtable(path, seed=seed)
    if kind == "linear":
        return load_linear(path)
    if kind == "scorer":
        scorer = load_scorer(path)
    else:
        formula = load_formula(path)
        if not is_of_gpus(formula.expression):
            return FormulaPolicy(formula, path.stem)
        scorer = ScorerModel(formula=formula.expression)
    return gpu_scorer(scorer, path.stem, PolicyOptions(seed=seed, expected=expected))


def kind_of_model(path: Path) -> str:
    """Return the kind of model in a file. Raises `UserError` where it names none."""
    if not path.is_file():
        raise bad_value("model", str(path), _EXPECTED)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
            return "scorer" if all(name.endswith(".npy") for name in names) else "network"
        content = of_json(path.read_bytes(), "model", any_number=True)
        return {"aaml-qtable": "qtable", "aaml-linear": "linear", FORMULA: "formula", PLUGIN_WEIGHTS: "plugin"}[
            content["format"]
        ]
    except (OSError, KeyError, TypeError, UserError, zipfile.BadZipFile) as error:
        raise bad_value("model", str(path), _ACCEPTED) from error


def _exported_from(path: Path) -> str:
    """Return the policy that a plugin's weights were exported from: one by name, or the weights that ship.

    Raises `UserError` that says which file it was, for any other.
    """

    class Model(msgspec.Struct):
        name: str
        agent: str = ""
        sha256: str = ""

    class Weights(msgspec.Struct):
        model: Model

    model = convert(of_json(read_bytes(path, "model"), f"model {path}"), Weights, f"model {path}").model
    shipped = {each.sha256: name for name, each in zoo().items()}
    if model.sha256 in shipped:
        return shipped[model.sha256]
    if not model.sha256 and model.name in POLICIES.names():
        return model.name
    digest = f", SHA-256 {model.sha256[:12]}..." if model.sha256 else ""
    raise bad_value("model", str(path), f"the file that these weights were exported from ({model.name}{digest})")


def needs_expected_pods(policy: Policy) -> bool:
    """Whether a policy weighs fragments of GPUs by expected pods, of which none requests a GPU."""
    return isinstance(policy, GpuPolicy) and policy.weighs_nothing


@contextmanager
def frozen(policy: object) -> Iterator[None]:
    """Let an agent act as it is while the block lasts, without exploring or learning; nothing else is touched."""
    learning = getattr(policy, "learning", False)
    if learning:
        policy.learning = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if learning:
            policy.learning = True  # type: ignore[attr-defined]
