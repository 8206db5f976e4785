"""Whole episodes under a formula in one compiled call: the register machine inside lockstep.

Features are those that networks see (`lockstep.show`). To compute only those that a formula reads was tried: it is
slower at ten nodes, and at most twice as fast at a hundred. Decisions and metrics are those of `SimCluster` under a
`FormulaPolicy`, to the bit.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from aaml.cluster.kernels import without_refcount
from aaml.episodes.batch import BatchedEnv, Ended
from aaml.episodes.lockstep import begin, bind, next_decision, show
from aaml.episodes.plan import Plan
from aaml.episodes.rows import BatchSettings, EpisodePool, FloatArray, Rows, View, Work, env_of
from aaml.episodes.supply_rows import Supply, owned_of
from aaml.policies.formulas.expression import FIRST_COST, FIRST_PAIR, FIRST_POD
from aaml.policies.formulas.program import Program, best_of, run_program
from aaml.policies.fragment_meter import FragmentMeter
from aaml.policies.fragmentation import FragmentTables
from aaml.scheduling.lifetimes import LifetimeTable
from aaml.scheduling.observation import NODE_FEATURES, PLAIN, ObservationSpec

IntArray = npt.NDArray[np.int64]


class FormulaEpisodes:
    """Episodes that formulas play again and again: a plan each, of any sizes.

    Raises `UserError` for plans that compiled episodes do not know. Not for several threads at once.
    """

    def __init__(self, plans: Sequence[Plan], observation_spec: ObservationSpec = PLAIN) -> None:
        expected = observation_spec.fragmentation
        self._batch = BatchedEnv(
            lambda group, _number: plans[group],
            len(plans),
            observation_spec=observation_spec,
            expected=expected if isinstance(expected, FragmentMeter) else None,
            threads=1,
            restart=False,
        )
        self._batch.reset()
        self._registers = np.zeros((0, 0))

    def __len__(self) -> int:
        """Return how many episodes there are."""
        return len(self._batch)

    def play(self, program: Program, which: Sequence[int] | IntArray | None = None) -> list[Ended]:
        """Play episodes (by number; all of them) under a formula; return how each ended, with its metrics."""
        rows = np.arange(len(self)) if which is None else np.asarray(which, dtype=np.int64)
        play: Callable[..., None] = _play
        return self._batch.play(rows, lambda *memory: play(*memory, *program, self._room(program)))

    def _room(self, program: Program) -> npt.NDArray[np.float64]:
        """Return registers for as many nodes as there may be."""
        rows, nodes = self._registers.shape
        if rows < program.registers or nodes < self._batch.most_nodes:
            self._registers = np.zeros((max(rows, program.registers), self._batch.most_nodes))
        return self._registers


@without_refcount
def _play(
    pool: EpisodePool, rows: Rows, supply: Supply | None, view: View, tables: FragmentTables | None,
    lives: LifetimeTable | None, settings: BatchSettings, work: Work, which: IntArray, wanted: IntArray,
    constants: FloatArray, code: IntArray, registers: FloatArray,
) -> None:  # fmt: skip
    """Play the episodes of some rows to their ends; `registers` is overwritten."""
    score = registers[len(wanted) + len(constants) + len(code) - 1]
    for b in which:
        env = env_of(pool, rows, b)
        owned = owned_of(supply, env, b)
        begin(pool, rows, env, owned, b)
        n, at = env.at.nodes, env.at
        mask, nodes, pairs, pod = view.mask[b], view.nodes[b, :n], view.pairs[b, :n], view.pod[b]
        while next_decision(env, owned, settings, work, mask):
            at.steps += 1
            if owned is not None:
                n = at.nodes
                nodes, pairs = view.nodes[b, :n], view.pairs[b, :n]
            show(env, owned, settings, tables, lives, work, True, mask[:n], nodes, pairs, pod)
            for k in range(len(wanted)):
                number, out = wanted[k], registers[k]
                for i in range(n):
                    if number < FIRST_PAIR:
                        out[i] = nodes[i, number]
                    elif number < FIRST_POD:
                        out[i] = pairs[i, number - FIRST_PAIR]
                    elif number < FIRST_COST:
                        out[i] = pod[number - FIRST_POD]
                    else:
                        column = number - FIRST_COST + len(NODE_FEATURES)
                        out[i] = nodes[i, column] if column < nodes.shape[1] else 0.0
            run_program(constants, code, len(wanted), registers, n)
            bind(env, owned, env.queue.ready[at.cursor], best_of(score, mask, n))
        at.over, at.alive = 1, 0
