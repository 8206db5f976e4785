"""Runs of the GPU-sharing benchmark as cases: a formula scores a pod on each node and device, and FGD is the reference.

The loss on a run is that of `aaml.sim.openb.loss_against_fgd`, as for every search on the benchmark.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aaml.episodes.engine import simulate
from aaml.errors import bad_value
from aaml.evolve.races import Probes, Races
from aaml.policies.formulas.expression import FIRST_GPU, NUMBERED
from aaml.policies.formulas.program import Program
from aaml.policies.gpu.learned import all_features, formula_scorer
from aaml.policies.gpu.policies import FGD
from aaml.policies.gpu.prices import scarcity
from aaml.scheduling.ports import Policy
from aaml.sim.openb import gains_over_fgd, loss_against_fgd, prepare

FloatArray = npt.NDArray[np.float64]
_LOADS, _PODS_THERE = (40, 70, 90, 100), 8  # states that formulas are asked about: how full, and for how many pods


class TraceJudge(Races):
    """Runs of traces, each on seeds of its own; the first of them are of different traces."""

    def __init__(self, traces: Sequence[str], first_seed: int, count: int) -> None:
        self.count = count
        self.tuning = min(self.tuning, len(traces))
        self.runs = [(traces[k % len(traces)], first_seed + k // len(traces)) for k in range(count)]
        self.probes = _probes(self.runs[: len(traces)])

    def play(self, program: Program, numbers: Sequence[int]) -> FloatArray:
        """Return the losses of a formula in runs by their numbers, float64 [n]."""
        losses = np.empty(len(numbers))
        for k, number in enumerate(numbers):
            trace, seed = self.runs[number]
            prepared = prepare(trace, seed)
            scorer = formula_scorer(program, prepared.tables, prepared.devices)
            losses[k] = loss_against_fgd(gains_over_fgd(trace, seed, scorer))
        return losses

    def play_policy(self, policy: Policy, numbers: Sequence[int]) -> FloatArray:  # noqa: ARG002
        """Refuse: here programs are formulas."""
        raise bad_value("program", policy.name, "one that assigns a formula to FORMULA, for task openb")

    def described(self, number: int) -> str:
        """Return what a run is, in words."""
        trace, seed = self.runs[number]
        return f"trace {trace} with seed {seed}"


def _probes(runs: Sequence[tuple[str, int]]) -> Probes:
    """Return states that FGD meets, with one row for all nodes and devices that look alike to a formula."""
    states = []
    for trace, seed in runs:
        prepared = prepare(trace, seed)
        nodes, at = prepared.arrays.copy(), 0
        scarce = scarcity(prepared.tables, prepared.devices)
        for place in np.searchsorted(prepared.column, _LOADS).tolist():
            simulate(
                nodes, prepared.shapes, prepared.arrivals[at:place], prepared.tables, FGD, node_rank=prepared.node_rank
            )
            for arrival in prepared.arrivals[place : place + _PODS_THERE]:
                seen, _, _ = all_features(nodes, prepared.shapes[arrival], prepared.tables, scarce)
                if len(seen):
                    states.append(np.unique(seen, axis=0))
            at = place
    sizes = np.array([len(state) for state in states])
    columns = np.zeros((len(NUMBERED), sizes.sum()), dtype=np.float32)
    columns[FIRST_GPU:] = np.concatenate(states).T
    return Probes(columns, np.ones(sizes.sum(), dtype=np.bool_), sizes)
