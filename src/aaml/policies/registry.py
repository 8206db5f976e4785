"""Policies and rewards by name, a person's own among them: registered by a decorator, or `FILE.py:NAME`.

`kube-scheduler:FILE.yaml` is kube-scheduler with a configuration (`aaml.policies.kube_scores.profile`).

A policy is a function that gives each node a score, float [N], or a class with `act(context)`:

    from aaml.policies.registry import register_policy

    @register_policy("emptiest")
    def emptiest(context):
        return -context.state.requested[:, 0]  # CPU
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from aaml.errors import bad_value
from aaml.own_files import being_loaded, load_file
from aaml.policies import lifetime_rules
from aaml.policies.heuristics import (
    FirstFit,
    PolicyOptions,
    RandomPolicy,
    RoundRobin,
    ScorePolicy,
    policies,
    racks,
    scores,
)
from aaml.policies.kube_scores.profile import names_profile, read_profile
from aaml.scheduling.cycle import Reward
from aaml.scheduling.ports import Policy
from aaml.scheduling.queue_sort import QueueSort
from aaml.scheduling.rewards import BUILT_IN as REWARDS
from aaml.scheduling.rewards import RewardOptions, WeightedSum, own_reward

T = TypeVar("T")
Anything = TypeVar("Anything")


class Registry(Generic[T]):
    """Makers of one kind of thing by name, or by `FILE.py:NAME`: what a file registers is found by that alone.

    So two files may use one name. `besides` says what else is taken where a thing of this kind is asked for.
    """

    def __init__(self, kind: str, built_in: Mapping[str, T], besides: str = "FILE.py:NAME") -> None:
        self._kind, self._besides = kind, besides
        self._made: dict[str, T | Any] = dict(built_in)
        self._own: dict[str, Any] = {}

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted(self._made.keys() | self._own.keys()))

    def register(self, name: str, thing: Any) -> None:
        """Add a person's own under a name. Raises ValueError when a built-in one has it."""
        if name in self._made:
            raise ValueError(f"{self._kind} {name!r} is built in: choose another name")
        file = being_loaded()
        self._own[name if file is None else _key(file, name)] = thing

    def find(self, spec: str) -> tuple[str, Any, bool]:
        """Return (name, what is registered, whether it is a person's own) for a name or `file.py:name`."""
        path, colon, attribute = spec.rpartition(":")
        if colon and path.endswith(".py"):
            return attribute, self._from_file(Path(path), attribute), True
        if spec in self._own:
            return spec, self._own[spec], True
        if spec not in self._made:
            names = [name for name in self.names() if ".py:" not in name]
            raise bad_value(self._kind, spec, f"one of {', '.join(names)}, or {self._besides}")
        return spec, self._made[spec], False

    def _from_file(self, path: Path, attribute: str) -> Any:
        module = load_file(path, self._kind)
        if (key := _key(path, attribute)) in self._own:
            return self._own[key]
        if not hasattr(module, attribute):
            raise bad_value(f"{self._kind} in {path}", attribute, "a name that the file defines or registers")
        return getattr(module, attribute)


def _key(file: Path, name: str) -> str:
    return f"{file.resolve()}:{name}"


