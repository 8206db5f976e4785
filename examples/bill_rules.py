"""Rules of placement that look at what nodes cost; docs/cost.md says what came of them.

`aaml evaluate --task bill --reference most-allocated --policies most-allocated examples/bill_rules.py:cheapest_first`

Each is most-allocated with one thought more. Scores are the use of CPU plus that of memory with the pod, 0 to 2, so a
weight of 0.3 outweighs 15% of both.
"""

from typing import Any

import numpy as np

from aaml.policies.heuristics import PolicyOptions
from aaml.policies.heuristics.scores import most_allocated
from aaml.scheduling.costs import COST_FEATURES
from aaml.scheduling.lifetimes import KnownLifetimes, LifetimeModel
from aaml.scheduling.observation import NODE, NODE_FEATURES, PAIR, Context, ObservationSpec
from aaml.scheduling.ports import Decision
from aaml.scheduling.remaining import log_minutes

COSTS = ObservationSpec(costs=True)


def _costs(context: Context) -> dict[str, np.ndarray]:
    return dict(zip(COST_FEATURES, context.observation.nodes[:, len(NODE_FEATURES) :].T, strict=True))


def _use(context: Context) -> np.ndarray:
    return most_allocated(context) / 50.0


def cheapest_first(context: Context) -> np.ndarray:
    """Prefer nodes that are cheap for their size."""
    return _use(context) - 0.3 * _costs(context)["price_for_size"]


def dearest_first(context: Context) -> np.ndarray:
    """Prefer dear nodes, which are the large ones, so that small ones empty."""
    return _use(context) + 0.3 * _costs(context)["price"]


def oldest_first(context: Context) -> np.ndarray:
    """Prefer nodes that were bought long ago, so that late ones, bought for a peak, go first."""
    return _use(context) + 0.3 * _costs(context)["age"]


def spare_the_next(context: Context) -> np.ndarray:
    """Keep away from nodes that have been quiet and are used little: consolidation is about to take them."""
    costs = _costs(context)
    return _use(context) - 0.3 * costs["quiet"] * costs["unused_price"]


def spare_the_first(context: Context) -> np.ndarray:
    """Keep away from the nodes that Karpenter tries first, by price / (1 + pods)."""
    return _use(context) - 0.3 * _costs(context)["disruption_order"]


def restarted_first(context: Context) -> np.ndarray:
    """Prefer nodes whose timer has just been restarted: another pod event costs them nothing."""
    return _use(context) - 0.3 * _costs(context)["quiet"]


def kept_together(context: Context) -> np.ndarray:
    """Put pods that may not be disrupted together, and the others elsewhere."""
    kept = _costs(context)["kept_pods"] > 0.0
    return _use(context) + np.where(kept == context.pod.do_not_disrupt, 0.3, 0.0)


for _rule in (
    cheapest_first, dearest_first, oldest_first, spare_the_next, spare_the_first, restarted_first, kept_together,
):  # fmt: skip
    _rule.observation_spec = COSTS  # type: ignore[attr-defined]


class _CheapestExtension:
    """Takes a node that the pod keeps for little money longer than now, and whose pods end about when it ends."""

    name = "cheapest_extension"

    def __init__(self, model: LifetimeModel) -> None:
        self.observation_spec = ObservationSpec(lifetime_model=model, costs=True)
        self._model = model

    def act(self, context: Context) -> Decision:
        """Choose a node."""
        shown, price = context.observation, _costs(context)["price"]
        apart = np.abs(shown.nodes[:, NODE.empty_in] - log_minutes(self._model.remaining_s(context.pod)))
        scores = _use(context) + 0.3 * price - 2.0 * price * shown.pairs[:, PAIR.extends] - 0.5 * apart
        return Decision(int(np.where(context.mask, scores, -np.inf).argmax()))


class CheapestExtension(_CheapestExtension):
    """The same by lifetimes that were learned from the task's past."""

    def __init__(self, options: PolicyOptions) -> None:
        super().__init__(LifetimeModel.of_history(options.expected))


class CheapestExtensionKnown(_CheapestExtension):
    """The same with true lifetimes, which nobody knows."""

    name = "cheapest_extension_known"

    def __init__(self, _options: Any) -> None:
        super().__init__(KnownLifetimes())
