"""Explaining a decision: the filters' reasons, the policy's scores, and what each score is made of.

The parts of a score depend on the policy, and the explanation names their kind. Scores of kube-scheduler and of a
linear scorer are sums, and their terms are shown. A network's score is no sum: for each feature the explanation has the
change of the score when that feature is removed (ablation).
"""

import time
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from aaml.cluster.filters import feasible
from aaml.insight.explanation import Explanation, devices_of, requests_of
from aaml.policies.kube_scores.sampling import nodes_to_find
from aaml.scheduling.costs import COST_FEATURES
from aaml.scheduling.observation import NODE_FEATURES, PAIR_FEATURES, Context, Observation
from aaml.scheduling.ports import Decision, Itemising, ItemisingDevices, Policy, Ranker

FloatArray = npt.NDArray[np.float64]
ABLATION = "what the score loses when every node shows the mean of the feasible ones for this feature; no sum"
_SAMPLED = "kube-scheduler looks at a sample of so large a cluster: a node outside it may have a higher score"


@runtime_checkable
class ObservationScorer(Policy, Protocol):
    """A policy whose scores are computed from an observation alone, as the four agents' are."""

    def observation_of(self, context: Context) -> Observation:
        """Return the observation of a context that the scores are computed from."""
        ...

    def preferences(self, observation: Observation) -> FloatArray:
        """Return [N] scores."""
        ...


def explain(
    context: Context, policy: Policy, decision: Decision | None = None, *, number: int = -1, name: str = ""
) -> Explanation:
    """Explain what a policy decides, or decided, in a context.

    Parameters
    ----------
    context
        The state just before the decision, the pod, and the feasible nodes. The pod may fit nowhere.
    policy
        The policy that decides. Its scores are computed without drawing random numbers or learning. It chooses only
        where no `decision` is given.
    decision
        The decision that it made, where it was recorded.
    number
        The number of the decision in its run, from 0.
    name
        The name to show for the policy in place of its own.

    """
    seconds: dict[str, float] = {}
    clock = _Stopwatch(seconds)
    # The context's mask may come from a cluster with other rules (a benchmark's): the filters only give the reasons.
    diagnosis = feasible(context.state, context.pod).diagnosis
    clock.lap("filters and their reasons")
    by = ", ".join(diagnosis.plugins) if diagnosis.rejected_before else "the cluster"
    why = diagnosis.rejected_before or "not feasible here"
    refusals = tuple(
        ("", "") if passed else (plugin or by, ", ".join(reasons) or why)
        for passed, plugin, reasons in zip(context.mask, diagnosis.plugin_by_node, diagnosis.by_node, strict=True)
    )
    explained = Explanation(
        context.pod.key, requests_of(context.pod), name or policy.name, tuple(context.state.names), context.mask.copy(),
        refusals, number=number, time_s=context.now_s, seconds=seconds,
    )  # fmt: skip
    if not context.mask.any():
        return explained
    if isinstance(policy, ObservationScorer):
        observation = policy.observation_of(context)
        clock.lap("features")
    if decision is None:
        decision = policy.act(context)
        clock.lap("choice")
    explained = replace(explained, chosen=decision.node_index, notes=tuple(_notes(context, policy, decision)))
    if not isinstance(policy, Ranker):
        return replace(explained, notes=(*explained.notes, f"{policy.name} chooses without scores"))
    scores = np.asarray(policy.scores(context), dtype=np.float64)
    clock.lap("scores")
    parts: dict[str, FloatArray] = {}
    parts_are = ""
    if isinstance(policy, Itemising):
        parts, parts_are = dict(policy.terms(context)), f"{policy.terms_are}; they add up to the score"
    elif isinstance(policy, ObservationScorer):
        parts, parts_are = ablate(policy, observation), ABLATION
    clock.lap("parts of the scores")
    outside = ~context.mask | ~np.isfinite(scores)
    places = policy.places(context) if isinstance(policy, ItemisingDevices) else None
    return replace(
        explained, scores=np.where(outside, np.nan, scores), parts=parts, parts_are=parts_are,
        devices=() if places is None else devices_of(places, context.mask),
    )  # fmt: skip


def ablate(policy: ObservationScorer, observation: Observation) -> dict[str, FloatArray]:
    """Return for each feature of nodes and pairs, by name, how much it adds to the scores: [N].

    It is the score less the one where every node shows the mean of the feasible nodes for that feature (occlusion:
    Zeiler and Fergus 2014, section 2.1). Features that are the same on every feasible node are left out, and so are
    those of the pod, which are the same by definition.
    """
    full = np.asarray(policy.preferences(observation), dtype=np.float64)
    found = {}
    for block, names in (("nodes", (*NODE_FEATURES, *COST_FEATURES)), ("pairs", PAIR_FEATURES)):
        features = getattr(observation, block)
        for column, name in enumerate(names[: features.shape[1]]):
            shown = features[observation.mask, column]
            if np.ptp(shown) == 0.0:
                continue
            without = features.copy()
            without[:, column] = shown.mean()
            changed = policy.preferences(replace(observation, **{block: without}))
            found[name] = full - np.asarray(changed, dtype=np.float64)
    return found


def _notes(context: Context, policy: Policy, decision: Decision) -> list[str]:
    notes = []
    if decision.node_index is None:
        notes.append(f"{policy.name} left the pod pending although it fits")
    if decision.by:
        notes.append(f"{decision.by} chose the node in the place of {policy.name}")
    if decision.info.get("explored"):
        notes.append("the node was taken to explore, not for its score")
    if policy.name.startswith("kube-scheduler") and nodes_to_find(len(context.state)) < context.mask.sum():
        notes.append(_SAMPLED)
    return notes


class _Stopwatch:
    """Measures the seconds that each part takes."""

    def __init__(self, into: dict[str, float]) -> None:
        self._into, self._since_s = into, time.perf_counter()

    def lap(self, name: str) -> None:
        now_s = time.perf_counter()
        self._into[name], self._since_s = now_s - self._since_s, now_s