def _make(thing: Any, options: object) -> Any:
    """Make an instance of a class, with the options where its constructor takes something."""
    takes = [
        parameter
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return thing(options) if takes else thing()


# ---- policies --------------------------------------------------------------------------------------------------------


def _scored(
    name: str, score: Callable[..., Any], queue_sort: QueueSort | None = None
) -> Callable[[PolicyOptions], Policy]:
    """Return the maker of a policy whose score looks at the state alone: it has no use for expected pods."""
    return lambda options: ScorePolicy(name, score, replace(options, expected=()), queue_sort)


POLICIES: Registry[Callable[[PolicyOptions], Policy]] = Registry(
    "policy",
    {
        "random": RandomPolicy,
        "round-robin": lambda _options: RoundRobin(),
        "first-fit": lambda _options: FirstFit(),
        "least-allocated": _scored("least-allocated", scores.least_allocated),
        "most-allocated": _scored("most-allocated", scores.most_allocated),
        "balanced-allocation": _scored("balanced-allocation", scores.balanced_allocation),
        "least-variance": _scored("least-variance", scores.least_variance),
        # least-variance with a queue of its own: by arrival, and small pods first but none for ever behind
        "first-come": _scored("first-come", scores.least_variance, QueueSort()),
        "first-come-packing": _scored("first-come-packing", scores.most_allocated, QueueSort()),
        "smallest-first": _scored("smallest-first", scores.least_variance, QueueSort(larger_s=2000.0)),
        "kube-scheduler": policies.kube_scheduler,
        "kube-scheduler-packing": policies.kube_scheduler_packing,
        "alphaevolve": _scored("alphaevolve", scores.alphaevolve),
        "best-fit": policies.best_fit,
        "dot-product": policies.dot_product,
        "gpu-packing": policies.gpu_packing,
        "gpu-clustering": policies.gpu_clustering,
        "fgd": policies.fgd,
        "rack-packing": _scored("rack-packing", racks.rack_packing),
        "nilas": lifetime_rules.nilas,
        "lava": lifetime_rules.lava,
        "shortest-first": lifetime_rules.shortest_first,
        "least-work-first": lifetime_rules.least_work_first,
        "clairvoyant": lifetime_rules.clairvoyant,
        "clairvoyant-shortest-first": lifetime_rules.clairvoyant_shortest_first,
        "clairvoyant-least-work-first": lifetime_rules.clairvoyant_least_work_first,
    },
    "a model (a file, a training's folder, a name of `aaml show models`), kube-scheduler:FILE.yaml or FILE.py:NAME",
)


def register_policy(name: str) -> Callable[[Anything], Anything]:
    """Register a score function `(context) -> float [N]`, or a class with `act(context) -> Decision`, under a name."""

    def register(thing: Anything) -> Anything:
        POLICIES.register(name, thing)
        return thing

    return register


def make_policy(spec: str, options: PolicyOptions | None = None) -> Policy:
    """Make a policy by name, `file.py:name` or `kube-scheduler:file.yaml`.

    Raises `UserError` with the names that there are when none has this one.
    """
    options = options or PolicyOptions()
    if names_profile(spec):
        return policies.kube_scheduler_profile(options, read_profile(spec), spec)
    name, thing, own = POLICIES.find(spec)
    if not own:
        return thing(options)  # type: ignore[no-any-return]
    if inspect.isclass(thing):
        policy = _make(thing, options)
        if not callable(getattr(policy, "act", None)):
            raise bad_value("policy", spec, "a class with act(context), or a function that scores a context")
        if not getattr(policy, "name", ""):
            policy.name = name
        return policy  # type: ignore[no-any-return]
    if not callable(thing):
        raise bad_value("policy", spec, "a class with act(context), or a function that scores a context")
    return ScorePolicy(name, thing, options)


# ---- rewards ---------------------------------------------------------------------------------------------------------

_REWARDS: Registry[Callable[[RewardOptions], Reward]] = Registry("reward", REWARDS)


def register_reward(name: str) -> Callable[[Anything], Anything]:
    """Register a reward under a name.

    It is one of three things. For a function `potential(state) -> float` the reward is how much it rises. A function
    `value(context, node) -> float` is called when the pod is on the node, and its value is the reward. A class has
    `before(context)` and `after(context, node) -> float`.
    """

    def register(thing: Anything) -> Anything:
        _REWARDS.register(name, thing)
        return thing

    return register


def reward_names() -> tuple[str, ...]:
    """Return the names that `make_reward` knows."""
    return _REWARDS.names()


def make_reward(spec: str, options: RewardOptions | None = None) -> Reward:
    """Make a reward: a name, `file.py:name`, or a weighted sum of such ("balance=1,fragmentation=0.5")."""
    options = options or RewardOptions()
    if not _is_sum(spec):
        return _one_reward(spec, options)
    return WeightedSum([(weight, _one_reward(part, options)) for part, weight in _weighted(spec)])


def reward_terms(spec: str) -> list[str]:
    """Return the names, or `file.py:name`, that a reward is made of."""
    return [name for name, _ in _weighted(spec)] if _is_sum(spec) else [spec]


def _is_sum(spec: str) -> bool:
    return "=" in spec or "," in spec


def _weighted(spec: str) -> Iterator[tuple[str, float]]:
    for part in spec.split(","):
        number = math.nan
        name, equals, weight = part.strip().rpartition("=")
        if not equals or ".py:" in weight:  # a path may hold an equals sign
            name, number = part.strip(), 1.0
        else:
            with suppress(ValueError):
                number = float(weight)
        if not math.isfinite(number):
            raise bad_value(f"weight of reward {name}", weight, "a number, as in balance=1,fragmentation=0.5")
        yield name, number


def _one_reward(spec: str, options: RewardOptions) -> Reward:
    _, thing, own = _REWARDS.find(spec)
    if not own:
        return thing(options)  # type: ignore[no-any-return]
    if inspect.isclass(thing):
        reward = _make(thing, options)
        if callable(getattr(reward, "after", None)) and callable(getattr(reward, "before", None)):
            return reward  # type: ignore[no-any-return]
    elif callable(thing):
        return own_reward(spec, thing)
    raise bad_value("reward", spec, "a function of (state) or (context, node), or a class with before and after")
