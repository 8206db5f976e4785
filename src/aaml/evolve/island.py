"""A population of formulas that breeds by itself, and gives its best away now and then."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aaml.evolve.cases import training
from aaml.evolve.grammar import Grammar, rounded
from aaml.evolve.judge import Races, Scores
from aaml.evolve.settings import EvolveConfig
from aaml.policies.formula_file import load_formula
from aaml.policies.formulas.expression import Expression, constants, parts, shortened, simplify, with_constants
from aaml.policies.formulas.program import assemble
from aaml.policies.formulas.text import parse, to_text
from aaml.search.evolution import separable_cma
from aaml.search.pareto import fronts, survivors

_TUNING_GENERATIONS, _TUNING_POPULATION = 4, 6
_DEVIATION = 0.3  # of a constant, relative to it


@dataclass(frozen=True)
class Member:
    """A formula of a population."""

    expression: Expression
    signature: str
    loss: float

    @property
    def objectives(self) -> tuple[float, float]:
        """What is to be low: its loss and its size."""
        return self.loss, float(parts(self.expression))


class Island:
    """One population. Its episodes, and so its losses, are those of all islands of the search.

    Formulas that choose alike in all probe states have the same losses, for they are played once; the shortest stays,
    and in the front it loses the terms without which it chooses alike.
    """

    def __init__(self, config: EvolveConfig, number: int, judge: Races | None = None) -> None:
        self._config = config
        self._judge = judge or training(config)
        self._grammar = Grammar(self._judge.probes.informative(), config.size)
        self._rng = np.random.default_rng([config.seed, number])
        self._members: list[Member] = []
        self._known: dict[str, Scores] = {}
        self._alive: set[str] = set()  # formulas of which every term counts
        self._played = self._asked = 0

    def advance(self, migrants: Sequence[str]) -> Mapping[str, Any]:
        """Go on by one generation, with formulas of other islands; return the front and what it cost.

        ========  ================================================================
        front     (text, loss, size) of the formulas that no other dominates
        played    formulas that were played so far
        asked     formulas that were looked at so far, known ones among them
        ========  ================================================================
        """
        if self._members:
            born = [parse(text) for text in migrants] + self._bred() + self._tuned()
        else:
            start = [simplify(load_formula(path).expression) for path in self._config.start]
            born = start + [self._grammar.first(self._rng) for _ in range(2 * self._config.population)]
        self._take_in(born)
        return {
            "front": [(to_text(each.expression), each.loss, parts(each.expression)) for each in self._front()],
            "played": self._played,
            "asked": self._asked,
        }

    def state(self) -> dict[str, Any]:
        """Return plain values that `restore` goes on from."""
        return {
            "members": [(to_text(each.expression), each.signature, each.loss) for each in self._members],
            "known": {signature: (each.loss, each.losses) for signature, each in self._known.items()},
            "rng": self._rng.bit_generator.state,
            "played": self._played,
            "asked": self._asked,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._members = [Member(parse(text), signature, loss) for text, signature, loss in state["members"]]
        self._known = {signature: Scores(loss, tuple(losses)) for signature, (loss, losses) in state["known"].items()}
        self._rng.bit_generator.state = state["rng"]
        self._played, self._asked = state["played"], state["asked"]

    def _front(self) -> list[Member]:
        objectives = np.array([each.objectives for each in self._members])
        return sorted((self._members[k] for k in fronts(objectives)[0]), key=lambda each: parts(each.expression))

    def _bred(self) -> list[Expression]:
        def parent() -> Expression:  # members are in the order of rank and crowding
            return self._members[int(self._rng.integers(len(self._members), size=2).min())].expression

        return [self._grammar.child(parent(), parent(), self._rng) for _ in range(self._config.population)]

    def _tuned(self) -> list[Expression]:
        """Return formulas of the front with constants that an evolution strategy has tuned on some of the episodes."""
        able = [each.expression for each in self._front() if constants(each.expression)]
        chosen = self._rng.permutation(len(able))[: self._config.tuned]
        return [self._with_better_constants(able[k]) for k in chosen]

    def _with_better_constants(self, expression: Expression) -> Expression:
        count = min(self._judge.tuning, self._judge.count)
        episodes = np.sort(self._rng.choice(self._judge.count, count, replace=False)).tolist()
        old = np.array(constants(expression))
        scale = np.where(old == 0.0, 1.0, old)

        def changed(vector: np.typing.NDArray[np.float64]) -> Expression:
            return with_constants(expression, iter([rounded(float(value)) for value in old + scale * vector]))

        def values(vectors: Sequence[np.typing.NDArray[np.float64]], _generation: int) -> list[float]:
            return [-float(self._judge.play(assemble(changed(each)), episodes).mean()) for each in vectors]

        found = separable_cma(
            values, np.zeros(len(old)), generations=_TUNING_GENERATIONS, population=_TUNING_POPULATION,
            deviation=_DEVIATION, rng=self._rng,
        )  # fmt: skip
        return simplify(changed(found))

    def _take_in(self, born: Sequence[Expression]) -> None:
        """Judge new formulas, and keep the best of old and new."""
        shortest = {each.signature: each for each in self._members}
        whole = self._judge.count
        rivals = [each for each in self._members if len(self._known[each.signature].losses) == whole]
        for expression in born:
            program = assemble(expression)
            signature = self._judge.probes.signature(program)
            self._asked += 1
            if signature not in self._known:
                smaller = [each for each in rivals if parts(each.expression) <= parts(expression)]
                rival = min(smaller, key=lambda each: each.loss, default=None)
                scores = self._judge.race(program, None if rival is None else self._known[rival.signature])
                self._known[signature] = scores
                self._played += 1
                if len(scores.losses) == whole:
                    rivals.append(Member(expression, signature, scores.loss))
            old = shortest.get(signature)
            if old is None or parts(expression) < parts(old.expression):
                shortest[signature] = Member(expression, signature, self._known[signature].loss)
        everyone = list(shortest.values())
        kept, _, _ = survivors(np.array([each.objectives for each in everyone]), self._config.population)
        self._members = [everyone[k] for k in kept]
        shown = {each.signature: self._without_dead_terms(each) for each in self._front()}
        self._members = [shown.get(each.signature, each) for each in self._members]

    def _without_dead_terms(self, member: Member) -> Member:
        """Return a formula without terms that change no choice."""
        found: Expression | None = member.expression
        while found is not None and to_text(found) not in self._alive:
            member = replace(member, expression=found)
            alike = (
                each
                for each in shortened(member.expression)
                if self._judge.probes.signature(assemble(each)) == member.signature
            )
            if (found := next(alike, None)) is None:
                self._alive.add(to_text(member.expression))
        return member if found is None else replace(member, expression=found)
