"""Policies from what a person writes: a name, `file.py:name`, or a model file."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aaml.cluster.objects import Pod
from aaml.errors import bad_value
from aaml.scheduling.fragments import FragmentMeter
from aaml.scheduling.heuristics import PolicyOptions
from aaml.scheduling.observation import Context, Featurizer
from aaml.scheduling.ports import Decision, Policy, Ranker
from aaml.scheduling.registry import make_policy

_NETWORK, _TABLE = ".pth", ".json"  # networks; Q-tables and linear scorers


def is_model(spec: str) -> bool:
    """Whether a person means a model file."""
    return spec.endswith((_NETWORK, _TABLE))


def load_policy(
    spec: str, *, seed: int = 0, expected: Sequence[Pod] = (), lookahead: int = 0
) -> tuple[Policy, Featurizer]:
    """Return a policy that does not learn, and the features it needs. Raises `UserError` for what is no policy."""
    meter = FragmentMeter(expected) if any(pod.gpu.count for pod in expected) else None
    growth = None if meter is None else meter.growth
    if not is_model(spec):
        policy = make_policy(spec, PolicyOptions(seed=seed, expected=expected))
        return policy, Featurizer(lookahead=lookahead, fragmentation=growth)
    if not Path(spec).is_file():
        raise bad_value("model", spec, "a model file that exists")
    if spec.endswith(_TABLE):
        return _load_table(Path(spec), seed), Featurizer(lookahead=lookahead, fragmentation=growth)
    from aaml.learning.agent import load_agent, single_threaded

    single_threaded()
    agent = load_agent(spec, learn=False, seed=seed)
    return agent, Featurizer(lookahead=agent.lookahead, fragmentation=growth)


def _load_table(path: Path, seed: int) -> Policy:
    """Read a Q-table or a linear scorer, whichever the file says it is."""
    from aaml.learning.linear import load_linear
    from aaml.learning.qtable import FORMAT, load_qtable

    try:
        kind = json.loads(path.read_text(encoding="utf-8"))["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise bad_value("model", str(path), "a Q-table or a linear scorer as `aaml train` writes it") from error
    return load_qtable(path, seed=seed) if kind == FORMAT else load_linear(path)


@dataclass(frozen=True)
class _Graded:
    """A policy with the grades that it chooses by."""

    policy: Policy
    grade: Callable[[Context], npt.NDArray[np.float64]]

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.policy.name

    def act(self, context: Context) -> Decision:
        """Choose as the policy does."""
        return self.policy.act(context)

    def scores(self, context: Context) -> npt.NDArray[np.float64]:
        """Return [N] grades."""
        return self.grade(context)


def load_ranker(spec: str, *, seed: int = 0) -> tuple[Ranker, Featurizer]:
    """Return a policy that grades every node; one that only chooses gives its choice a 1 and the others a 0."""
    policy, featurizer = load_policy(spec, seed=seed)
    if is_model(spec):
        from aaml.learning.agent import LearnedAgent

        if isinstance(policy, LearnedAgent):
            agent = policy
            return _Graded(agent, lambda context: agent.scores(context.observation)), featurizer
    if isinstance(policy, Ranker):
        return policy, featurizer

    def by_choice(context: Context) -> npt.NDArray[np.float64]:
        grades = np.zeros(len(context.mask))
        row = policy.act(context).row
        if row is not None:
            grades[row] = 1.0
        return grades

    return _Graded(policy, by_choice), featurizer
